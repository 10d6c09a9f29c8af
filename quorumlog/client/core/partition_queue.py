"""The batches of one partition in a producer."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from quorumlog.client.core.batch import Batch, ProducerIdentity
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID, TopicPartition


@dataclass(slots=True, eq=False)
class PartitionQueue:
    """The batches `in_flight` (sent at least once), then `waiting`; the oldest first.

    `sequence`: identity and sequence number of the next new batch. `topic_id`: the topic of new
    batches. `pipelined`: a batch of that identity and topic id was acknowledged. `renumber`: number
    all batches in flight anew, once every response to them has arrived.
    """

    topic_partition: TopicPartition
    in_flight: list[Batch] = field(default_factory=list)
    waiting: deque[Batch] = field(default_factory=deque)
    sequence: tuple[ProducerIdentity, int] | None = None
    topic_id: bytes = ZERO_TOPIC_ID
    pipelined: bool = False
    renumber: bool = False

    def batches(self) -> Iterator[Batch]:
        """Return all unfinished batches, oldest first."""
        yield from self.in_flight
        yield from self.waiting
