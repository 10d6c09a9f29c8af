"""Fetches, delayed ones and their answers."""
