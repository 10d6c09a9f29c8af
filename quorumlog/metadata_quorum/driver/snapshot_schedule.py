"""When a node writes a snapshot of the committed metadata, and which records it then deletes.

A snapshot is due after a number of bytes, or a time. The image is frozen, so a thread writes it
while the node continues. A snapshot that cannot be written (a full disk) is not needed at once: the
records stay. The node tries again when the next one is due. If the log is large or old, it then
starts where the oldest kept snapshot ends: with the newest snapshot damaged, the node still starts.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from quorumlog.metadata_quorum.core import events
from quorumlog.metadata_quorum.core.messages import SnapshotId
from quorumlog.metadata_quorum.core.voter_sets import VoterSet
from quorumlog.metadata_quorum.driver.committed_image import CommittedImage
from quorumlog.metadata_quorum.driver.dependencies import (
    Deadline,
    DriverDependencies,
    Fact,
    TurnDue,
)
from quorumlog.metadata_quorum.image.snapshot_records import records_of
from quorumlog.metadata_quorum.log.metadata_log import MetadataLog
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.identifiers import Offset

_FLUSH_WAIT_MS: Final = 1000  # until committed records are durable on this voter, too
_logger: Final = logging.getLogger(__name__)


class _Outcome(NamedTuple):
    """The result of the thread: whether there is a snapshot, and the new start of the log."""

    is_written: bool = False
    new_start: SnapshotId | None = None


class SnapshotSchedule:
    """Writes one snapshot at a time, of records that are committed, and durable in this node's log.

    It begins a snapshot within a turn of the driver only: a write in progress may replace the log.
    """

    def __init__(
        self,
        *,
        log: MetadataLog,
        committed: CommittedImage,
        settings: ControllerSettings,
        dependencies: DriverDependencies,
        feed: Callable[[Fact], None],
        flushes_log: Callable[[], bool],
        voters_at: Callable[[Offset], VoterSet | None],
    ) -> None:
        """`feed` hands the driver a fact. `flushes_log` returns whether the driver flushes the log.

        `voters_at` returns the voters for a snapshot that ends at an offset.
        """
        self._log: Final = log
        self._committed: Final = committed
        self._bytes_max: Final = settings.metadata_log_max_record_bytes_between_snapshots
        self._retention_bytes: Final = settings.metadata_max_retention_bytes
        self._retention_ms: Final = settings.metadata_max_retention_ms
        self._interval_ms: Final = settings.metadata_log_max_snapshot_interval_ms
        self._dependencies: Final = dependencies
        self._feed: Final = feed
        self._flushes_log: Final = flushes_log
        self._voters_at: Final = voters_at
        self._age: Final = Deadline(
            dependencies.clock, lambda _: self._feed(TurnDue(self._maybe_begin))
        )
        self._bytes_before = 0  # replayed when the last snapshot began
        self._is_writing = self._has_ended = False

    def note_commit(self) -> None:
        """Begin a snapshot if enough was committed since the last one; else set its deadline.

        Only within a turn.
        """
        if self._log.replayed_bytes == self._bytes_before or self._committed.is_behind:
            return
        if self._log.replayed_bytes - self._bytes_before >= self._bytes_max:
            self._maybe_begin()
        elif not self._age.is_set and self._interval_ms:
            self._age.set(self._dependencies.clock.now_ms() + self._interval_ms)

    def stop(self) -> None:
        """Begin no more snapshots; a write in progress ends soon, without a snapshot."""
        self._has_ended = True
        self._age.set(None)

    def _maybe_begin(self) -> None:
        if self._is_writing or self._has_ended:
            return
        image = self._committed.image
        if image.end_offset <= self._log.start_offset:
            return  # a snapshot of this image exists
        flushes_log = self._flushes_log()
        if flushes_log and image.end_offset > self._log.flushed_offset:
            self._age.set(self._dependencies.clock.now_ms() + _FLUSH_WAIT_MS)
            return
        snapshot_id = SnapshotId(image.end_offset, self._log.epoch_before(image.end_offset))
        write = partial(
            self._log.snapshots.write,
            snapshot_id,
            records_of(image),
            last_time_ms=self._log.time_before(image.end_offset),
            voters=self._voters_at(image.end_offset),
            goes_on=lambda: not self._has_ended,
        )
        wall_ms = self._dependencies.clock.wall_ms()
        work = partial(self._tried, write, image.end_offset, wall_ms, flushes_log=flushes_log)
        self._age.set(None)
        self._bytes_before = self._log.replayed_bytes
        self._is_writing = True
        self._dependencies.executor.run(work, partial(self._written, snapshot_id))

    def _tried(
        self, write: Callable[[], bool], end_offset: Offset, wall_ms: int, *, flushes_log: bool
    ) -> _Outcome:
        """Write the snapshot, and find the new start of the log. Any thread.

        The durable end of the log comes first: a damaged log must not be cut below a snapshot.
        """
        try:
            if not flushes_log:
                self._log.flush()
            self._log.checkpoint(end_offset)
            is_written = write()
            return _Outcome(is_written, self._new_start(wall_ms) if is_written else None)
        except StorageError as error:
            _logger.warning("no snapshot of the metadata: %s", error)
            return _Outcome()

    def _written(self, snapshot_id: SnapshotId, outcome: _Outcome) -> None:
        self._is_writing = False
        if self._has_ended:
            return
        if outcome.is_written:
            self._feed(events.SnapshotWritten(snapshot_id=snapshot_id))
        if outcome.new_start is not None:
            self._feed(events.LogStartMoved(log_start=outcome.new_start))
        self._feed(TurnDue(self.note_commit))  # for commits meanwhile

    # --- deletion of old records ---

    def _new_start(self, wall_ms: int) -> SnapshotId | None:
        """Return the new start of the log; None: it stays. Any thread."""
        oldest = self._log.snapshots.ids()[-1]
        if oldest.end_offset <= self._log.start_offset:
            return None
        age_ms = wall_ms - self._log.snapshots.last_time_ms(oldest)
        is_large = self._log.size > self._retention_bytes >= 0
        is_old = age_ms > self._retention_ms >= 0
        return oldest if is_large or is_old else None

    def move_start(self, start: SnapshotId) -> None:
        """Move the log's start; a thread deletes the segments that lie wholly below."""
        self._log.move_start(start)
        self._dependencies.executor.run(self._log.remove_dead_segments, lambda _: None)
