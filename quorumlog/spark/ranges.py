"""Ranges of offsets of a batch, cut into tasks and limited to a number of rows. Pure."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from quorumlog.client.records import TopicPartition
from quorumlog.spark.options import EARLIEST, LATEST, Place

Offsets = dict[TopicPartition, int]
Document = dict[str, dict[str, int]]  # the offsets in Spark's checkpoints: JSON


class OffsetRange(NamedTuple):
    """The offsets [start, end) of one partition."""

    partition: TopicPartition
    start: int
    end: int


def offsets_of(document: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Return the offsets in a checkpoint."""
    return {
        TopicPartition(topic, int(number)): offset
        for topic, partitions in document.items()
        for number, offset in partitions.items()
    }


def document_of(offsets: Mapping[TopicPartition, int]) -> Document:
    """Return offsets for a checkpoint: by topic and partition, in order."""
    document: Document = {}
    for (topic, number), offset in sorted(offsets.items()):
        document.setdefault(topic, {})[str(number)] = offset
    return document


def resolve(place: Place, beginnings: Offsets, ends: Offsets) -> Offsets:
    """Return each partition's offset at `place`. Raises ValueError if it has other partitions."""
    if isinstance(place, int):
        return dict(beginnings if place == EARLIEST else ends)
    named = {
        TopicPartition(topic, number): offset
        for topic, partitions in place.items()
        for number, offset in partitions.items()
    }
    if named.keys() != ends.keys():
        odd = ", ".join(f"{topic}-{number}" for topic, number in sorted(named.keys() ^ ends.keys()))
        raise ValueError(f"offsets must be given for exactly the partitions that are read: {odd}")
    words = {EARLIEST: beginnings, LATEST: ends}
    return {
        partition: words[offset][partition] if offset in words else offset
        for partition, offset in named.items()
    }


def limited(start: Offsets, end: Offsets, rows: int) -> Offsets:
    """Return ends at most `rows` offsets after `start`, in proportion to each partition's backlog.

    Each partition with a backlog gets at least one row, in order, as long as there are rows.
    """
    waiting = {one: max(0, end[one] - start.get(one, end[one])) for one in sorted(end)}
    total = sum(waiting.values())
    if total <= rows:
        return dict(end)
    left, limit = rows, dict(end)
    for partition, count in waiting.items():
        share = min(count, left, max(1, count * rows // total))
        left -= share
        if count:
            limit[partition] = start[partition] + share
    return limit


def between(start: Offsets, end: Offsets, *, rows_per_task: int = 0) -> list[OffsetRange]:
    """Return the ranges from `start` to `end`: one per partition, or several of `rows_per_task`."""
    return [
        part
        for partition in sorted(end)
        if (first := start.get(partition, 0)) < end[partition]
        for part in _cut(OffsetRange(partition, first, end[partition]), rows_per_task)
    ]


def _cut(whole: OffsetRange, rows_per_task: int) -> Iterable[OffsetRange]:
    step = rows_per_task or whole.end - whole.start
    return [
        OffsetRange(whole.partition, first, min(first + step, whole.end))
        for first in range(whole.start, whole.end, step)
    ]
