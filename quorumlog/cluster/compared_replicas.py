"""The replicas of a stopped cluster: committed records must be equal on all of its nodes.

A log that is not compacted must have the same bytes in every replica, from the latest log start to
the smallest high watermark. Each replica cleans a compacted log by itself: all must have the same
newest record of each key. If their high watermarks differ, one replica may have removed records
that another must still have, so such logs are not compared. The metadata log must have the same
bytes up to the smallest end. A replica without a high watermark, or with high watermark 0 beside
replicas with records, cannot be compared. Replicas of one name with other topic ids are of another
topic.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.checkpoints import (
    CLEANED_FILE,
    LOG_START_FILE,
    REPLICATION_FILE,
    read_offset_checkpoint,
)
from quorumlog.storage.io.disk import RealDisk
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.identifiers import Offset, TopicPartition
from quorumlog.wire.codec.records import decode_batch, iterate_headers
from quorumlog.wire.codec.topic_names import METADATA_TOPIC

_TOPIC_ID_FILE = "partition.metadata"


class Outcome(NamedTuple):
    """The result of a comparison.

    how: the difference, or why the replicas are not compared; "": they are equal. same: the number
    of equal batches or keys. offset: where committed records differ; None: nowhere. nodes: those
    that differ from the first node.
    """

    how: str = ""
    same: int = 0
    is_compared: bool = True
    offset: int | None = None
    nodes: tuple[int, ...] = ()


class Replica(NamedTuple):
    """The log of a partition on one node; high_watermark: None without one."""

    directory: Path
    log_start_offset: int
    high_watermark: int | None
    is_cleaned: bool

    @property
    def node_id(self) -> int:
        """The node: its directory is `node-<id>/data`."""
        return int(self.directory.parent.parent.name.removeprefix("node-"))

    def batches(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield (base offset, bytes) of the whole batches in [start, end)."""
        for path in sorted(self.directory.glob("*.log")):
            content = path.read_bytes()
            for position, header in iterate_headers(content):
                if header.base_offset >= start and header.next_offset <= end:
                    yield header.base_offset, content[position : position + header.size_in_bytes]

    def seems_cleaned(self, start: int, end: int) -> bool:
        """Return whether it has holes, and only records with keys.

        A kill after a pass of the cleaner leaves no trace of it in the checkpoint.
        """
        expected, has_holes = start, False
        for base_offset, batch in self.batches(start, end):
            has_holes = has_holes or base_offset > expected
            for record in decode_batch(batch):
                if record.key is None:
                    return False
                expected = record.offset + 1
        return has_holes

    def end_offset(self) -> int:
        """Return the log end offset."""
        end = 0
        for path in sorted(self.directory.glob("*.log")):
            end = max(end, int(path.stem))
            for _, header in iterate_headers(path.read_bytes()):
                end = max(end, header.next_offset)
        return end

    def newest(self, end: int) -> Mapping[bytes | None, tuple[int, bytes | None]]:
        """Return the newest record of each key below `end`, without tombstones."""
        found: dict[bytes | None, tuple[int, bytes | None]] = {}
        for _, batch in self.batches(0, end):
            for record in decode_batch(batch):
                found[record.key] = record.offset, record.value
        return {key: newest for key, newest in found.items() if newest[1] is not None}


def replicas_of(directory: Path) -> Mapping[str, Sequence[Replica]]:
    """Return the replicas of each partition of at least two replicas, by the partition's name.

    directory: of a cluster, or of a run. Raises OSError, StorageError.
    """
    found = defaultdict[tuple[str, bytes], list[Replica]](list)
    for data in sorted(directory.glob("**/node-*/data")):
        starts, marks, cleaned = (
            read_offset_checkpoint(RealDisk(), str(data), name)
            for name in (LOG_START_FILE, REPLICATION_FILE, CLEANED_FILE)
        )
        for log in sorted(data.iterdir()):
            topic, dash, index = log.name.rpartition("-")
            if not (log.is_dir() and dash and index.isdecimal()):
                continue
            at = TopicPartition(topic, int(index))
            start = starts.get(at, Offset(0))
            first = min((int(one.stem) for one in log.glob("*.log")), default=0)
            replica = Replica(log, max(first, start), marks.get(at), at in cleaned)
            topic_id = log / _TOPIC_ID_FILE
            found[log.name, topic_id.read_bytes() if topic_id.exists() else b""].append(replica)
    return {name: replicas for (name, _), replicas in sorted(found.items()) if len(replicas) > 1}


