"""Partitions by topic, as requests name them."""

from collections.abc import Iterable

from quorumlog.wire.codec.identifiers import TopicPartition


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers by topic, both in order."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        grouped.setdefault(topic, []).append(partition)
    return grouped
