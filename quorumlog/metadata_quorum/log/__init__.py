"""The metadata log and the election file, which need only a `Disk`."""
