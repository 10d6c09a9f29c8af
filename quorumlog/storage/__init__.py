"""Bytes on disk: logs, indexes, checkpoints, recovery, and the `Disk` interface under them."""
