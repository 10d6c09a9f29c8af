"""The changes of a partition that wake its delayed fetches."""

from enum import IntEnum
from typing import Final

FetchWakeups = int
"""Several changes, or'ed. An enum of flags would create an object for each `|` and `&`."""


class FetchWakeup(IntEnum):
    """A change of a partition since its delayed fetches were last tried; each has a bit."""

    APPENDED = 1  # wakes followers
    COMMITTED = 2  # wakes consumers
    CHANGED = 4  # leader, epoch or existence: wakes all
    LOG_START = 8  # the log start rose: followers get it at once, a deletion may wait for them


ANY_CHANGE: Final[FetchWakeups] = sum(FetchWakeup)
