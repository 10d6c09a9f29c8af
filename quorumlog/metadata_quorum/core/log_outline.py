"""The metadata log in outline: its offsets, its leader epochs and its voter sets."""

from collections.abc import Iterable
from itertools import pairwise

from quorumlog.invariants import require
from quorumlog.metadata_quorum.core.events import FetchedRecords
from quorumlog.metadata_quorum.core.messages import SnapshotId
from quorumlog.metadata_quorum.core.voter_sets import History, VoterSet, VoterSets
from quorumlog.storage.core.leader_epochs import EpochEntry, LeaderEpochs
from quorumlog.wire.codec.identifiers import Epoch, Offset


class LogOutline:
    """The log of one node, without its bytes. The three ends are exclusive offsets.

    Only records below `flushed_offset` survive power loss; only records below `high_watermark` are
    certainly committed. Below `start_offset` there are no records: a snapshot contains them.
    """

    def __init__(self) -> None:
        self.end_offset = self.flushed_offset = self.high_watermark = Offset(0)
        self.start_offset = Offset(0)
        self.start_epoch = Epoch(0)  # of the record before the start
        self.snapshot: SnapshotId | None = None  # the newest
        self.epochs = LeaderEpochs()
        self.voter_sets = VoterSets()
        self.is_flushing = False  # from `FlushLog` to `LogFlushed`
        self.is_checking = False  # from `CheckSnapshot` to `SnapshotChecked`

    @property
    def last_epoch(self) -> Epoch:
        """The epoch of the last record; 0 if there is none."""
        return Epoch(max(self.epochs.latest_epoch, self.start_epoch, 0))

    @property
    def known_committed(self) -> Offset:
        """The end of the certainly committed records: the high watermark, or a snapshot's end."""
        return max(self.high_watermark, self.snapshot.end_offset if self.snapshot else Offset(0))

    @property
    def is_durable(self) -> bool:
        """Whether the whole log survives power loss."""
        return self.flushed_offset == self.end_offset

    def epoch_end(self, epoch: Epoch) -> tuple[Epoch, Offset]:
        """Find the largest epoch of the log that is <= `epoch`, and its (exclusive) end.

        If `epoch` is older than all of them: the epoch before the log's start, which ends there. In
        a log that starts at 0 it is 0; otherwise a snapshot contains the records in question.
        """
        entries = self.epochs.entries
        if not entries or epoch < entries[0].epoch or self.end_offset == self.start_offset:
            return self.start_epoch, self.start_offset
        found = self.epochs.end_offset_for(min(epoch, self.last_epoch), self.end_offset)
        return found.epoch, found.end_offset

    def open(
        self,
        end_offset: Offset,
        flushed_offset: Offset,
        epoch_starts: Iterable[tuple[Epoch, Offset]],
        *,
        start: SnapshotId | None = None,
        snapshot: SnapshotId | None = None,
        voter_sets: History = (),
    ) -> None:
        """Load the log's state from the disk."""
        self.snapshot = snapshot
        self.voter_sets.append(voter_sets)
        if start is not None:
            self.start_offset, self.start_epoch = start.end_offset, start.epoch
        self.epochs = LeaderEpochs(tuple(EpochEntry(*start) for start in epoch_starts))
        self.end_offset, self.flushed_offset = end_offset, min(flushed_offset, end_offset)

    def is_continued_by(self, records: FetchedRecords, leader_epoch: Epoch) -> bool:
        """Whether records start at our end, in epochs that rise to the leader's (KAFKA-18723)."""
        starts = records.epoch_starts
        if records.base_offset != self.end_offset or not starts:
            return False
        end = (Epoch(leader_epoch + 1), records.end_offset)
        is_rising = all(
            earlier[0] < later[0] and earlier[1] < later[1]
            for earlier, later in pairwise([*starts, end])
        )
        first_epoch, first_offset = starts[0]
        return (
            is_rising
            and _has_voters_within(records)
            and first_offset == records.base_offset
            and first_epoch >= max(self.last_epoch, 1)
        )

    def append(
        self,
        end_offset: Offset,
        epoch_starts: Iterable[tuple[Epoch, Offset]] = (),
        voter_sets: History = (),
    ) -> None:
        """Make the log end at `end_offset`.

        The new records start these epochs, and contain these voter sets; oldest first.
        """
        require(end_offset > self.end_offset, "an append makes the log longer")
        for epoch, start_offset in epoch_starts:
            if epoch > self.epochs.latest_epoch:
                self.epochs = self.epochs.assigned(epoch, start_offset)
        self.voter_sets.append(voter_sets)
        self.end_offset = end_offset

    def note_snapshot(self, snapshot: SnapshotId) -> None:
        """Record the id of a snapshot of committed records."""
        require(snapshot.end_offset <= self.high_watermark, "12: a snapshot is committed")
        if self.snapshot is None or snapshot > self.snapshot:
            self.snapshot = snapshot

    def move_start(self, start: SnapshotId) -> None:
        """Start the log at the end of a snapshot: the records below are deleted."""
        is_held = self.snapshot is not None and start <= self.snapshot
        require(is_held, "12: a snapshot covers the records below the log's start")
        if start.end_offset > self.start_offset:
            self.start_offset, self.start_epoch = start.end_offset, start.epoch
            self.epochs = self.epochs.truncated_from_start(start.end_offset)
            self.voter_sets.move_start(start.end_offset)

    def install(self, snapshot: SnapshotId, voters: VoterSet | None) -> None:
        """Drop all records; the next record gets the snapshot's end offset.

        `voters`: the set in force there; None: kraft.version is 0.
        """
        require(not self.is_flushing, "10: no truncation during a flush")
        self.snapshot, self.epochs = snapshot, LeaderEpochs()
        self.voter_sets.install(snapshot.end_offset, voters)
        self.start_offset = self.end_offset = self.flushed_offset = snapshot.end_offset
        self.start_epoch = snapshot.epoch

    def truncate(self, end_offset: Offset) -> None:
        """Drop the records at and above `end_offset`."""
        require(not self.is_flushing, "10: no truncation during a flush")
        self.epochs = self.epochs.truncated_from_end(end_offset)
        self.voter_sets.truncate(end_offset)
        self.end_offset = end_offset
        self.flushed_offset = min(self.flushed_offset, end_offset)

    def flushed(self, flushed_offset: Offset) -> None:
        """Record the end of a flush: all records below `flushed_offset` are durable."""
        require(self.is_flushing, "a flush was ordered")
        require(flushed_offset <= self.end_offset, "the flushed records were in the log")
        self.is_flushing = False
        self.flushed_offset = max(self.flushed_offset, flushed_offset)


def _has_voters_within(records: FetchedRecords) -> bool:
    offsets = [records.base_offset - 1, *(offset for offset, _ in records.voter_sets)]
    is_rising = all(earlier < later for earlier, later in pairwise(offsets))
    return is_rising and offsets[-1] < records.end_offset
