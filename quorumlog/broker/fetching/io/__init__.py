"""Fetches that wait, and their answers."""
