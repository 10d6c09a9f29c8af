"""The settings of the producers of a run, and their requests."""

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

# By the protocol version of a producer. 0: before KIP-360.
INIT_VERSIONS: Final = (1, 5, 5)
ADD_VERSIONS: Final = (1, 3, 3)
END_VERSIONS: Final = (1, 4, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """The settings of one producer.

    `version`: with 2 each transaction has its own epoch, and leaders add the partitions; 1 and 2
    go on with a new epoch after a lost batch (KIP-360). `is_careless`: some of its batches must be
    refused. Only requests of version 2 `may_come_late`: with older versions a coordinator cannot
    distinguish them from requests of the next transaction.
    """

    transactional_id: str
    version: int
    timeout_ms: int
    is_careless: bool
    may_come_late: bool

    def init(self, expected: ProducerIdAndEpoch = NO_PRODUCER) -> InitProducerId:
        """Return an InitProducerId: for a new producer, or to bump the epoch of `expected`."""
        return InitProducerId(
            transactional_id=self.transactional_id,
            api_version=INIT_VERSIONS[self.version],
            transaction_timeout_ms=self.timeout_ms,
            expected=expected,
        )

    def add(
        self, producer: ProducerIdAndEpoch, partitions: Iterable[TopicPartition]
    ) -> AddPartitions:
        """Return a request to add partitions to the transaction."""
        return AddPartitions(
            transactional_id=self.transactional_id,
            api_version=ADD_VERSIONS[self.version],
            producer=producer,
            partitions=frozenset(partitions),
        )

    def end(self, producer: ProducerIdAndEpoch, *, commits: bool) -> EndTransaction:
        """Return a request to end the transaction."""
        return EndTransaction(
            transactional_id=self.transactional_id,
            api_version=END_VERSIONS[self.version],
            producer=producer,
            commit=commits,
        )


def error_code_of(result: Result) -> ErrorCode:
    """Return the first error code of a result, or NONE."""
    match result:
        case AddPartitionsResult(partitions=partitions):
            return next(filter(None, partitions.values()), ErrorCode.NONE)
        case InitProducerIdResult() | EndTransactionResult():
            return result.error_code
        case ErrorCode():
            return result
