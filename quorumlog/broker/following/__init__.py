"""Replication from leaders: the fetchers of this broker."""
