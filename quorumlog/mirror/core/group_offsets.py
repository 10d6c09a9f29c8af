"""Decides the offsets to commit for a group at the target (KIP-545).

A group is moved only where it has no members, and only forward: an application that reads at the
target owns its offsets. An offset is translated only as far as the copies reach.
"""

from collections.abc import Callable, Mapping
from typing import Final

from quorumlog.client.records import OffsetAndMetadata
from quorumlog.wire.codec.identifiers import TopicPartition

IDLE: Final = frozenset({"Empty", "Dead"})  # the states of a group without members

Translate = Callable[[TopicPartition, int], tuple[TopicPartition, int] | None]
"""From a partition and an offset of the source to those of the target; None: unknown."""


def translated(
    committed: Mapping[TopicPartition, OffsetAndMetadata], translate: Translate
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets at the target of a group's offsets at the source.

    The leader epoch is left out: it is the source's. Partitions without a translation, too.
    """
    found = {}
    for partition, place in committed.items():
        moved = translate(partition, place.offset) if place.offset >= 0 else None
        if moved is not None:
            found[moved[0]] = OffsetAndMetadata(moved[1], metadata=place.metadata)
    return found


def decide_commits(
    state: str,
    wanted: Mapping[TopicPartition, OffsetAndMetadata],
    present: Mapping[TopicPartition, OffsetAndMetadata],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets to commit. `state`, `present`: of the group at the target."""
    if state not in IDLE:
        return {}
    return {
        partition: place
        for partition, place in wanted.items()
        if partition not in present or present[partition].offset < place.offset
    }
