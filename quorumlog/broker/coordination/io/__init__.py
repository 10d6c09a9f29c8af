"""Coordinator shards in the event loop: futures, timers and the clock."""
