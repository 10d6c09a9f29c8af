"""The metadata records, and their bytes: CBOR `[type, version, {fields}]` in Kafka record batches.

Type numbers are KRaft's (KIP-631). A reader skips unknown fields. An unknown type is an error
(NewerRecord), because nodes that skip a change would have different metadata.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import cbor2

from quorumlog.metadata_quorum.cbor_values import MalformedValue, changed_to_plain, from_plain
from quorumlog.metadata_quorum.image.details import BrokerDetails
from quorumlog.metadata_quorum.image.features import ANNOUNCED, level_problem
from quorumlog.metadata_quorum.image.scram import ScramCredential
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId, Epoch, PartitionIndex, TopicId

TOPIC_RESOURCE: Final = 2  # ConfigResource.Type.TOPIC
BROKER_RESOURCE: Final = 4  # ConfigResource.Type.BROKER; the name "" stands for all brokers
CLIENT_METRICS_RESOURCE: Final = 16  # ConfigResource.Type.CLIENT_METRICS: a subscription
GROUP_RESOURCE: Final = 32  # ConfigResource.Type.GROUP


class MalformedRecord(ValueError):
    """Bytes that do not decode to a metadata record."""


class NewerRecord(StorageError):
    """A metadata record of a newer release; it is no damage, so the node stops and keeps its files.

    A node that skipped it would have other metadata than the rest of the cluster.
    """

    def __init__(self, what: str) -> None:
        super().__init__(
            f"a newer release wrote the metadata: {what}. Start this node with that release"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker(BrokerDetails):
    """The registration of a broker process.

    `broker_epoch` is the offset of this record in the log; the field keeps it in a snapshot, where
    the record has another offset. None: written before the field existed, and read from the log.
    """

    fenced: bool = True
    in_controlled_shutdown: bool = False
    broker_epoch: int | None = None
    features: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    log_dirs: tuple[str, ...] | None = None  # if the broker has several


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBroker:
    """The removal of a broker that will not return."""

    broker_id: BrokerId
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A new topic, without partitions yet."""

    name: str
    topic_id: TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A new partition. The partitions of a topic come in ascending order from 0."""

    topic_id: TopicId
    partition_id: PartitionIndex
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: Epoch = Epoch(0)
    partition_epoch: Epoch = Epoch(0)
    elr: tuple[BrokerId, ...] = ()
    adding_replicas: tuple[BrokerId, ...] = ()
    removing_replicas: tuple[BrokerId, ...] = ()
    last_known_leader: BrokerId = NO_LEADER
    is_recovering: bool = False
    directories: tuple[tuple[BrokerId, str], ...] | None = None
    last_known_elr: tuple[BrokerId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One configuration entry; `value` None deletes it."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChange:
    """A change of a partition; None: the field stays as it is.

    A `leader` (even the same one) starts a new leader epoch; every change a new partition epoch.
    `directories`: (broker, log directory) of all replicas with a reported directory.
    """

    topic_id: TopicId
    partition_id: PartitionIndex
    isr: tuple[BrokerId, ...] | None = None
    leader: BrokerId | None = None
    elr: tuple[BrokerId, ...] | None = None
    replicas: tuple[BrokerId, ...] | None = None
    adding_replicas: tuple[BrokerId, ...] | None = None
    removing_replicas: tuple[BrokerId, ...] | None = None
    last_known_leader: BrokerId | None = None
    is_recovering: bool | None = None
    directories: tuple[tuple[BrokerId, str], ...] | None = None
    last_known_elr: tuple[BrokerId, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopic:
    """The deletion of a topic with its partitions and its configuration."""

    topic_id: TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIds:
    """The allocation of a block: all producer ids below `next_producer_id` are taken (KIP-730)."""

    broker_id: BrokerId
    broker_epoch: int
    next_producer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationChange:
    """A change of a registered broker: fenced, unfenced or shutting down; None: as before.

    `log_dirs`: its log directories that are still usable.
    """

    broker_id: BrokerId
    broker_epoch: int
    fenced: bool | None = None
    in_controlled_shutdown: bool | None = None
    log_dirs: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class AclBinding:
    """An ACL: it allows or denies an operation on resources. The codes are the protocol's."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessControlEntry:
    """A new ACL."""

    acl: AclBinding


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveAccessControlEntry:
    """The deletion of an ACL."""

    acl: AclBinding


QuotaEntity = tuple[tuple[str, str | None], ...]
"""(type, name) pairs, sorted by type; a name of None is the default for names without a quota."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuota:
    """One quota of an entity; `value` None deletes it."""

    entity: QuotaEntity
    key: str
    value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserScramCredential:
    """A user's credential for a mechanism; it replaces the last credential (KIP-554)."""

    user: str
    mechanism: int
    credential: ScramCredential


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveUserScramCredential:
    """The deletion of a user's credential for a mechanism."""

    user: str
    mechanism: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevel:
    """The level of a feature from this record on (KIP-584).

    `is_automatic`: the level was not set by a request, so it may rise by itself. Older releases
    have no such field: their levels count as set by a request.
    """

    name: str
    level: int
    is_automatic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOp:
    """A record without effect; it only advances the log end offset."""


ClusterRecord = (
    RegisterBroker
    | UnregisterBroker
    | Topic
    | Partition
    | Config
    | PartitionChange
    | RemoveTopic
    | ProducerIds
    | BrokerRegistrationChange
    | FeatureLevel
    | NoOp
)
AccessRecord = (
    AccessControlEntry
    | RemoveAccessControlEntry
    | ClientQuota
    | UserScramCredential
    | RemoveUserScramCredential
)
MetadataRecord = ClusterRecord | AccessRecord
RECORD_TYPES: Final[Mapping[int, type[MetadataRecord]]] = MappingProxyType(
    {
        0: RegisterBroker,
        1: UnregisterBroker,
        2: Topic,
        3: Partition,
        4: Config,
        5: PartitionChange,
        9: RemoveTopic,
        11: UserScramCredential,
        12: FeatureLevel,
        14: ClientQuota,
        15: ProducerIds,
        17: BrokerRegistrationChange,
        18: AccessControlEntry,
        19: RemoveAccessControlEntry,
        20: NoOp,
        22: RemoveUserScramCredential,
    }
)
_NUMBERS: Final = {kind: number for number, kind in RECORD_TYPES.items()}
_VERSION: Final = 0


def encode_record(record: MetadataRecord) -> bytes:
    """Return the value of the Kafka record that carries `record`.

    Fields at their defaults are not written, so the defaults are part of the format.
    """
    return cbor2.dumps([_NUMBERS[type(record)], _VERSION, changed_to_plain(record)])


def decode_record(value: bytes) -> MetadataRecord:
    """Return the record in `value`. Raises MalformedRecord, NewerRecord."""
    try:
        plain = cbor2.loads(value)
    except (cbor2.CBORDecodeError, ValueError) as error:
        raise MalformedRecord(f"not CBOR: {error}") from error
    if not isinstance(plain, list) or len(plain) != 3:
        raise MalformedRecord("expected [type, version, fields]")
    number, _, values = plain
    if not isinstance(number, int):
        raise MalformedRecord(f"metadata record type {number!r} is no number")
    kind = RECORD_TYPES.get(number)
    if kind is None:
        raise NewerRecord(f"it has records of type {number}")
    try:
        record = from_plain(kind, values)
    except MalformedValue as error:
        raise MalformedRecord(str(error)) from error
    if isinstance(record, FeatureLevel):
        problem = level_problem(ANNOUNCED, record.name, record.level)
        if problem is not None:
            raise NewerRecord(problem)
    return record
