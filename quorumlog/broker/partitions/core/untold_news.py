"""What an image has changed for the replicas here, and they have yet to hear.

They hear it slice by slice, so that an image that concerns thousands of them holds nothing up. Each
hears the newest image by then: a replica that hears late acts as one whose broker hears late.
"""

from collections.abc import Iterable
from itertools import islice
from typing import ClassVar, Final, NamedTuple

from quorumlog.wire.codec.identifiers import TopicPartition


class News(NamedTuple):
    """One slice: the partitions that an image has changed, and replicas to hear of brokers."""

    partitions: list[TopicPartition]
    of_brokers: list[TopicPartition]


class UntoldNews:
    """Keeps what is noted until it is taken, in order; what is noted twice is taken once."""

    at_once: ClassVar[int] = 250
    """How many replicas a slice tells something."""

    def __init__(self) -> None:
        self._partitions: Final[dict[TopicPartition, None]] = {}
        self._of_brokers: Final[dict[TopicPartition, None]] = {}

    def __len__(self) -> int:
        """Return how many replicas have something to hear, at most."""
        return len(self._partitions) + len(self._of_brokers)

    def note(self, partitions: Iterable[TopicPartition]) -> None:
        """Note that an image has changed these partitions."""
        self._partitions.update(dict.fromkeys(partitions))

    def note_brokers(self, replicas: Iterable[TopicPartition]) -> None:
        """Note that an image has changed brokers: all replicas are to hear of it."""
        self._of_brokers.update(dict.fromkeys(replicas))

    def take(self) -> News:
        """Take a slice: first what has changed, then what has not but is to hear of brokers."""
        partitions = _taken(self._partitions, self.at_once)
        return News(partitions, _taken(self._of_brokers, self.at_once - len(partitions)))


def _taken(untold: dict[TopicPartition, None], count: int) -> list[TopicPartition]:
    taken = [*islice(untold, count)]
    for at in taken:
        del untold[at]
    return taken
