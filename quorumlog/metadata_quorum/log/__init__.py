"""What needs only a `Disk`: the metadata log and the election file."""
