"""The files of snapshots: `<end offset>-<epoch>.checkpoint`, beside the metadata log (KIP-630).

A file is a run of record batches: a control batch with the header; at kraft.version 1 a control
batch with that version and the voters (KIP-853); the records that rebuild the image; and a control
batch with the footer. So a file that ends early does not pass for a whole snapshot.
A draft is written beside, fsynced and renamed: a crash leaves the whole file, or none.
"""

import re
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from itertools import islice
from typing import Final

from quorumlog.metadata_quorum.core.effects import AnswerFetchSnapshot
from quorumlog.metadata_quorum.core.messages import FetchSnapshotResponse, SnapshotId
from quorumlog.metadata_quorum.core.voter_sets import VoterSet
from quorumlog.metadata_quorum.image.records import (
    MalformedRecord,
    MetadataRecord,
    decode_record,
    encode_record,
)
from quorumlog.metadata_quorum.log.voter_records import (
    VOTER_TYPES,
    control_key,
    control_type,
    decode_voters,
    encode_voters,
)
from quorumlog.storage.errors import StorageError, storage_error, storage_errors
from quorumlog.storage.io.append_handles import DiskFile
from quorumlog.storage.io.disk import Disk, read_file
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.identifiers import Epoch, Offset
from quorumlog.wire.codec.records import (
    HEADER_BYTES,
    Record,
    decode_batch,
    encode_batch,
    iterate_headers,
    read_header,
    validate_batch,
)

KEPT: Final = 2  # the newest, and the one before it, in case that a disk damages the newest
BATCH_RECORDS: Final = 500
_NAME: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_DRAFT: Final = ".part"
_FETCHED: Final = ".fetched"  # a draft that comes from the leader, chunk by chunk
_HEADER_TYPE: Final = 3
_HEADER_BYTES_MAX: Final = 1024  # of the batch with the header
_VOTERS_BYTES_MAX: Final = 256 * 1024  # of the batches with the header and the voters
_FOOTER_TYPE: Final = 4
# Kafka's SnapshotHeaderRecord: version, last contained time; then two tagged fields of our own (tag
# and size before each), which Kafka's readers skip: the end offset and the epoch.
_HEADER: Final = struct.Struct(">hqBBBqBBi")
_FOOTER: Final = struct.Struct(">hB")  # SnapshotFooterRecord: version, no tagged field


class CorruptSnapshot(StorageError):
    """A snapshot is not whole, or its content does not match its name."""


