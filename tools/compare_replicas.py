"""Compare the logs of all replicas of a stopped cluster: committed records must be equal.

    python -m tools.compare_replicas DIR      DIR: of `quorumlog up`, or of a chaos run

A log that is not compacted must have the same bytes in every replica, from the latest log start to
the smallest high watermark. Each replica cleans a compacted log by itself: all must have the same
newest record of each key. If their high watermarks differ, one replica may have removed records
that another must still have, so such logs are not compared. The metadata log must have the same
bytes up to the smallest end. A replica without a high watermark, or with high watermark 0 beside
replicas with records, is a difference: its records could not be compared. Exit status 1 if replicas
differ, 64 if there are no replicas to compare.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from quorumlog.storage.io.checkpoints import (
    CLEANED_FILE,
    LOG_START_FILE,
    REPLICATION_FILE,
    read_offset_checkpoint,
)
from quorumlog.storage.io.disk import RealDisk
from quorumlog.wire.codec.identifiers import Offset, TopicPartition
from quorumlog.wire.codec.records import decode_batch, iterate_headers
from quorumlog.wire.codec.topic_names import METADATA_TOPIC

EXIT_USAGE: Final = 64


class Outcome(NamedTuple):
    """The result of a comparison.

    how: the difference, or why the replicas are not compared; "": they are equal. same: the number
    of equal batches or keys.
    """

    how: str = ""
    same: int = 0
    is_compared: bool = True


class Replica(NamedTuple):
    """The log of a partition on one node; high_watermark: None without one."""

    directory: Path
    log_start_offset: int
    high_watermark: int | None
    is_cleaned: bool

    def batches(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield (base offset, bytes) of the whole batches in [start, end)."""
        for path in sorted(self.directory.glob("*.log")):
            content = path.read_bytes()
            for position, header in iterate_headers(content):
                if header.base_offset >= start and header.next_offset <= end:
                    yield header.base_offset, content[position : position + header.size_in_bytes]

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
    """Return the replicas of each partition, by the partition's name."""
    found = defaultdict[str, list[Replica]](list)
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
            found[log.name].append(replica)
    return found


def difference(name: str, replicas: Sequence[Replica]) -> Outcome:
    """Compare the replicas of a partition."""
    log_ends = [replica.end_offset() for replica in replicas]
    marks = [replica.high_watermark for replica in replicas]
    ends = log_ends if name.startswith(METADATA_TOPIC) else [mark or 0 for mark in marks]
    start, end = max(replica.log_start_offset for replica in replicas), min(ends)
    if any(log_ends) and ends is not log_ends and None in marks:
        return Outcome("nothing compared: a replica has no high watermark")
    if any(log_ends) and end == 0:
        return Outcome("nothing compared: a replica ends at 0, and another has records")
    if any(replica.is_cleaned for replica in replicas):
        if len({*ends}) > 1:
            return Outcome(f"cleaned, with the high watermarks {ends}", is_compared=False)
        newest = [replica.newest(end) for replica in replicas]
        same = all(one == newest[0] for one in newest)
        how = "" if same else f"the newest records below {end} differ"
        return Outcome(how, len(newest[0]) if same else 0)
    logs = [dict(replica.batches(start, end)) for replica in replicas]
    for offset in sorted(set().union(*logs)):
        if any(log.get(offset) != logs[0].get(offset) for log in logs):
            return Outcome(f"the batch at {offset} of [{start}, {end}) differs")
    return Outcome(same=len(logs[0]))


def compare(directory: Path) -> Mapping[str, str]:
    """Return the difference of the replicas of each compared partition, by name; "": equal."""
    outcomes = {
        name: difference(name, replicas)
        for name, replicas in sorted(replicas_of(directory).items())
        if len(replicas) > 1
    }
    return {name: one.how for name, one in outcomes.items() if one.is_compared}


def main(arguments: Sequence[str]) -> int:
    """Compare, and print the result; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    given = parser.parse_args(arguments)
    partitions = {
        name: replicas
        for name, replicas in sorted(replicas_of(given.directory).items())
        if len(replicas) > 1
    }
    if not partitions:
        sys.stderr.write(f"{given.directory} has no partition with two replicas\n")
        return EXIT_USAGE
    differing = compared = 0
    for name, replicas in partitions.items():
        one = difference(name, replicas)
        compared += one.is_compared
        differing += one.is_compared and bool(one.how)
        how = one.how or f"equal ({one.same})"
        how = how if one.is_compared else f"not compared: {how}"
        sys.stdout.write(f"{name}: {len(replicas)} replicas: {how}\n")
    left = len(partitions) - compared
    others = f"; {left} were not compared" if left else ""
    sys.stdout.write(f"{compared - differing} of {compared} partitions agree{others}\n")
    if not compared:
        return EXIT_USAGE
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
