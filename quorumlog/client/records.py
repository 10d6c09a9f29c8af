"""Named tuples that the client's methods accept and return, cheap to make by the million."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple

from quorumlog.wire.codec.identifiers import TopicPartition

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # `default` of PEP 696: `Producer` is of bytes

    KeyT = TypeVar("KeyT", default=bytes)
    ValueT = TypeVar("ValueT", default=bytes)
else:
    from typing import TypeVar

    KeyT = TypeVar("KeyT")
    ValueT = TypeVar("ValueT")

Headers = tuple[tuple[str, bytes | None], ...]

__all__ = [
    "ConsumerRecord", "GroupMetadata", "Headers", "KeyT", "OffsetAndMetadata", "OffsetAndTimestamp",
    "ProducerRecord", "RecordMetadata", "TopicPartition", "ValueT",
]  # fmt: skip


class ProducerRecord(NamedTuple, Generic[KeyT, ValueT]):
    """A record to send. The fields are the arguments of `Producer.send`."""

    topic: str
    value: ValueT | None
    key: KeyT | None = None
    partition: int | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int | None = None


class RecordMetadata(NamedTuple):
    """A written record's offset and time. `offset` is -1 with acks=0, and for a very late retry."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class ConsumerRecord(NamedTuple, Generic[KeyT, ValueT]):
    """One record that was read. `leader_epoch` is -1 if the batch has none.

    `key` and `value` are bytes, or the results of `key_deserializer` and `value_deserializer`.
    `timestamp_type`: the clock of the timestamp. 0: the producer's, 1: the broker's.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: KeyT | None
    value: ValueT | None
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
