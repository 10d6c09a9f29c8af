"""The requests of producers and brokers to a transaction coordinator, and the results.

Each request builds its own refusal, so that the code that routes requests needs no table, and
translates error codes into codes of the sender's API version.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Generic, NamedTuple, TypeVar

from quorumlog.broker.transactions.core.states import TransactionState
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_EPOCH, NO_PRODUCER_ID, TopicPartition

R_co = TypeVar("R_co", covariant=True)

# The append was refused: these records are not in the log. Clients get the codes that Kafka sends.
NOT_WRITTEN: Final[Mapping[ErrorCode, ErrorCode]] = {
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}

EPOCH_BUMP: Final = 2  # the transaction.version whose clients get a new epoch with every EndTxn


class ProducerIdAndEpoch(NamedTuple):
    """A producer's identity. The epoch has 16 bits: `EPOCH_MAX` is its last value."""

    producer_id: int
    epoch: int


NO_PRODUCER: Final = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_EPOCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRequest(Generic[R_co]):
    """A request about one transactional id; its result is an `R_co`."""

    transactional_id: str
    api_version: int

    PRODUCER_FENCED_SINCE: ClassVar[int]  # the first API version with this error code
    TRANSACTION_ABORTABLE_SINCE: ClassVar[int]

    def refuse(self, error_code: ErrorCode) -> R_co:
        """Return a result that carries only `error_code`, translated for the sender's version."""
        raise NotImplementedError

    def worded(self, error_code: ErrorCode) -> ErrorCode:
        """Translate an error code for the sender's API version (KIP-588, KIP-890)."""
        if error_code is ErrorCode.PRODUCER_FENCED:
            is_known = self.api_version >= self.PRODUCER_FENCED_SINCE
            return error_code if is_known else ErrorCode.INVALID_PRODUCER_EPOCH
        if error_code is ErrorCode.TRANSACTION_ABORTABLE:
            is_known = self.api_version >= self.TRANSACTION_ABORTABLE_SINCE
            return error_code if is_known else ErrorCode.INVALID_TXN_STATE
        return error_code


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerResult:
    """The producer id and epoch that the producer must use from now on; EndTxn: v5 on."""

    error_code: ErrorCode
    producer: ProducerIdAndEpoch = NO_PRODUCER


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerId(TransactionRequest[ProducerResult]):
    """InitProducerId: a producer begins to use the id, and fences earlier producers.

    `expected`: the id and epoch of a producer that recovers from an error (v3 on, KIP-360). It
    gets a new epoch only if no other producer has begun since.
    """

    transaction_timeout_ms: int
    expected: ProducerIdAndEpoch = NO_PRODUCER
    enable_2pc: bool = False  # v6 (KIP-939), which is not served
    keep_prepared: bool = False

    PRODUCER_FENCED_SINCE = 4
    TRANSACTION_ABORTABLE_SINCE = 5

    def refuse(self, error_code: ErrorCode) -> ProducerResult:
        """Refuse without a producer id."""
        return ProducerResult(error_code=self.worded(error_code))


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsResult:
    """The outcome for each partition of the request."""

    partitions: Mapping[TopicPartition, ErrorCode]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions(TransactionRequest[AddPartitionsResult]):
    """AddPartitionsToTxn for one transactional id.

    Clients send v0 to v3. v4 and v5 come from brokers that lead the partitions, for several ids at
    once; the handler sends one request for each. `verify_only`: only check that the partitions
    belong to the transaction; else add them, for a client of transaction.version 2 (KIP-890).
    """

    producer: ProducerIdAndEpoch
    partitions: frozenset[TopicPartition]
    verify_only: bool = False

    PRODUCER_FENCED_SINCE = 2
    TRANSACTION_ABORTABLE_SINCE = 5

    def refuse(self, error_code: ErrorCode) -> AddPartitionsResult:
        """Refuse all partitions."""
        return AddPartitionsResult(
            partitions=dict.fromkeys(sorted(self.partitions), self.worded(error_code))
        )

    @property
    def client_transaction_version(self) -> int:
        """The transaction.version of the client."""
        return EPOCH_BUMP if self.api_version >= 4 else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOffsets(TransactionRequest[ErrorCode]):
    """AddOffsetsToTxn. `offsets_partition`: the group's partition of `__consumer_offsets`."""

    producer: ProducerIdAndEpoch
    offsets_partition: TopicPartition

    PRODUCER_FENCED_SINCE = 2
    TRANSACTION_ABORTABLE_SINCE = 4

    def refuse(self, error_code: ErrorCode) -> ErrorCode:
        """Return the error code, which is the whole result."""
        return self.worded(error_code)

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partition to add."""
        return frozenset({self.offsets_partition})

    @property
    def client_transaction_version(self) -> int:
        """The transaction.version of the client: clients of version 2 do not send this request."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction(TransactionRequest[ProducerResult]):
    """EndTxn. v5 comes from clients of transaction.version 2: the epoch is bumped."""

    producer: ProducerIdAndEpoch
    commit: bool

    PRODUCER_FENCED_SINCE = 2
    TRANSACTION_ABORTABLE_SINCE = 4

    def refuse(self, error_code: ErrorCode) -> ProducerResult:
        """Refuse without a producer id."""
        return ProducerResult(error_code=self.worded(error_code))

    @property
    def client_transaction_version(self) -> int:
        """The transaction.version of the client."""
        return EPOCH_BUMP if self.api_version >= 5 else 0


Request = InitProducerId | AddPartitions | AddOffsets | EndTransaction
Result = ProducerResult | AddPartitionsResult | ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """The result of DescribeTransactions, for one transactional id."""

    error_code: ErrorCode
    transactional_id: str
    state: TransactionState | None = None
    producer: ProducerIdAndEpoch = NO_PRODUCER
    transaction_timeout_ms: int = 0
    start_ms: int = 0
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionFilter:
    """The filter of ListTransactions; an empty set, -1 or None passes every transaction.

    `duration_ms` (v1, KIP-994): only transactions that began more than this ago. `matches_id` (v2,
    KIP-1152): whether the whole id matches the pattern of the request.
    """

    states: frozenset[str] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    duration_ms: int = -1
    matches_id: Callable[[str], bool] | None = None

    @property
    def unknown_states(self) -> list[str]:
        """The requested states that do not exist; the response lists them."""
        known = {state.value for state in TransactionState}
        return sorted(self.states - known)
