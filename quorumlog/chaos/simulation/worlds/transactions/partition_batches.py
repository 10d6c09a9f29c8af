"""The records of a transaction for one partition, sent one batch at a time."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from quorumlog.broker.partitions.core.data_path import ProduceResult
from quorumlog.broker.transactions.core.requests import ProducerIdAndEpoch
from quorumlog.chaos.simulation.kernel.randomness import Rng
from quorumlog.chaos.simulation.worlds.transactions.cluster import Cluster
from quorumlog.chaos.simulation.worlds.transactions.messages import Party
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.records import Record, encode_batch

BACKOFF_US: Final = 60_000

# The transaction cannot go on: it must be aborted.
ABORTABLE: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """The context and callbacks shared by all partitions of a transaction.

    `acknowledged(at, base_offset, values)`: for each batch. `refused(at)`: the transaction must be
    aborted. `ended(at)`: all batches are written. No callback runs once `is_over()`.
    """

    party: Party
    cluster: Cluster
    rng: Rng
    transactional_id: str
    producer: ProducerIdAndEpoch
    adds: bool
    acknowledged: Callable[[TopicPartition, int, list[bytes]], None]
    refused: Callable[[TopicPartition], None]
    ended: Callable[[TopicPartition], None]
    is_over: Callable[[], bool]


class PartitionBatches:
    """The batches of one partition. `next_sequence`: of the next batch; a resend keeps its own."""

    def __init__(
        self, writing: Writing, at: TopicPartition, next_sequence: int, batches: list[list[bytes]]
    ) -> None:
        self.at: Final = at
        self.next_sequence = next_sequence
        self._writing: Final = writing
        self._left: Final = deque(batches)

    @property
    def is_ended(self) -> bool:
        """True once all batches are acknowledged."""
        return not self._left

    def send(self) -> None:
        """Send the first batch that is not acknowledged, or call `ended` after the last."""
        writing = self._writing
        if writing.is_over():
            return
        if not self._left:
            writing.ended(self.at)
            return
        now_ms = writing.party.machine.now_ms()
        batch = encoded_batch(self._left[0], writing.producer, self.next_sequence, now_ms)
        leader = writing.cluster.leader_of(self.at, writing.rng)
        writing.cluster.produce(
            writing.party,
            leader,
            self.at,
            batch,
            self._answered,
            transactional_id=writing.transactional_id,
            adds=writing.adds,
        )

    def _answered(self, result: ProduceResult | None) -> None:
        if self._writing.is_over():
            return
        if result is not None and result.error_code is ErrorCode.NONE:
            values = self._left.popleft()
            self.next_sequence += len(values)
            self._writing.acknowledged(self.at, result.base_offset, values)
            self.send()
        elif result is not None and result.error_code in ABORTABLE:
            self._writing.refused(self.at)
        else:
            party = self._writing.party
            party.machine.later(BACKOFF_US, party.take, self.send)


def encoded_batch(
    values: list[bytes],
    producer: ProducerIdAndEpoch,
    sequence: int,
    now_ms: int,
    *,
    is_transactional: bool = True,
) -> bytes:
    """Return an encoded batch of a producer."""
    return encode_batch(
        [Record(index, now_ms, None, value) for index, value in enumerate(values)],
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        is_transactional=is_transactional,
    )
