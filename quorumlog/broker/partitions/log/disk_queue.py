"""Disk work that the event loop does not wait for: in order for each key.

The loop appends to logs, and reads from the page cache. All work that may wait for the device goes
through a queue: fsyncs, opening logs, recovery, truncation, renames, deletion, checkpoints, and
reads that bring records into the page cache.
"""

from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar

from quorumlog.storage.errors import StorageError, storage_error

T = TypeVar("T")


class DiskQueue(Protocol):
    """A queue of work on log directories."""

    def submit(
        self, key: Hashable, work: Callable[[], T], done: Callable[[T | StorageError], None]
    ) -> None:
        """Do `work` after all earlier work for `key`; then pass its outcome to `done`.

        `done` runs where `submit` was called, before the next work of this key begins. It receives
        the result of `work`, or the StorageError that it raised.
        """


def outcome_of(work: Callable[[], T]) -> T | StorageError:
    """Return the result of `work`, or its storage error."""
    try:
        return work()
    except StorageError as error:
        return error
    except OSError as error:
        return storage_error(str(error), error)
