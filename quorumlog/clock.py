"""The wall clock, for timestamps that others read. What is measured goes by a monotonic clock."""

import time


def wall_clock_ms() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000
