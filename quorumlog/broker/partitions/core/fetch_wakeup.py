"""The changes of a partition that concern its delayed fetches."""

from enum import IntFlag


class FetchWakeup(IntFlag):
    """The changes of a partition since its delayed fetches were last tried."""

    APPENDED = 1  # of interest to followers
    COMMITTED = 2  # of interest to consumers
    CHANGED = 4  # leader, epoch or existence: of interest to all
    LOG_START = 8  # it rose: followers learn it at once, because a deletion waits for them
