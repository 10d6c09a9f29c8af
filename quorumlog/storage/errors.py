"""Errors of storage, and the error codes that its callers return for them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import EDQUOT, EMFILE, ENFILE, ENOSPC
from typing import Final

NO_ROOM: Final = frozenset({ENOSPC, EDQUOT})
NO_HANDLES: Final = frozenset({EMFILE, ENFILE})
PASSING: Final = NO_ROOM | NO_HANDLES


class StorageError(Exception):
    """The disk failed, or its data are inconsistent. Callers return KAFKA_STORAGE_ERROR."""


class DiskExhausted(StorageError):
    """The disk is full, or file handles ran out, for now. The files are unharmed: try again."""


class CorruptCheckpoint(StorageError):
    """A small file is not whole. The message names the file and the remedy."""


class _Incomplete(StorageError):
    """A log is whole below `end_offset`, and unchanged.

    `last_epoch`: the leader epoch of the last checked batch below `end_offset`, -1 without one.
    """

    def __init__(self, message: str, *, end_offset: int = 0, last_epoch: int = -1) -> None:
        super().__init__(message)
        self.end_offset: Final = end_offset
        self.last_epoch: Final = last_epoch


class DamagedLog(_Incomplete):
    """Records below the recovery point are lost. The message has the place."""


class LacksRecords(_Incomplete):
    """A log is not whole, and the metadata does not prove that other replicas have its records.

    The controller must receive a report of it first.
    """


class OffsetOutOfRange(Exception):
    """A read outside [log_start_offset, log_end_offset]. Callers return OFFSET_OUT_OF_RANGE."""


class NotInMemory(Exception):
    """A read without waiting needs the disk: call `bring_in`, then repeat the read.

    `bring_in` runs in another thread, while the log is neither truncated nor closed. It returns a
    callback for the log's own thread. It raises OSError, StorageError.
    """

    def __init__(self, bring_in: Callable[[], Callable[[], None]]) -> None:
        super().__init__()
        self.bring_in: Final = bring_in


class UnexpectedOffset(Exception):
    """A follower received batches that do not continue its log: fetch again from its end."""


class OlderEpoch(UnexpectedOffset):
    """The next batch has an older `epoch` than the log's last one: the logs diverge below it."""

    def __init__(self, message: str, epoch: int) -> None:
        super().__init__(message)
        self.epoch: Final = epoch


class RecordsTooLarge(Exception):
    """An append that is too large for any segment. Callers return RECORD_LIST_TOO_LARGE."""


def lacks_room(error: BaseException | None) -> bool:
    """Return whether only disk space or file handles were missing: restartable work tries again.

    Such an error is no DiskExhausted where the work was left half done.
    """
    if isinstance(error, OSError):
        return error.errno in PASSING
    if isinstance(error, StorageError):
        return isinstance(error, DiskExhausted) or lacks_room(error.__cause__)
    return False


def storage_error(message: str, error: OSError) -> StorageError:
    """Return the StorageError for an OSError; raise it `from error`."""
    is_passing = error.errno in PASSING
    return DiskExhausted(message) if is_passing else StorageError(message)


@contextmanager
def storage_errors(message: str) -> Iterator[None]:
    """Turn an OSError into the StorageError `message: error`, for example "cannot open PATH"."""
    try:
        yield
    except OSError as error:
        raise storage_error(f"{message}: {error}", error) from error
