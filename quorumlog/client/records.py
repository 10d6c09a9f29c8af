"""The values that the client's methods return: named tuples, cheap to make by the million."""

from typing import NamedTuple

from quorumlog.wire.codec.identifiers import TopicPartition

Headers = tuple[tuple[str, bytes | None], ...]

__all__ = [
    "ConsumerRecord", "GroupMetadata", "Headers", "OffsetAndMetadata", "OffsetAndTimestamp",
    "RecordMetadata", "TopicPartition",
]  # fmt: skip


class RecordMetadata(NamedTuple):
    """A written record's offset and time. `offset` is -1 with acks=0, and for a very late retry."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class ConsumerRecord(NamedTuple):
    """One record that was read. `leader_epoch` is -1 if the batch has none.

    `timestamp_type`: the clock of the timestamp. 0: the producer's, 1: the broker's.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    leader_epoch: int
    timestamp_type: int = 0


class OffsetAndMetadata(NamedTuple):
    """A committed position: the offset of the next record to read."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class OffsetAndTimestamp(NamedTuple):
    """The offset and timestamp of the first record at or after a time."""

    offset: int
    timestamp_ms: int
    leader_epoch: int = -1


class GroupMetadata(NamedTuple):
    """A consumer's membership in its group; the generation is -1 outside the group (KIP-447)."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