class SnapshotFiles:
    """The snapshots in one directory. `write` may run in a thread, one at a time."""

    def __init__(self, disk: Disk, directory: str) -> None:
        """Remove the drafts that a crash has left. Raises OSError."""
        self._disk: Final = disk
        self._directory: Final = directory
        self._fetched_from: set[SnapshotId] = set()  # since the last write
        for name in disk.listdir(directory):
            if ".checkpoint" in name and name.endswith(_DRAFT):
                disk.unlink(f"{directory}/{name}")

    def path(self, snapshot_id: SnapshotId) -> str:
        """Return the path of the snapshot."""
        return f"{self._directory}/{snapshot_id.file_name}"

    def ids(self) -> list[SnapshotId]:
        """Return the ids of the snapshots in the directory, newest first; of damaged ones, too."""
        found = map(_NAME.fullmatch, self._disk.listdir(self._directory))
        ids = [SnapshotId(Offset(int(m[1])), Epoch(int(m[2]))) for m in found if m is not None]
        return sorted(ids, reverse=True)

    def write(
        self,
        snapshot_id: SnapshotId,
        records: Iterable[MetadataRecord],
        *,
        last_time_ms: int,
        voters: VoterSet | None = None,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Write the snapshot durably, then remove older ones, except `KEPT` and those in use.

        `last_time_ms`: the time of the last record in it. `voters`: the set in force at its end;
        None: kraft.version is 0 there. Returns False if `goes_on` has returned False: there is no
        snapshot then. Raises StorageError: then the draft is removed, if the disk permits it.
        """
        path = self.path(snapshot_id)
        draft = path + _DRAFT
        try:
            with closing(self._disk.open(draft, create=True)) as file:
                file.truncate(0)
                draft_batches = _Draft(file, snapshot_id.epoch, last_time_ms)
                is_whole = _fill(draft_batches, snapshot_id, records, voters, goes_on)
                if is_whole:
                    file.fsync()
            if not is_whole:
                self._disk.unlink(draft)
                return False
            self._disk.rename(draft, path)
            self._disk.fsync_dir(self._directory)
            self._remove_old()
        except OSError as error:
            with suppress(OSError):  # otherwise drafts would fill a full disk further
                self._disk.unlink(draft)
            raise storage_error(f"cannot write {path}: {error}", error) from error
        return True

    def read(
        self, snapshot_id: SnapshotId, *, is_fetched_draft: bool = False
    ) -> Iterator[MetadataRecord]:
        """Yield the records of a snapshot, or of its draft, after a check of the whole file.

        Raises CorruptSnapshot, which names the file; StorageError, of which NewerRecord is a
        subclass.
        """
        path = self._fetched_draft(snapshot_id) if is_fetched_draft else self.path(snapshot_id)
        try:
            content = read_file(self._disk, path)
            _check(content, snapshot_id)
            for position, header in iterate_headers(content):
                if not header.is_control:
                    for record in decode_batch(content, position):
                        yield decode_record(record.value or b"")
        except OSError as error:
            raise storage_error(f"cannot read {path}: {error}", error) from error
        except (CorruptBatch, MalformedRecord) as error:
            raise CorruptSnapshot(f"the snapshot {path} is damaged: {error}") from error

    def voters(self, snapshot_id: SnapshotId, *, is_fetched_draft: bool = False) -> VoterSet | None:
        """Return the voters in a checked snapshot, or in its draft; None: kraft.version is 0.

        Raises CorruptSnapshot, StorageError.
        """
        path = self._fetched_draft(snapshot_id) if is_fetched_draft else self.path(snapshot_id)
        found = self._read_path(path, 0, _VOTERS_BYTES_MAX)
        try:
            return _voters_in(found[1] if found else b"")
        except CorruptBatch as error:
            raise CorruptSnapshot(f"the snapshot {path} is damaged: {error}") from error

    def last_time_ms(self, snapshot_id: SnapshotId) -> int:
        """Return the time of the last record in a snapshot; 0 if it cannot be read."""
        found = self._read_bytes(snapshot_id, 0, _HEADER_BYTES_MAX)
        try:
            return next((h.max_timestamp for _, h in iterate_headers(found[1])), 0) if found else 0
        except CorruptBatch:
            return 0

    def is_whole(self, snapshot_id: SnapshotId) -> bool:
        """Return whether a whole snapshot can be read. Raises StorageError."""
        try:
            for _ in self.read(snapshot_id):
                pass
        except CorruptSnapshot:
            return False
        return True

    def _remove_old(self) -> None:
        """Remove all but the newest `KEPT`, and those fetched by a follower since the last call.

        Otherwise a download that is slower than the writes would never end.
        """
        fetched, self._fetched_from = self._fetched_from, set()
        for old in self.ids()[KEPT:]:
            if old not in fetched:
                self._disk.unlink(self.path(old))

    # --- between nodes ---

    def read_bytes(
        self, snapshot_id: SnapshotId, position: int, max_bytes: int
    ) -> tuple[int, bytes] | None:
        """Return the size of the file, and bytes of it from `position` on; None: no such file.

        There are no bytes at and behind the end. For a follower: the next `write` keeps the file.
        Raises StorageError.
        """
        found = self._read_bytes(snapshot_id, position, max_bytes)
        if found is not None:
            self._fetched_from.add(snapshot_id)
        return found

    def _read_bytes(
        self, snapshot_id: SnapshotId, position: int, max_bytes: int
    ) -> tuple[int, bytes] | None:
        return self._read_path(self.path(snapshot_id), position, max_bytes)

    def _read_path(self, path: str, position: int, max_bytes: int) -> tuple[int, bytes] | None:
        try:
            if not self._disk.exists(path):
                return None
            with closing(self._disk.open_to_read(path)) as file:
                size = self._disk.size(path)
                count = min(max_bytes, max(size - position, 0))
                return size, bytes(file.pread(count, position)) if count else b""
        except FileNotFoundError:
            return None  # removed meanwhile
        except OSError as error:
            raise storage_error(f"cannot read {path}: {error}", error) from error

    def append_fetched(self, snapshot_id: SnapshotId, position: int, content: bytes) -> None:
        """Append to the draft of a leader's snapshot; position 0 begins a new one.

        Raises StorageError.
        """
        path = self._fetched_draft(snapshot_id)
        with storage_errors(f"cannot write {path}"):
            if position == 0:
                self._remove_drafts()
            with closing(self._disk.open(path, create=True)) as file:
                file.truncate(position)
                file.append([content])

    def install_fetched(self, snapshot_id: SnapshotId) -> None:
        """Make the draft of a leader's snapshot durable, and a snapshot. Raises StorageError.

        After DiskExhausted the call may be repeated.
        """
        draft, path = self._fetched_draft(snapshot_id), self.path(snapshot_id)
        with storage_errors(f"cannot write {path}"):
            if self._disk.exists(draft) or not self._disk.exists(path):
                with closing(self._disk.open(draft)) as file:
                    file.fsync()
                self._disk.rename(draft, path)
            self._disk.fsync_dir(self._directory)

    def _fetched_draft(self, snapshot_id: SnapshotId) -> str:
        return f"{self.path(snapshot_id)}{_FETCHED}{_DRAFT}"

    def _remove_drafts(self) -> None:
        for name in self._disk.listdir(self._directory):
            if name.endswith(f"{_FETCHED}{_DRAFT}"):
                self._disk.unlink(f"{self._directory}/{name}")


class _Draft:
    """The batches of a file that is being written; the offset counts its records."""

    def __init__(self, file: DiskFile, epoch: Epoch, time_ms: int) -> None:
        self.time_ms: Final = time_ms
        self._file: Final = file
        self._epoch: Final = epoch
        self._offset = 0

    def append(self, pairs: list[tuple[bytes | None, bytes]], *, is_control: bool) -> None:
        """Append one batch of records: key and value of each. Raises OSError."""
        batch = [
            Record(offset=self._offset + index, timestamp_ms=self.time_ms, key=key, value=value)
            for index, (key, value) in enumerate(pairs)
        ]
        content = encode_batch(
            batch, base_offset=self._offset, leader_epoch=self._epoch, is_control=is_control
        )
        self._file.append([content])
        self._offset += len(pairs)


def _fill(
    draft: _Draft,
    snapshot_id: SnapshotId,
    records: Iterable[MetadataRecord],
    voters: VoterSet | None,
    goes_on: Callable[[], bool],
) -> bool:
    header = _header(snapshot_id, draft.time_ms)
    draft.append([(control_key(_HEADER_TYPE), header)], is_control=True)
    if voters is not None:
        draft.append(encode_voters(voters, sets_kraft_version=True), is_control=True)
    rest = iter(records)
    while some_records := [*islice(rest, BATCH_RECORDS)]:
        if not goes_on():
            return False
        draft.append([(None, encode_record(record)) for record in some_records], is_control=False)
    draft.append([(control_key(_FOOTER_TYPE), _FOOTER.pack(0, 0))], is_control=True)
    return True


def _check(content: bytes, snapshot_id: SnapshotId) -> None:
    """Check each batch, their order, the header, the voters and the footer. Raises CorruptBatch."""
    end = size = 0
    controls: list[Record] = []
    for position, header in iterate_headers(content):
        validate_batch(content, position, header)
        if (header.base_offset, header.leader_epoch) != (end, snapshot_id.epoch):
            raise CorruptBatch(
                f"a batch at {header.base_offset} of epoch {header.leader_epoch}, where one "
                f"at {end} of epoch {snapshot_id.epoch} was due"
            )
        if header.is_control:
            controls += _controls(decode_batch(content, position))
        end, size = header.next_offset, position + header.size_in_bytes
    kinds = [(record.offset, control_type(record)) for record in controls]
    voters = [(at, kind) for at, kind in enumerate(VOTER_TYPES, start=1)]
    ends = [(0, _HEADER_TYPE), (end - 1, _FOOTER_TYPE)]
    if size != len(content) or kinds not in (ends, [ends[0], *voters, ends[1]]):
        raise CorruptBatch("the header or the footer is missing")
    decode_voters(controls)
    value = controls[0].value or b""
    if len(value) != _HEADER.size or value != _header(snapshot_id, _HEADER.unpack(value)[1]):
        raise CorruptBatch("the header does not match the file name")


def _voters_in(content: bytes) -> VoterSet | None:
    """Return the voters in the first bytes of a snapshot. Raises CorruptBatch.

    It also raises if the bytes end inside a control batch, which may contain the voters: without
    them, the node would use the configured voters.
    """
    end = 0
    for position, header in iterate_headers(content):
        if not header.is_control:
            return None
        voter_sets = decode_voters(decode_batch(content, position))
        if voter_sets:
            return voter_sets[-1][1]
        end = position + header.size_in_bytes
    left = len(content) - end
    if left and (left < HEADER_BYTES or read_header(content, end).is_control):
        raise CorruptBatch(f"a control batch at {end} goes on behind {len(content)} bytes")
    return None


def _controls(records: list[Record]) -> list[Record]:
    """Return the records of a control batch: one, or kraft.version and voters."""
    kinds = tuple(control_type(record) for record in records)
    if len(kinds) != 1 and kinds != VOTER_TYPES:
        raise CorruptBatch(f"a control batch of {len(records)} records")
    return records


def _header(snapshot_id: SnapshotId, last_time_ms: int) -> bytes:
    return _HEADER.pack(0, last_time_ms, 2, 0, 8, snapshot_id.end_offset, 1, 4, snapshot_id.epoch)


def snapshot_answer(
    effect: AnswerFetchSnapshot, found: tuple[int, bytes] | None
) -> tuple[FetchSnapshotResponse, bytes | None]:
    """Return the response to a follower. `found`: the snapshot's size, and bytes of it."""
    said = effect.response
    if found is None:
        return replace(said, error_code=ErrorCode.SNAPSHOT_NOT_FOUND), None
    size, content = found
    if effect.position > size:
        return replace(said, error_code=ErrorCode.POSITION_OUT_OF_RANGE), None
    return replace(said, size=size, position=effect.position), content
