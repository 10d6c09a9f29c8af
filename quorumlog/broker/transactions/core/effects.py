"""The effects of a transaction coordinator: the common effects, and two of its own."""

from dataclasses import dataclass

from quorumlog.broker.coordination.core.effects import AnswerRequest, AppendRecords, OwnEffect
from quorumlog.broker.transactions.core.records import TransactionRecord
from quorumlog.broker.transactions.core.requests import ProducerIdAndEpoch, Result
from quorumlog.wire.codec.identifiers import Epoch, TopicPartition

__all__ = ["AllocateProducerId", "AnswerRequest", "AppendRecords", "Effect", "SendMarkers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerId(OwnEffect):
    """Get an unused producer id for this transactional id."""

    transactional_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMarkers(OwnEffect):
    """Have the leaders of these partitions write the marker of a transaction (WriteTxnMarkers).

    `transactional_id` and `prepared_ms` identify the decision; `MarkersWritten` returns them.
    `transaction_version` goes into the request (v2, KIP-1228): with 2, a leader may require a newer
    epoch.
    """

    transactional_id: str
    prepared_ms: int
    producer: ProducerIdAndEpoch
    coordinator_epoch: Epoch
    commit: bool
    transaction_version: int
    partitions: tuple[TopicPartition, ...]


Effect = AppendRecords[TransactionRecord] | AnswerRequest[Result] | AllocateProducerId | SendMarkers
