"""Fetches of consumers and followers: long polls, fetch sessions (KIP-227), memory limits."""
