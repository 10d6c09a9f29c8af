"""A transaction coordinator over a log in memory; markers wait until the test answers them."""

from collections.abc import Iterable, Mapping
from typing import Any

from quorumlog.broker.coordination.core.effects import OwnEffect
from quorumlog.broker.coordination.core.events import BecameLeader
from quorumlog.broker.settings import BrokerSettings
from quorumlog.broker.transactions.core.coordinator import TransactionCoordinator
from quorumlog.broker.transactions.core.effects import AllocateProducerId, SendMarkers
from quorumlog.broker.transactions.core.events import MarkersWritten, ProducerIdAllocated
from quorumlog.broker.transactions.core.records import (
    TransactionMetadata,
    TransactionRecord,
    decode,
    encode,
)
from quorumlog.broker.transactions.core.requests import (
    NO_PRODUCER,
    AddOffsets,
    AddPartitions,
    EndTransaction,
    InitProducerId,
    ProducerIdAndEpoch,
    ProducerResult,
)
from quorumlog.broker.transactions.core.rules import SOUND, TransactionRules
from quorumlog.broker.transactions.core.states import TransactionState
from quorumlog.broker.transactions.core.transaction import Transaction
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch, TopicPartition
from quorumlog.wire.codec.records import Record, decode_batches, encode_batch
from tests.support.coordination.driven_shard import DrivenShard

SETTINGS = BrokerSettings(
    transaction_max_timeout_ms=60_000,
    transactional_id_expiration_ms=1_000_000,
    transaction_abort_timed_out_transaction_cleanup_interval_ms=1,
)
T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
OFFSETS = TopicPartition("__consumer_offsets", 7)
START_MS = 1_000_000


def init(
    expected: ProducerIdAndEpoch = NO_PRODUCER, *, name: str = "x", **changes: Any
) -> InitProducerId:
    values: dict[str, Any] = {"api_version": 5, "transaction_timeout_ms": 10_000, **changes}
    return InitProducerId(transactional_id=name, expected=expected, **values)


def add(
    producer: ProducerIdAndEpoch, *partitions: TopicPartition, name: str = "x", **changes: Any
) -> AddPartitions:
    values: dict[str, Any] = {"api_version": 3, "partitions": frozenset(partitions), **changes}
    return AddPartitions(transactional_id=name, producer=producer, **values)


def verify(producer: ProducerIdAndEpoch, *partitions: TopicPartition) -> AddPartitions:
    return add(producer, *partitions, api_version=5, verify_only=True)


def add_offsets(producer: ProducerIdAndEpoch, *, api_version: int = 4) -> AddOffsets:
    return AddOffsets(
        transactional_id="x", producer=producer, offsets_partition=OFFSETS, api_version=api_version
    )


def commit(
    producer: ProducerIdAndEpoch, *, api_version: int = 5, name: str = "x"
) -> EndTransaction:
    return EndTransaction(
        transactional_id=name, producer=producer, commit=True, api_version=api_version
    )


def abort(producer: ProducerIdAndEpoch, *, api_version: int = 5, name: str = "x") -> EndTransaction:
    return EndTransaction(
        transactional_id=name, producer=producer, commit=False, api_version=api_version
    )


def stored(**changes: Any) -> bytes:
    """Return a batch with one record of the id `x`: Empty, of producer 1001, unless changed."""
    values: dict[str, Any] = {
        "producer_id": 1001,
        "producer_epoch": 0,
        "transaction_timeout_ms": 10_000,
        "state": TransactionState.EMPTY,
        "last_update_ms": START_MS,
        **changes,
    }
    metadata = TransactionMetadata(**values)
    key, value = encode(TransactionRecord(transactional_id="x", metadata=metadata))
    return encode_batch([Record(0, START_MS, key, value, ())])


def records_of(batch: bytes) -> list[TransactionRecord]:
    return [
        decode(record.key or b"", record.value)
        for _, records in decode_batches(batch)
        for record in records
    ]


