"""The metadata log: a `storage` log whose batches carry metadata records.

It refuses fetched bytes that are not whole, valid, consecutive batches. Control batches (the
LeaderChange at the start of an epoch, changes of the voters) belong to the quorum: a replay skips
them.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final, Self

from quorumlog.metadata_quorum.core.effects import AppendLeaderChange, AppendVoters
from quorumlog.metadata_quorum.core.events import FetchedRecords
from quorumlog.metadata_quorum.core.messages import SnapshotId
from quorumlog.metadata_quorum.core.voter_sets import History, VoterSet
from quorumlog.metadata_quorum.image.records import MetadataRecord, decode_record
from quorumlog.metadata_quorum.log.log_end import LogEndCheckpoint
from quorumlog.metadata_quorum.log.snapshot_files import SnapshotFiles
from quorumlog.metadata_quorum.log.voter_records import (
    check_readable,
    control_key,
    decode_voters,
    encode_voters,
)
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import (
    DamagedLog,
    DiskExhausted,
    StorageError,
    lacks_room,
    storage_error,
)
from quorumlog.storage.io.disk import Disk
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from quorumlog.wire.codec.records import (
    Record,
    decode_batch,
    encode_batch,
    iterate_headers,
    validate_batch,
)

DIRECTORY: Final = "__cluster_metadata-0"
READ_BYTES: Final = 1024 * 1024  # Kafka: controller.quorum.fetch.max.bytes
RECORDS_PER_BATCH_MAX: Final = 10_000
_LEADER_CHANGE_TYPE: Final = 2
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
# Time must not delete a record that no snapshot holds (KAFKA-14238): no retention here.
_SETTINGS: Final = LogSettings()


class MetadataLog:
    """The log of one node. Synchronous; `flush` may run in another thread."""

    fetch_bytes_max = READ_BYTES
    """The size of the records in one response to a follower; at least one batch."""
    chunk_bytes_max = READ_BYTES
    """The size of the part of a snapshot in one response to a follower."""

    def __init__(self, log: Log, checkpoint: LogEndCheckpoint, snapshots: SnapshotFiles) -> None:
        """Use `open`."""
        self.snapshots: Final = snapshots
        self.replayed_bytes = 0  # by `replay`
        self.start: SnapshotId | None = None  # ends at the log's start; None: that is 0
        self._log = log
        self._checkpoint = checkpoint

    @classmethod
    def open(
        cls,
        disk: Disk,
        log_dir: str,
        settings: LogSettings = _SETTINGS,
        *,
        new_log: type[Log] = Log,
    ) -> Self:
        """Open the log, and check every batch, even after a clean stop.

        A torn tail is cut. The log is dropped if a whole snapshot ends behind it, or was being
        installed. Raises StorageError; DamagedLog, and nothing is cut, if the log lacks committed
        records, or records that it had at a clean stop; DiskExhausted: it may be opened again.
        """
        directory = f"{log_dir}/{DIRECTORY}"
        try:
            return cls._open(disk, directory, settings, new_log)
        except OSError as error:
            raise storage_error(f"cannot open the log in {directory}: {error}", error) from error
        except StorageError as error:
            if lacks_room(error):
                raise DiskExhausted(str(error)) from error
            raise

    @classmethod
    def _open(cls, disk: Disk, directory: str, settings: LogSettings, new_log: type[Log]) -> Self:
        disk.mkdir(directory)
        checkpoint = LogEndCheckpoint(disk, directory)
        last = checkpoint.last
        known = 0 if last.installing else max(last.committed, last.closed)
        try:
            log = new_log.open(disk, directory, settings, clean=False, known_end_offset=known)
        except DamagedLog as error:
            raise DamagedLog(
                f"the metadata log is damaged: {error}. Restore the file; or, if other voters hold "
                "the log, move this node's log directory away, and it fetches the log again; or, "
                f"to lose its records for good, delete {checkpoint.path}"
            ) from error
        checkpoint.opened()
        opened = cls(log, checkpoint, SnapshotFiles(disk, directory))
        opened._follow_snapshots(last.installing)
        return opened

    def _follow_snapshots(self, installing: Offset) -> None:
        """Finish an installation; else start the log at the end of a snapshot."""
        ids = self.snapshots.ids()
        for snapshot_id in ids:
            if snapshot_id.end_offset == installing:
                self.finish_install(snapshot_id)
                return
            # As Kafka's truncateToLatestSnapshot does.
            if snapshot_id.end_offset > self.end_offset and self.snapshots.is_whole(snapshot_id):
                self.begin_install(snapshot_id)
                self.finish_install(snapshot_id)
                return
        within = range(self._log.log_start_offset, self.end_offset + 1)
        starts = [one for one in ids if one.end_offset in within]
        if self._log.log_start_offset > 0 and starts:
            self.move_start(starts[-1])
            self.remove_dead_segments()

    @property
    def start_offset(self) -> Offset:
        """The offset of the first record."""
        return self._log.log_start_offset

    @property
    def end_offset(self) -> Offset:
        """The offset of the next record."""
        return self._log.log_end_offset

    @property
    def flushed_offset(self) -> Offset:
        """Records below this offset survive power loss."""
        return self._log.flushed_offset

    @property
    def known_committed(self) -> Offset:
        """All records below this offset are committed, according to the disk."""
        return max(self._checkpoint.last.committed, self.start_offset)

    def epoch_starts(self) -> tuple[tuple[Epoch, Offset], ...]:
        """Return (epoch, first offset), oldest first."""
        return tuple((entry.epoch, entry.start_offset) for entry in self._log.epochs.entries)

    def epoch_before(self, end_offset: Offset) -> Epoch:
        """Return the epoch of the record before `end_offset`; 0 if there is none."""
        if self.start is not None and end_offset == self.start.end_offset:
            return self.start.epoch
        epochs = [epoch for epoch, start in self.epoch_starts() if start < end_offset]
        return epochs[-1] if epochs else Epoch(0)

    def time_before(self, end_offset: Offset) -> int:
        """Return the time of the batch that ends at `end_offset`, in ms since 1970."""
        last = self.read(Offset(end_offset - 1), end_offset)
        return max(header.max_timestamp for _, header in iterate_headers(last))

    def voter_sets(self, snapshot_id: SnapshotId | None) -> History:
        """Return the voter sets in the snapshot of the node's start, and in the log behind it.

        Reads the whole log behind it. Raises StorageError, CorruptBatch.
        """
        found: list[tuple[Offset, VoterSet]] = []
        offset = self.start_offset
        if snapshot_id is not None:
            offset = snapshot_id.end_offset
            voters = self.snapshots.voters(snapshot_id)
            found += [(Offset(offset - 1), voters)] if voters is not None else []
        while offset < self.end_offset:
            batches = self.read(offset, self.end_offset)
            for position, header in iterate_headers(batches):
                offset = Offset(header.next_offset)
                if header.is_control:
                    found += decode_voters(decode_batch(batches, position))
        return tuple(found)

    def starts_epoch(self, fetched: FetchedRecords | None) -> bool:
        """Return whether fetched records start an epoch that is not in the log."""
        latest = self._log.epochs.latest_epoch
        return fetched is not None and fetched.epoch_starts[-1][0] > latest

    def append(self, values: Sequence[bytes], leader_epoch: Epoch, *, wall_ms: int) -> None:
        """Append encoded records as the leader; their time is `wall_ms`.

        They are one batch, unless they are more than RECORDS_PER_BATCH_MAX. Raises DiskExhausted:
        no record is appended; StorageError.
        """
        end_offset = self.end_offset
        try:
            for start in range(0, len(values), RECORDS_PER_BATCH_MAX):
                batch = values[start : start + RECORDS_PER_BATCH_MAX]
                pairs = [(None, value) for value in batch]
                self._append_batch(pairs, leader_epoch, wall_ms=wall_ms)
        except DiskExhausted:
            if self.end_offset > end_offset:  # a decision is in the log as a whole, or not at all
                self._log.truncate_to(end_offset)
            raise

    def append_leader_change(self, effect: AppendLeaderChange, *, wall_ms: int) -> None:
        """Append Kafka's LeaderChange control record."""
        key = control_key(_LEADER_CHANGE_TYPE)
        value = _INT16.pack(0) + _INT32.pack(effect.leader_id)
        value += _voter_array(effect.voters) + _voter_array(effect.granting_voters) + b"\0"
        self._append_batch([(key, value)], effect.leader_epoch, wall_ms=wall_ms, is_control=True)

    def append_voters(self, effect: AppendVoters, *, wall_ms: int) -> None:
        """Append Kafka's Voters control record, behind KRaftVersion if the effect sets that.

        Raises InvariantViolation, before it writes, if the record could not be decoded again.
        """
        pairs = encode_voters(effect.voters, sets_kraft_version=effect.sets_kraft_version)
        check_readable(pairs)
        self._append_batch(pairs, effect.leader_epoch, wall_ms=wall_ms, is_control=True)

    def append_fetched(self, records: bytes) -> None:
        """Append a leader's batches, after `describe` has checked them."""
        self._log.append_as_follower(records)

    def truncate_to(self, end_offset: Offset) -> None:
        """Drop the records at and above `end_offset`."""
        self._log.truncate_to(end_offset)

    def begin_install(self, snapshot_id: SnapshotId) -> None:
        """Record that a snapshot is replacing the log. Raises StorageError."""
        self._checkpoint.begin_install(snapshot_id.end_offset)

    def finish_install(self, snapshot_id: SnapshotId) -> None:
        """Drop the log: it restarts where the snapshot ends. Raises StorageError."""
        self._log.truncate_fully_and_start_at(snapshot_id.end_offset)
        self.start = snapshot_id
        self._checkpoint.finish_install(snapshot_id.end_offset)

    def install_fetched(self, snapshot_id: SnapshotId) -> None:
        """Make the draft of a leader's snapshot the start of the log. Raises StorageError."""
        self.snapshots.install_fetched(snapshot_id)
        self.begin_install(snapshot_id)
        self.finish_install(snapshot_id)

    def move_start(self, start: SnapshotId) -> None:
        """Start the log where a snapshot ends; `remove_dead_segments` frees the space."""
        if start.end_offset < self.start_offset:
            return
        self._log.advance_log_start_offset(start.end_offset)
        self._log.epochs.truncate_from_start(start.end_offset)
        self.start = start

    def remove_dead_segments(self) -> None:
        """Delete the segments that lie wholly below the start. Any thread. Raises StorageError."""
        self._log.remove_dead_segments()

    @property
    def size(self) -> int:
        """The size of the log in bytes. Any thread."""
        return self._log.size

    def flush(self) -> Offset:
        """Make the whole log durable; return its end offset at the start of the flush."""
        return self._log.flush()

    def checkpoint(self, high_watermark: Offset) -> None:
        """Record on the disk how far the log is committed. Any thread. Raises StorageError."""
        self._checkpoint.advance(min(high_watermark, self._log.flushed_offset))

    def close(self) -> None:
        """Close the files. Raises StorageError."""
        is_clean = self._log.failure is None
        self._log.close(clean=is_clean)
        self._checkpoint.close(self._log.log_end_offset if is_clean else None)

    def read(self, offset: Offset, end_offset: Offset, max_bytes: int = READ_BYTES) -> bytes:
        """Return whole batches of [offset, end_offset): at least one, up to `max_bytes`."""
        return bytes(self._log.read(offset, max_bytes=max_bytes, end_offset=end_offset).records)

    def replay(self, offset: Offset, end_offset: Offset) -> Iterator[tuple[Offset, MetadataRecord]]:
        """Yield the records of [offset, end_offset), without control records.

        Raises MalformedRecord, CorruptBatch, StorageError (NewerRecord: of a newer release).
        """
        while offset < end_offset:
            batches = self.read(offset, end_offset)
            self.replayed_bytes += len(batches)
            for position, header in iterate_headers(batches):
                offset = Offset(header.next_offset)
                if header.is_control:
                    continue
                for record in decode_batch(batches, position):
                    yield Offset(record.offset), decode_record(record.value or b"")

    def _append_batch(
        self,
        pairs: Sequence[tuple[bytes | None, bytes]],
        leader_epoch: Epoch,
        *,
        wall_ms: int,
        is_control: bool = False,
    ) -> None:
        records = [
            Record(offset=index, timestamp_ms=wall_ms, key=key, value=value)
            for index, (key, value) in enumerate(pairs)
        ]
        batch = encode_batch(records, leader_epoch=leader_epoch, is_control=is_control)
        self._log.append_as_leader(batch, leader_epoch=leader_epoch, wall_ms=wall_ms)


