"""Nodes that differ in one part, for tests."""
