"""Metadata changes not yet applied to the local replicas.

They are applied in slices, so that an image that changes thousands of replicas blocks no other
work. Each replica gets the newest image by then: a late one acts like a replica on a broker that
receives its metadata late.
"""

from collections.abc import Iterable
from itertools import islice
from typing import ClassVar, Final, NamedTuple

from quorumlog.wire.codec.identifiers import TopicPartition


class UpdateSlice(NamedTuple):
    """One slice: changed partitions, and other replicas that get the image's broker changes."""

    partitions: list[TopicPartition]
    of_brokers: list[TopicPartition]


class PendingUpdates:
    """Pending changes, in order, until a slice takes them; a partition is listed once."""

    at_once: ClassVar[int] = 250
    """The number of replicas in a slice."""

    def __init__(self) -> None:
        self._partitions: Final[dict[TopicPartition, None]] = {}
        self._of_brokers: Final[dict[TopicPartition, None]] = {}

    def __len__(self) -> int:
        """Return the number of pending replicas; a replica in both lists counts twice."""
        return len(self._partitions) + len(self._of_brokers)

    def note(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions that an image has changed."""
        self._partitions.update(dict.fromkeys(partitions))

    def note_brokers(self, replicas: Iterable[TopicPartition]) -> None:
        """Add the replicas that are to get an image's broker changes: all of them."""
        self._of_brokers.update(dict.fromkeys(replicas))

    def take(self) -> UpdateSlice:
        """Remove and return a slice: changed partitions first, then those with broker changes."""
        partitions = _taken(self._partitions, self.at_once)
        return UpdateSlice(partitions, _taken(self._of_brokers, self.at_once - len(partitions)))


def _taken(pending: dict[TopicPartition, None], count: int) -> list[TopicPartition]:
    taken = [*islice(pending, count)]
    for at in taken:
        del pending[at]
    return taken
