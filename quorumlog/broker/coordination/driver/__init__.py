"""Drivers of coordinator shards without an event loop: brokers and the simulator run them."""
