"""Partitions that take the data and the markers of transactions, as KIP-98, 890 and 1228 say."""

from dataclasses import dataclass, field

from quorumlog.broker.transactions.core.effects import SendMarkers
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.transactions.model import Producer

Tag = tuple[str, int]  # a transactional id, and which of its transactions


@dataclass
class Partition:
    """`data`: of open transactions, by producer id. `outcomes`: what markers said of it."""

    data: dict[int, list[Tag]] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    coordinator_epochs: dict[int, int] = field(default_factory=dict)
    outcomes: list[tuple[Tag, bool]] = field(default_factory=list)

    def produce(self, producer: Producer, tag: Tag) -> None:
        producer_id, epoch = producer
        if epoch >= self.epochs.get(producer_id, -1):
            self.epochs[producer_id] = epoch
            self.data.setdefault(producer_id, []).append(tag)

    def mark(self, sent: SendMarkers) -> ErrorCode:
        producer_id, epoch = sent.producer
        if sent.coordinator_epoch < self.coordinator_epochs.get(producer_id, -1):
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        known = self.epochs.get(producer_id, -1)
        is_there_already = epoch == known and producer_id not in self.data
        if epoch < known or (sent.transaction_version == 2 and epoch == known):
            return ErrorCode.NONE if is_there_already else ErrorCode.INVALID_PRODUCER_EPOCH
        self.epochs[producer_id] = epoch
        self.coordinator_epochs[producer_id] = sent.coordinator_epoch
        for tag in self.data.pop(producer_id, ()):
            self.outcomes.append((tag, sent.commit))
        return ErrorCode.NONE
