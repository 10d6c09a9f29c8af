"""A check in parts: a history larger than memory is read, split and checked piece by piece."""
