"""Drivers of coordinator shards in the event loop: load, serve, resign."""
