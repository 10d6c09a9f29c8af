"""What the fetches that wait for a partition are told."""

from enum import IntFlag


class News(IntFlag):
    """What has happened to a partition since its parked fetches were last looked at."""

    APPENDED = 1  # of interest to followers
    COMMITTED = 2  # of interest to consumers
    CHANGED = 4  # leader, epoch or existence: of interest to all
    LOG_START = 8  # it rose: followers are told at once, for a deletion waits for them
