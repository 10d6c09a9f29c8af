"""Transactional producers, and a transaction coordinator that ends what they begin.

`Producer.is_open`: in the transaction coordinator. Each response has the state at the time of the
request; it may arrive much later.
"""

from dataclasses import dataclass, field
from random import Random

from quorumlog.broker.groups.core.requests import CommitTransactionalOffsets, CompleteTransaction
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.transaction_markers import TransactionMarker
from tests.support.groups.offsets_model import Where


@dataclass
class Producer:
    """One transactional id. `bumps`: transaction.version 2, each transaction has a new epoch."""

    producer_id: int
    bumps: bool
    epoch: int = 0
    is_open: bool = False
    ending: TransactionMarker | None = None  # until the partition has it
    acknowledged: dict[Where, int] = field(default_factory=dict)  # in the open transaction

    def verify(self, request: CommitTransactionalOffsets) -> ErrorCode:
        """Return the coordinator's verdict on a commit."""
        if request.producer_epoch != self.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if self.ending is not None:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if request.adds:
            self.is_open = True
        return ErrorCode.NONE if self.is_open else ErrorCode.TRANSACTION_ABORTABLE

    def end(self, random: Random) -> CompleteTransaction | None:
        """The marker that the partition should have now."""
        if self.ending is None and self.is_open:
            self.is_open = False
            self.epoch += self.bumps
            commits = random.random() < 0.7
            self.ending = TransactionMarker(self.producer_id, self.epoch, 0, commits)
        return None if self.ending is None else CompleteTransaction(marker=self.ending)
