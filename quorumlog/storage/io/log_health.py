"""The usability of a log: which errors leave it usable, and which end its use."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from quorumlog.storage.errors import DiskExhausted, StorageError, lacks_room, storage_error


class LogHealth:
    """Health of the log in `directory`. `failure`: why it is unusable; None while it is usable."""

    def __init__(self, directory: str) -> None:
        self.failure: StorageError | None = None
        self._directory: Final = directory

    def require_usable(self) -> None:
        """Raise StorageError if the log is unusable."""
        if self.failure is not None:
            raise StorageError(str(self.failure)) from self.failure

    def fail(self, action: str, error: Exception) -> StorageError:
        """Make the log unusable: the state of its files is unknown; return the error to raise."""
        self.failure = StorageError(f"{self._directory}: cannot {action}: {error}")
        return self.failure

    def end(self) -> None:
        """Make the log unusable: it was closed."""
        self.failure = self.failure or StorageError(f"{self._directory} is closed")

    def refused(self, action: str, error: OSError) -> StorageError:
        """Return the error to raise for an action without effect: the log stays usable."""
        return storage_error(f"{self._directory}: cannot {action}: {error}", error)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn an OSError into a StorageError.

        The log stays usable: a failed read affects neither durability nor other records.
        """
        try:
            yield
        except OSError as error:
            raise self.refused("read", error) from error

    @contextmanager
    def changing(self, action: str, *, repeatable: frozenset[int] = frozenset()) -> Iterator[None]:
        """Turn an OSError into a StorageError, after which the log is unusable.

        `repeatable`: errors after which the action may be repeated, and the log stays usable.
        """
        try:
            yield
        except OSError as error:
            if error.errno in repeatable:
                raise self.refused(action, error) from error
            raise self.fail(action, error) from error

    @contextmanager
    def opening(self) -> Iterator[None]:
        """Do as `changing` does; without room raise DiskExhausted: the log may be opened again."""
        try:
            with self.changing("open"):
                yield
        except StorageError as error:
            if lacks_room(error):
                raise DiskExhausted(str(error)) from error
            raise

    @contextmanager
    def cutting(self) -> Iterator[None]:
        """Do as `changing` does, for a StorageError as well: the cut may be incomplete."""
        try:
            yield
        except (OSError, StorageError) as error:
            raise self.fail("truncate", error) from error
