"""Handlers of APIs that a setting turns on: the registry does not load them."""
