"""Brokers, their controller and producers: replication from the real logs to the real elections."""
