"""The batches of one partition in a producer."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from quorumlog.client.core.batch import Batch, ProducerIdentity
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID, TopicPartition


@dataclass(slots=True, eq=False)
class PartitionQueue:
    """`in_flight` (sent at least once), then `waiting`; the oldest first.

    `sequence`: identity and number of the next new batch. `pipelined`: a batch of that identity was
    acknowledged in the topic of `topic_id`, to which new batches go. `renumber`: all in flight get
    new numbers once none of them is SENT.
    """

    topic_partition: TopicPartition
    in_flight: list[Batch] = field(default_factory=list)
    waiting: deque[Batch] = field(default_factory=deque)
    sequence: tuple[ProducerIdentity, int] | None = None
    topic_id: bytes = ZERO_TOPIC_ID
    pipelined: bool = False
    renumber: bool = False

    def batches(self) -> Iterator[Batch]:
        """All that are not done, oldest first."""
        yield from self.in_flight
        yield from self.waiting
