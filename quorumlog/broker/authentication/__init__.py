"""Authenticates the clients of a listener: SASL mechanisms, and sessions that expire."""
