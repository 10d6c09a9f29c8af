"""Bytes on disk: logs, indexes, checkpoints, recovery, and the Disk seam under them."""