class Coordination(DrivenShard[TransactionCoordinator]):
    """The transactional ids of one partition, loaded.

    A producer id is there at once, unless `allocates` is False: then the test gives it.
    `markers`: the requested markers.
    """

    def __init__(
        self,
        *,
        transaction_version: int = 2,
        batches: Iterable[bytes] = (),
        now_ms: int = START_MS,
        leader_epoch: int = 1,
        last_producer_id: int = 1001,
        rules: TransactionRules = SOUND,
        settings: BrokerSettings = SETTINGS,
    ) -> None:
        self.settings = settings
        self.transaction_version, self.leader_epoch = transaction_version, leader_epoch
        self.rules = rules
        self.last_producer_id = last_producer_id
        self.allocates = True
        self.asked_for: list[AllocateProducerId] = []
        self.markers: list[SendMarkers] = []
        self._log: list[TransactionRecord] = []
        self._decoded = 0
        super().__init__(self.new, batches=batches, now_ms=now_ms)
        self.step(BecameLeader(leader_epoch=Epoch(leader_epoch)))
        self.load()

    def new(self) -> TransactionCoordinator:
        return TransactionCoordinator(self.settings, self.transaction_version, self.rules)

    def step(self, event: Any) -> None:
        super().step(event)
        own, self.own = self.own, []
        for effect in own:
            self.perform(effect)

    def perform(self, effect: OwnEffect) -> None:
        match effect:
            case SendMarkers():
                self.markers.append(effect)
            case AllocateProducerId():
                self.asked_for.append(effect)
                if self.allocates:
                    self.allocate()
            case _:
                raise AssertionError(effect)

    def allocate(self, error_code: ErrorCode = ErrorCode.NONE) -> None:
        """Let the oldest allocation end."""
        transactional_id = self.asked_for.pop(0).transactional_id
        producer_id = -1
        if error_code is ErrorCode.NONE:
            self.last_producer_id += 1
            producer_id = self.last_producer_id
        self.step(
            ProducerIdAllocated(
                transactional_id=transactional_id, producer_id=producer_id, error_code=error_code
            )
        )

    # --- Requests ---

    def answer(self, request: Any) -> Any:
        """Send a request, and commit the records that its response waits for."""
        request_id = self.ask(request)
        self.commit_writes()
        return self.replies[request_id]

    def begun(
        self, expected: ProducerIdAndEpoch = NO_PRODUCER, **changes: Any
    ) -> ProducerIdAndEpoch:
        """Return the producer of a successful InitProducerId."""
        result = self.answer(init(expected, **changes))
        assert isinstance(result, ProducerResult)
        assert result.error_code is ErrorCode.NONE, result
        return result.producer

    def opened(self, *partitions: TopicPartition, api_version: int = 5) -> ProducerIdAndEpoch:
        """Return a new producer with an open transaction."""
        producer = self.begun()
        self.added(producer, *(partitions or (T0,)), api_version=api_version)
        return producer

    def added(
        self, producer: ProducerIdAndEpoch, *partitions: TopicPartition, api_version: int = 5
    ) -> None:
        result = self.answer(add(producer, *partitions, api_version=api_version))
        assert set(result.partitions.values()) == {ErrorCode.NONE}, result

    def ended(self, request: EndTransaction) -> ProducerIdAndEpoch:
        """End a transaction and write its markers; return the new producer id and epoch."""
        result = self.answer(request)
        assert isinstance(result, ProducerResult)
        assert result.error_code is ErrorCode.NONE, result
        self.write_markers()
        return result.producer

    def error_of(self, request: Any) -> ErrorCode:
        """Return the one error code of the answer."""
        result = self.answer(request)
        if isinstance(result, ErrorCode):
            return result
        if isinstance(result, ProducerResult):
            return result.error_code
        [error_code] = set(result.partitions.values())
        assert isinstance(error_code, ErrorCode)
        return error_code

    # --- Markers ---

    def marked(
        self, sent: SendMarkers, errors: Mapping[TopicPartition, ErrorCode] | None = None
    ) -> None:
        """Answer some of the markers, or all of them by NONE."""
        self.step(
            MarkersWritten(
                transactional_id=sent.transactional_id,
                prepared_ms=sent.prepared_ms,
                coordinator_epoch=sent.coordinator_epoch,
                errors=dict.fromkeys(sent.partitions, ErrorCode.NONE) if errors is None else errors,
            )
        )

    def write_markers(self) -> None:
        """Write every marker, and commit the records that follow."""
        while self.markers:
            self.marked(self.markers.pop(0))
            self.commit_writes()
        self.commit_writes()

    # --- Looking ---

    @property
    def log(self) -> list[TransactionRecord]:
        """The committed records."""
        for batch in self.batches[self._decoded :]:
            self._log += records_of(batch)
        self._decoded = len(self.batches)
        return self._log

    @property
    def transaction(self) -> Transaction:
        """The id `x`."""
        return self.coordinator.transactions["x"]

    @property
    def state(self) -> TransactionState:
        return self.transaction.state

    def taken_over(self, *, now_ms: int | None = None) -> "Coordination":
        """Return the next leader's coordinator of the same log."""
        return Coordination(
            transaction_version=self.transaction_version,
            batches=self.batches,
            now_ms=self.now_ms if now_ms is None else now_ms,
            leader_epoch=self.leader_epoch + 1,
            last_producer_id=self.last_producer_id,
            rules=self.rules,
        )
