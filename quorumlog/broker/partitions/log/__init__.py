"""What needs only a `Disk`: the drivers of partitions, their logs and the log directory."""
