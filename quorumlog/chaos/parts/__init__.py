"""A check in parts: a history larger than a memory is read, cut and judged piece by piece."""
