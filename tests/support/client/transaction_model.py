"""A dumb model of the brokers of a transactional producer: one coordinator, and leaders.

It follows Kafka's coordinator (KIP-98, KIP-360, KIP-890) with markers that are written at once.
Identities: (producer id, epoch); epochs are few, so that they run out.
"""

from dataclasses import dataclass, field

from quorumlog.client.core.batch import Batch, ProducerIdentity
from quorumlog.client.core.transaction_requests import (
    AddOffsets,
    AddPartitions,
    Answer,
    CommitOffsets,
    EndTransaction,
    FindCoordinator,
    InitProducerId,
    TransactionRequest,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

REFUSED_BEFORE = [  # a coordinator's errors that leave no trace
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NOT_COORDINATOR, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.ILLEGAL_GENERATION,
]  # fmt: skip
FATAL = [
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, ErrorCode.INVALID_TXN_STATE,
    ErrorCode.UNSUPPORTED_VERSION,
]  # fmt: skip
OF_BATCHES = [
    ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.INVALID_PRODUCER_EPOCH,
]  # fmt: skip
EPOCH_MAX = 2
WINDOW = 5
FRESH = ProducerIdentity(1, -1)
NONE, ONGOING, COMMITTED, ABORTED = "none", "ongoing", "committed", "aborted"


@dataclass(frozen=True)
class Entry:
    """A batch, as it was sent."""

    partition: TopicPartition
    identity: ProducerIdentity
    sequence: int
    values: tuple[int, ...]


@dataclass(eq=False)
class Sent:
    """A produce request."""

    batch: Batch
    entry: Entry


@dataclass
class Ended:
    """The promises about a transaction that is over."""

    values: set[int]
    was_committed: bool | None = None  # None: unknown
    commit_was_asked: bool = False


@dataclass
class Cluster:
    """`visible`: records at read_committed. `pending`: records of the open transaction."""

    is_implicit: bool
    producer_ids: int = 1
    identity: ProducerIdentity = FRESH
    last: ProducerIdentity | None = None  # before the last change that its producer asked for
    state: str = NONE
    partitions: set[TopicPartition] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    pending: list[Entry] = field(default_factory=list)
    pending_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    visible: dict[TopicPartition, list[int]] = field(default_factory=dict)
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    numbers: dict[TopicPartition, list[Entry]] = field(default_factory=dict)
    gaps: int = 0  # batches that were answered OUT_OF_ORDER_SEQUENCE_NUMBER

    @property
    def is_open(self) -> bool:
        return self.state == ONGOING

    # --- the coordinator ---

    def execute(self, request: TransactionRequest) -> Answer:
        match request:
            case InitProducerId():
                return self.initialize(request.identity)
            case EndTransaction():
                return self.end(request)
            case AddPartitions():
                code = self.check(request.identity)
                if code == ErrorCode.NONE:
                    self.state = ONGOING
                    self.partitions |= {*request.partitions}
                return Answer(partitions=dict.fromkeys(request.partitions, code))
            case AddOffsets():
                code = self.check(request.identity)
                if code == ErrorCode.NONE:
                    self.state = ONGOING
                    self.groups.add(request.group_id)
                return Answer(error_code=code)
            case CommitOffsets():
                code = self.commit_offsets(request)
                return Answer(partitions=dict.fromkeys(request.offsets, code))
            case _:
                raise AssertionError(request)

    def check(self, identity: ProducerIdentity) -> ErrorCode:
        if identity.producer_id != self.identity.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        is_own = identity == self.identity
        return ErrorCode.NONE if is_own else ErrorCode.PRODUCER_FENCED

    def raise_epoch(self, *, asked_for: bool) -> None:
        self.last = self.identity if asked_for else None
        if self.identity.producer_epoch >= EPOCH_MAX:
            self.producer_ids += 1
            self.identity = ProducerIdentity(self.producer_ids, 0)
        else:
            self.identity = self.identity._replace(producer_epoch=self.identity.producer_epoch + 1)

    def initialize(self, expected: ProducerIdentity | None) -> Answer:
        if expected is not None and expected == self.last:
            return Answer(identity=self.identity)  # its first answer was lost
        is_unknown = self.identity.producer_epoch < 0
        if expected is not None and expected != self.identity and not is_unknown:
            return Answer(error_code=ErrorCode.PRODUCER_FENCED)
        if self.state == ONGOING:
            self.time_out()
            return Answer(error_code=ErrorCode.CONCURRENT_TRANSACTIONS)
        self.state = NONE
        self.raise_epoch(asked_for=expected is not None)
        return Answer(identity=self.identity)

    def time_out(self) -> None:
        """Abort the open transaction in the next epoch, which fences its producer."""
        if self.state == ONGOING:
            self.raise_epoch(asked_for=False)
            self.finish(committed=False)

    def forget(self) -> None:
        """Lose the state of the transactional id; the next producer id is a new one."""
        if self.state == ONGOING:
            self.finish(committed=False)
        self.producer_ids += 1
        self.state, self.last = NONE, None
        self.identity = ProducerIdentity(self.producer_ids, -1)

    def finish(self, *, committed: bool) -> None:
        if committed:
            for entry in self.pending:
                self.visible.setdefault(entry.partition, []).extend(entry.values)
            self.offsets |= self.pending_offsets
        self.state = COMMITTED if committed else ABORTED
        for held in (self.partitions, self.groups, self.pending, self.pending_offsets):
            held.clear()

    def end(self, request: EndTransaction) -> Answer:
        was_same = self.state == (COMMITTED if request.committed else ABORTED)
        if self.is_implicit and request.identity == self.last and was_same:
            return Answer(identity=self.identity)
        code = self.check(request.identity)
        if code != ErrorCode.NONE:
            return Answer(error_code=code)
        is_empty_abort = self.is_implicit and not request.committed
        if self.state == ONGOING or is_empty_abort:
            self.finish(committed=request.committed)
            if self.is_implicit:
                self.raise_epoch(asked_for=True)
        elif not was_same:
            return Answer(error_code=ErrorCode.INVALID_TXN_STATE)
        return Answer(identity=self.identity if self.is_implicit else None)

    def commit_offsets(self, request: CommitOffsets) -> ErrorCode:
        code = self.check(request.identity)
        if code != ErrorCode.NONE:
            return code
        if self.is_implicit:
            self.state = ONGOING
        elif self.state != ONGOING or request.group.group_id not in self.groups:
            return ErrorCode.INVALID_TXN_STATE
        self.pending_offsets |= {name: place.offset for name, place in request.offsets.items()}
        return ErrorCode.NONE

    # --- the leader of every partition ---

    def produce(self, entry: Entry) -> ErrorCode:
        if entry.identity != self.identity:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if not self.is_implicit and entry.partition not in self.partitions:
            return ErrorCode.INVALID_TXN_STATE
        known = self.numbers.setdefault(entry.partition, [])
        own = [one for one in known if one.identity == entry.identity]
        if entry in own[-WINDOW:]:
            return ErrorCode.NONE
        if entry.sequence != (own[-1].sequence + len(own[-1].values) if own else 0):
            self.gaps += 1
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        self.state = ONGOING
        known.append(entry)
        self.pending.append(entry)
        return ErrorCode.NONE


def fits(request: TransactionRequest, code: ErrorCode) -> bool:
    """Return whether a coordinator may answer this request with this error."""
    if code == ErrorCode.ILLEGAL_GENERATION:
        return isinstance(request, CommitOffsets)
    if code == ErrorCode.TRANSACTION_ABORTABLE:
        is_abort = isinstance(request, EndTransaction) and not request.committed
        return not is_abort and not isinstance(request, FindCoordinator | InitProducerId)
    return True
