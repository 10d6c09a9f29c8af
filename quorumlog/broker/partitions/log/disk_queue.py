"""Work on the disk that the event loop does not wait for: in order for each key.

The loop appends to logs and reads the newest records itself, because the page cache takes these.
Everything that may wait for the device goes through a queue: fsyncs, opening logs, recovery,
truncation, renames, deletion and checkpoints.
"""

from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar

from quorumlog.storage.errors import StorageError, storage_error

T = TypeVar("T")


class DiskQueue(Protocol):
    """The work on one log directory."""

    def submit(
        self, key: Hashable, work: Callable[[], T], done: Callable[[T | StorageError], None]
    ) -> None:
        """Do `work` after all that was submitted for `key` before; then tell `done` its result.

        `done` runs where `submit` was called, before the next work of this key begins. It gets
        what `work` returned, or the StorageError that it raised.
        """


def outcome_of(work: Callable[[], T]) -> T | StorageError:
    """Return the result of `work`, or why the disk refused it."""
    try:
        return work()
    except StorageError as error:
        return error
    except OSError as error:
        return storage_error(str(error), error)
