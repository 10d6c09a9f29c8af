"""Fetches, delayed fetches and their responses."""
