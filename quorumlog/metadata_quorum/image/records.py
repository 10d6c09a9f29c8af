"""The metadata records, and their bytes: CBOR `[type, version, {fields}]` in Kafka record batches.

Type numbers are KRaft's (KIP-631). A reader skips fields that it does not know; a type that it
does not know is an error, because skipping a change would make two nodes see two clusters.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import cbor2

from quorumlog.metadata_quorum.cbor_values import MalformedValue, from_plain, to_plain
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, PartitionIndex, TopicId

TOPIC_RESOURCE: Final = 2  # ConfigResource.Type.TOPIC


class MalformedRecord(ValueError):
    """A metadata record that this version cannot read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker:
    """A broker process announced itself. Its offset in the log becomes the broker epoch."""

    broker_id: BrokerId
    incarnation_id: str
    host: str
    port: int
    control_address: str
    rack: str | None = None
    directory_id: str | None = None
    boot_id: str | None = None
    min_insync_replicas: int = 1
    fenced: bool = True
    in_controlled_shutdown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBroker:
    """A broker that will not come back."""

    broker_id: BrokerId
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A new topic, without partitions yet."""

    name: str
    topic_id: TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A new partition. Those of one topic come in ascending order from 0."""

    topic_id: TopicId
    partition_id: PartitionIndex
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: Epoch = Epoch(0)
    partition_epoch: Epoch = Epoch(0)
    elr: tuple[BrokerId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One configuration entry; `value` None deletes it."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChange:
    """What changed in a partition: None leaves a field alone.

    A `leader` (even the same one) starts a new leader epoch; every change a new partition epoch.
    """

    topic_id: TopicId
    partition_id: PartitionIndex
    isr: tuple[BrokerId, ...] | None = None
    leader: BrokerId | None = None
    elr: tuple[BrokerId, ...] | None = None
    replicas: tuple[BrokerId, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopic:
    """A topic, its partitions and its configuration are gone."""

    topic_id: TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIds:
    """All producer ids below `next_producer_id` are taken (KIP-730)."""

    broker_id: BrokerId
    broker_epoch: int
    next_producer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationChange:
    """A registered broker was fenced, unfenced, or is about to shut down; None: as before."""

    broker_id: BrokerId
    broker_epoch: int
    fenced: bool | None = None
    in_controlled_shutdown: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOp:
    """Nothing: it moves the end of the log."""


MetadataRecord = (
    RegisterBroker
    | UnregisterBroker
    | Topic
    | Partition
    | Config
    | PartitionChange
    | RemoveTopic
    | ProducerIds
    | BrokerRegistrationChange
    | NoOp
)
RECORD_TYPES: Final[Mapping[int, type[MetadataRecord]]] = MappingProxyType(
    {
        0: RegisterBroker,
        1: UnregisterBroker,
        2: Topic,
        3: Partition,
        4: Config,
        5: PartitionChange,
        9: RemoveTopic,
        15: ProducerIds,
        17: BrokerRegistrationChange,
        20: NoOp,
    }
)
_NUMBERS: Final = {kind: number for number, kind in RECORD_TYPES.items()}
_VERSION: Final = 0


def encode_record(record: MetadataRecord) -> bytes:
    """Return the value of the Kafka record that carries `record`."""
    return cbor2.dumps([_NUMBERS[type(record)], _VERSION, to_plain(record)])


def decode_record(value: bytes) -> MetadataRecord:
    """Return the record in `value`. Raises MalformedRecord."""
    try:
        plain = cbor2.loads(value)
    except (cbor2.CBORDecodeError, ValueError) as error:
        raise MalformedRecord(f"not CBOR: {error}") from error
    if not isinstance(plain, list) or len(plain) != 3:
        raise MalformedRecord("expected [type, version, fields]")
    number, _, values = plain
    kind = RECORD_TYPES.get(number) if isinstance(number, int) else None
    if kind is None:
        raise MalformedRecord(
            f"metadata record type {number!r} is unknown: the log is a newer version's"
        )
    try:
        return from_plain(kind, values)
    except MalformedValue as error:
        raise MalformedRecord(str(error)) from error
