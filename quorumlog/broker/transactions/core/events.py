"""The events of a transaction coordinator: the common events, and four of its own."""

from collections.abc import Mapping
from dataclasses import dataclass

from quorumlog.broker.coordination.core.events import (
    BecameLeader,
    ClockAdvanced,
    RequestReceived,
    Ticked,
    WriteEnded,
)
from quorumlog.broker.transactions.core.requests import Request
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_PRODUCER_ID, Epoch, TopicPartition

__all__ = [
    "BecameLeader",
    "ClockAdvanced",
    "Event",
    "MarkersWritten",
    "PartitionsDeleted",
    "ProducerIdAllocated",
    "RequestReceived",
    "Ticked",
    "TransactionVersionChanged",
    "WriteEnded",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdAllocated:
    """An AllocateProducerId has ended: with an id, or with an error that clients understand."""

    transactional_id: str
    producer_id: int = NO_PRODUCER_ID
    error_code: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkersWritten:
    """The outcomes of some or all markers of a SendMarkers, identified by the first three fields.

    NONE: the marker is committed, and the transaction's records are visible (KAFKA-17507).
    """

    transactional_id: str
    prepared_ms: int
    coordinator_epoch: Epoch
    errors: Mapping[TopicPartition, ErrorCode]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsDeleted:
    """These partitions were deleted: they have no log for a marker."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionVersionChanged:
    """The feature `transaction.version` is finalized at this level: 0, 1 or 2."""

    transaction_version: int


Event = (
    RequestReceived[Request]
    | WriteEnded
    | ProducerIdAllocated
    | MarkersWritten
    | PartitionsDeleted
    | TransactionVersionChanged
    | BecameLeader
    | Ticked
    | ClockAdvanced
)
