"""Partitions grouped by topic, as requests carry them."""

from collections.abc import Iterable

from quorumlog.wire.codec.identifiers import TopicPartition


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the sorted partition numbers of each topic; topics are sorted, too."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        grouped.setdefault(topic, []).append(partition)
    return grouped
