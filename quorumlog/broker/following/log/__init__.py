"""Applies a leader's answers to the log; of the file system it needs only the `Disk` interface."""