def describe(records: bytes) -> tuple[bytes, FetchedRecords | None]:
    """Check the bytes from a leader; return the whole batches in them and their description.

    None: there is no whole batch. Raises CorruptBatch.
    """
    starts: list[tuple[Epoch, Offset]] = []
    voter_sets: list[tuple[Offset, VoterSet]] = []
    base = end = size = 0
    for position, header in iterate_headers(records):
        validate_batch(records, position, header)
        if position == 0:
            base = header.base_offset
        elif header.base_offset != end:
            raise CorruptBatch(f"a batch at {header.base_offset}, where {end} was due")
        if not starts or starts[-1][0] != header.leader_epoch:
            starts.append((Epoch(header.leader_epoch), Offset(header.base_offset)))
        if header.is_control:
            voter_sets += decode_voters(decode_batch(records, position))
        end, size = header.next_offset, position + header.size_in_bytes
    if not starts:
        return b"", None
    fetched = FetchedRecords(
        base_offset=Offset(base),
        end_offset=Offset(end),
        epoch_starts=tuple(starts),
        voter_sets=tuple(voter_sets),
    )
    return records[:size], fetched


def _voter_array(voters: Sequence[BrokerId]) -> bytes:
    """Encode a compact array of structs with an id each; fewer than 127 voters."""
    return bytes([len(voters) + 1]) + b"".join(_INT32.pack(voter) + b"\0" for voter in voters)
