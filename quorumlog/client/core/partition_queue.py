"""The batches of one partition in a producer."""

from collections import deque
from collections.abc import Iterator
from typing import Final

from quorumlog.client.core.batch import Batch, ProducerIdentity
from quorumlog.wire.codec.identifiers import TopicPartition


class PartitionQueue:
    """`in_flight` (sent at least once), then `waiting`; the oldest first.

    `sequence`: identity and number of the next new batch. `pipelined`: a batch of that identity was
    acknowledged. `renumber`: all in flight get new numbers once none of them is SENT.
    """

    __slots__ = ("in_flight", "pipelined", "renumber", "sequence", "topic_partition", "waiting")

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition: Final = topic_partition
        self.in_flight: list[Batch] = []
        self.waiting: deque[Batch] = deque()
        self.sequence: tuple[ProducerIdentity, int] | None = None
        self.pipelined = False
        self.renumber = False

    def batches(self) -> Iterator[Batch]:
        """All that are not done, oldest first."""
        yield from self.in_flight
        yield from self.waiting
