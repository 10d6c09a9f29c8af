"""Types of the numbers in Kafka's protocol, so that mypy keeps them apart."""

from typing import Final, NamedTuple, NewType

BrokerId = NewType("BrokerId", int)
Epoch = NewType("Epoch", int)
Offset = NewType("Offset", int)
PartitionIndex = NewType("PartitionIndex", int)
ProducerId = NewType("ProducerId", int)
TopicId = NewType("TopicId", bytes)  # 16 bytes, as on the wire

NO_LEADER: Final = BrokerId(-1)
NO_EPOCH: Final = Epoch(-1)
NO_PRODUCER_ID: Final = ProducerId(-1)
UNKNOWN_OFFSET: Final = Offset(-1)
ZERO_TOPIC_ID: Final = TopicId(bytes(16))


class TopicPartition(NamedTuple):
    """One partition of a topic, by the topic's name."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
