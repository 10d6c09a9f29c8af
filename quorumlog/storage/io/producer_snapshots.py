"""The producer snapshots beside a log's segments: so that a start need not read every batch.

Source: Kafka's `ProducerStateManager`.
"""

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from quorumlog.storage.core.aborted_transactions import NONE_ABORTED
from quorumlog.storage.core.producer_snapshot import (
    CorruptSnapshot,
    SnapshotEntry,
    decode_snapshot,
    encode_snapshot,
)
from quorumlog.storage.io.disk import Disk, read_file, write_file_durably

SUFFIX: Final = ".snapshot"

_logger: Final = logging.getLogger(__name__)


class ProducerSnapshot(NamedTuple):
    """The state of the producers when the log ended at `offset` (exclusive).

    `newest_aborted`: offset of the newest abort marker below; the log fills it in.
    """

    offset: int
    entries: Sequence[SnapshotEntry]
    newest_aborted: int = NONE_ABORTED


class ProducerSnapshots:
    """The snapshots of one log.

    Invariant: every snapshot covers records that are still in the log, or ends where the log
    starts. So snapshots are removed, durably, before records are cut.

    All methods raise OSError. One thread at a time.
    """

    def __init__(self, disk: Disk, directory: str, offsets: Iterable[int]) -> None:
        """`offsets`: of the existing files."""
        self._disk: Final = disk
        self._directory: Final = directory
        self._offsets = sorted(offsets)

    @property
    def is_empty(self) -> bool:
        """Whether there is no snapshot; without access to the disk."""
        return not self._offsets

    @property
    def offsets(self) -> Sequence[int]:
        """The end offsets of the snapshots, oldest first."""
        return tuple(self._offsets)

    def write(self, snapshot: ProducerSnapshot) -> None:
        """Add a snapshot, durably; the log may have grown since, but not been cut."""
        content = encode_snapshot(snapshot.entries, snapshot.newest_aborted)
        write_file_durably(self._disk, self._path(snapshot.offset), content)
        if snapshot.offset not in self._offsets:
            self._offsets = sorted([*self._offsets, snapshot.offset])

    def newest(self, at_most: int) -> ProducerSnapshot | None:
        """Read the newest whole snapshot not above an offset; remove damaged snapshots."""
        for offset in reversed([known for known in self._offsets if known <= at_most]):
            snapshot = self.at(offset)
            if snapshot is not None:
                return snapshot
            self._drop([offset])
        return None

    def at(self, offset: int) -> ProducerSnapshot | None:
        """Read the snapshot of this offset; None: it is missing or damaged."""
        if offset not in self._offsets:
            return None
        try:
            return ProducerSnapshot(
                offset, *decode_snapshot(read_file(self._disk, self._path(offset)))
            )
        except CorruptSnapshot as error:
            _logger.warning("%s is left out: %s", self._path(offset), error)
            return None

    def drop_above(self, offset: int) -> None:
        """Remove snapshots above `offset`, durably, before the log is cut there."""
        if self._drop([known for known in self._offsets if known > offset]):
            self._disk.fsync_dir(self._directory)

    def drop_below(self, offset: int) -> None:
        """Remove snapshots below `offset`, of removed segments; a crash may bring them back."""
        self._drop([known for known in self._offsets if known < offset])

    def keep_needed(self, base_offsets: Iterable[int], end_offset: int) -> None:
        """Keep only the snapshots at base offsets of segments, and the newest.

        First remove, durably, the snapshots above the log's end, after a crash.
        """
        self.drop_above(end_offset)
        needed = {*base_offsets, *self._offsets[-1:]}
        self._drop([known for known in self._offsets if known not in needed])

    def _drop(self, offsets: Sequence[int]) -> bool:
        for offset in offsets:
            with suppress(FileNotFoundError):
                self._disk.unlink(self._path(offset))
            self._offsets = [known for known in self._offsets if known != offset]
        return bool(offsets)

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{offset:020d}{SUFFIX}"