def difference(name: str, replicas: Sequence[Replica], metadata_end: int | None = None) -> Outcome:
    """Compare the replicas of a partition. `metadata_end`: see compare.

    Raises OSError, CorruptBatch.
    """
    log_ends = [replica.end_offset() for replica in replicas]
    marks = [replica.high_watermark for replica in replicas]
    ends = log_ends if name.startswith(METADATA_TOPIC) else [mark or 0 for mark in marks]
    start, end = max(replica.log_start_offset for replica in replicas), min(ends)
    if any(log_ends) and ends is not log_ends and None in marks:
        return Outcome("nothing compared: a replica has no high watermark")
    if any(log_ends) and end == 0:
        return Outcome("nothing compared: a replica ends at 0, and another has records")
    if ends is log_ends and metadata_end is not None:
        end = min(end, metadata_end)
    if any(replica.is_cleaned for replica in replicas):
        return _newest_difference(replicas, ends)
    logs = [
        {at: blake2b(batch).digest() for at, batch in replica.batches(start, end)}
        for replica in replicas
    ]
    for offset in sorted(set().union(*logs)):
        if others := _others(replicas, [log.get(offset) for log in logs]):
            if any(replica.seems_cleaned(start, end) for replica in replicas):
                return _newest_difference(replicas, ends)
            how = f"the batch at {offset} of [{start}, {end}) differs"
            return Outcome(how, offset=offset, nodes=others)
    return Outcome(same=len(logs[0]))


def _newest_difference(replicas: Sequence[Replica], ends: Sequence[int]) -> Outcome:
    """Compare the newest record of each key of cleaned logs, if all end at the same offset."""
    if len({*ends}) > 1:
        return Outcome(f"cleaned, with the high watermarks {[*ends]}", is_compared=False)
    end = ends[0]
    newest = [replica.newest(end) for replica in replicas]
    keys: set[bytes | None] = set().union(*newest)
    differing = [key for key in keys if any(one.get(key) != newest[0].get(key) for one in newest)]
    if not differing:
        return Outcome(same=len(newest[0]))
    known = [one[key][0] for key in differing for one in newest if key in one]
    return Outcome(
        f"the newest records below {end} differ", offset=min(known), nodes=_others(replicas, newest)
    )


def _others(replicas: Sequence[Replica], contents: Sequence[object]) -> tuple[int, ...]:
    """Return the nodes whose content is not that of the first replica."""
    return tuple(
        replica.node_id
        for replica, content in zip(replicas, contents, strict=True)
        if content != contents[0]
    )


def compare(
    directory: Path, *, without: Collection[int] = (), metadata_end: int | None = None
) -> Mapping[str, Outcome]:
    """Return the comparison of each partition by name, in order.

    `without`: nodes that are left out. `metadata_end`: records of the metadata log below it are
    committed; None: as far as all nodes have it. A log that cannot be read is not compared. Raises
    OSError and StorageError for files that are not of a cluster.
    """
    found = {}
    for name, replicas in replicas_of(directory).items():
        left = [replica for replica in replicas if replica.node_id not in without]
        if len(left) > 1:
            found[name] = _compared(name, left, metadata_end)
    return found


def _compared(name: str, replicas: Sequence[Replica], metadata_end: int | None) -> Outcome:
    try:
        return difference(name, replicas, metadata_end)
    except (OSError, CorruptBatch, StorageError) as error:
        return Outcome(f"a log cannot be read: {error}", is_compared=False)
