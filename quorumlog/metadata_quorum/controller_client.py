"""What a broker may ask of the active controller, wherever that is at the moment.

Requests are frozen values, so that they travel as CBOR and replay in a simulator. Every method
raises `ControllerUnavailable` when no active controller answered within the request timeout: the
outcome is then unknown, and the caller decides whether asking again is safe.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, PartitionIndex, TopicId


class ControllerUnavailable(Exception):
    """No active controller answered in time; whether the request took effect is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create. `assignments` (partition -> replicas) overrides the two counts.

    -1 for a count means the cluster's default (num.partitions, default.replication.factor).
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, tuple[BrokerId, ...]] = field(default_factory=dict)
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    """What became of one topic of a create or delete request."""

    name: str
    error_code: ErrorCode
    error_message: str | None = None
    topic_id: TopicId = TopicId(bytes(16))
    partitions: int = -1
    replication_factor: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrProposal:
    """AlterPartition (KIP-497) for one partition; `new_isr` pairs (broker id, broker epoch)."""

    topic_id: TopicId
    partition: PartitionIndex
    leader_epoch: Epoch
    partition_epoch: Epoch
    new_isr: tuple[tuple[BrokerId, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrResult:
    """The controller's answer: with NONE, the state that is now committed."""

    topic_id: TopicId
    partition: PartitionIndex
    error_code: ErrorCode
    leader_id: BrokerId = BrokerId(-1)
    leader_epoch: Epoch = Epoch(-1)
    partition_epoch: Epoch = Epoch(-1)
    isr: tuple[BrokerId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdBlock:
    """Producer ids [first, first + count): never given to anybody else (KIP-730)."""

    first: int
    count: int


class ControllerClient(Protocol):
    """The broker's way to the active controller."""

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[TopicResult]:
        """Create; a result per topic, after the metadata is committed."""

    async def delete_topics(self, names: Sequence[str]) -> list[TopicResult]:
        """Delete; a result per name, after the metadata is committed."""

    async def alter_partitions(
        self, broker_epoch: int, proposals: Sequence[IsrProposal]
    ) -> tuple[ErrorCode, list[IsrResult]]:
        """Propose ISRs; a top-level error (STALE_BROKER_EPOCH, NOT_CONTROLLER) voids them all."""

    async def allocate_producer_ids(self, broker_epoch: int) -> tuple[ErrorCode, ProducerIdBlock]:
        """Reserve a block of producer ids."""
