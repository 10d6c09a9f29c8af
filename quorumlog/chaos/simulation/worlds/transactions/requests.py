"""How the producers of a run are, and the requests that they send."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from quorumlog.broker.transactions.core.requests import (
    NO_PRODUCER,
    AddPartitions,
    AddPartitionsResult,
    EndTransaction,
    EndTransactionResult,
    InitProducerId,
    InitProducerIdResult,
    ProducerIdAndEpoch,
    Result,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

# By the version of the protocol that a producer knows. 0: of before KIP-360.
INIT_VERSIONS: Final = (1, 5, 5)
ADD_VERSIONS: Final = (1, 3, 3)
END_VERSIONS: Final = (1, 4, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """How one producer is.

    `version`: 2 has an epoch for each transaction, and leaves it to leaders to add partitions; 1
    and 2 go on with a new epoch after a lost batch (KIP-360). `is_careless`: it produces where it
    may not, now and then. Only requests of version 2 `may_come_late`: an older coordinator or
    client cannot tell them from those of the next transaction.
    """

    transactional_id: str
    version: int
    timeout_ms: int
    is_careless: bool
    may_come_late: bool

    def init(self, expected: ProducerIdAndEpoch = NO_PRODUCER) -> InitProducerId:
        """Begin to use the id, or go on as `expected`."""
        return InitProducerId(
            transactional_id=self.transactional_id,
            api_version=INIT_VERSIONS[self.version],
            transaction_timeout_ms=self.timeout_ms,
            expected=expected,
        )

    def add(
        self, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]
    ) -> AddPartitions:
        """Add partitions to the transaction."""
        return AddPartitions(
            transactional_id=self.transactional_id,
            api_version=ADD_VERSIONS[self.version],
            producer=producer,
            partitions=frozenset(partitions),
        )

    def end(self, producer: ProducerIdAndEpoch, *, commits: bool) -> EndTransaction:
        """End the transaction."""
        return EndTransaction(
            transactional_id=self.transactional_id,
            api_version=END_VERSIONS[self.version],
            producer=producer,
            commit=commits,
        )


def error_code_of(result: Result) -> ErrorCode:
    """Return the first error that a result has."""
    match result:
        case AddPartitionsResult(partitions=partitions):
            return next(filter(None, partitions.values()), ErrorCode.NONE)
        case InitProducerIdResult() | EndTransactionResult():
            return result.error_code
        case ErrorCode():
            return result
