"""What storage refuses, and what its callers answer with."""

from collections.abc import Callable
from errno import EDQUOT, EMFILE, ENFILE, ENOSPC
from typing import Final

NO_ROOM: Final = frozenset({ENOSPC, EDQUOT})
NO_HANDLES: Final = frozenset({EMFILE, ENFILE})
PASSING: Final = NO_ROOM | NO_HANDLES


class StorageError(Exception):
    """The disk refused, or holds what cannot be. Callers answer KAFKA_STORAGE_ERROR."""


class DiskExhausted(StorageError):
    """There is no room, or no file handle, for now. It says nothing of the files: try again."""


class CorruptCheckpoint(StorageError):
    """A small file is not whole. The message names it and says what to do about it."""


class DamagedLog(StorageError):
    """Records are gone that were there for certain. Nothing was cut; the message says where.

    `end_offset`: the log is whole below it. `last_epoch`: the leader epoch of the last batch below
    it that was checked, -1 if none was.
    """

    def __init__(self, message: str, *, end_offset: int = 0, last_epoch: int = -1) -> None:
        super().__init__(message)
        self.end_offset: Final = end_offset
        self.last_epoch: Final = last_epoch


class LacksRecords(StorageError):
    """A log is not whole, and the metadata does not say that others have what it lacks.

    Nothing was changed: the controller must have a report of the log first. The log is whole below
    `end_offset`; the last record below it is of `last_epoch`, -1 if there is none.
    """

    def __init__(self, message: str, *, end_offset: int = 0, last_epoch: int = -1) -> None:
        super().__init__(message)
        self.end_offset: Final = end_offset
        self.last_epoch: Final = last_epoch


class OffsetOutOfRange(Exception):
    """A read outside [log_start_offset, log_end_offset]. Callers answer OFFSET_OUT_OF_RANGE."""


class NotInMemory(Exception):
    """A read that must not wait for the disk would have to: `bring_in` what it needs, and repeat.

    `bring_in` is for another thread, while nothing cuts or closes the log. It returns what the
    log's own thread is to call then. It raises OSError, StorageError.
    """

    def __init__(self, bring_in: Callable[[], Callable[[], None]]) -> None:
        super().__init__()
        self.bring_in: Final = bring_in


class UnexpectedOffset(Exception):
    """A follower was given batches that do not continue its log: fetch again from its end."""


class OlderEpoch(UnexpectedOffset):
    """The next batch is of an older `epoch` than the log's last one: the logs diverge below it."""

    def __init__(self, message: str, epoch: int) -> None:
        super().__init__(message)
        self.epoch: Final = epoch


class RecordsTooLarge(Exception):
    """One append that no segment can hold. Callers answer RECORD_LIST_TOO_LARGE."""


def lacks_room(error: BaseException | None) -> bool:
    """Tell whether a room or a handle was all that lacked: in work that can begin anew, try again.

    Such an error is no DiskExhausted where the work was left half done.
    """
    if isinstance(error, OSError):
        return error.errno in PASSING
    if isinstance(error, StorageError):
        return isinstance(error, DiskExhausted) or lacks_room(error.__cause__)
    return False


def storage_error(message: str, error: OSError) -> StorageError:
    """Return the StorageError for what the system said; raise it `from error`."""
    is_passing = error.errno in PASSING
    return DiskExhausted(message) if is_passing else StorageError(message)
