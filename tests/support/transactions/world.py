"""Clients, a coordinator that may fail over, a network for markers, and partitions.

The oracle of whole nodes reads the committed log, the partitions, the requests and the answers; its
rules are in `chaos/simulation/oracles/transactions.py`. Here the order of all events is certain, so
more must hold, always:
  a. Every answer has an error code that the KIPs permit in the committed state: `permitted`.
  b. The coordinator is what a replay of its log gives.
  c. Markers are of the decision under way. A complete transaction has left no open data.
  d. Every busy transactional id has an event to come, or a deadline.
  e. A request waits only while its id is busy, and an addition only for the time of its setting.
At the end, all that was begun ends, and each id can begin, add and commit again.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Final

from quorumlog.broker.transactions.core.effects import SendMarkers
from quorumlog.broker.transactions.core.events import (
    Event,
    PartitionsDeleted,
    TransactionVersionChanged,
)
from quorumlog.broker.transactions.core.records import (
    TransactionMetadata,
    TransactionRecord,
    decode,
    encode,
)
from quorumlog.broker.transactions.core.requests import (
    NO_PRODUCER,
    AddPartitions,
    InitProducerId,
    ProducerIdAndEpoch,
)
from quorumlog.broker.transactions.core.rules import SOUND, TransactionRules
from quorumlog.broker.transactions.core.states import (
    PREPARED,
    WITHOUT_TRANSACTION,
    TransactionState,
)
from quorumlog.chaos.simulation.oracles.exchanges import Exchange
from quorumlog.chaos.simulation.oracles.transactions import Place, Transactions
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.records import decode_batches
from tests.support.transactions.answers import FINE, WAIT, exchange_of, permitted, response_of
from tests.support.transactions.coordination import (
    SETTINGS,
    Coordination,
    add,
    commit,
    init,
    records_of,
    stored,
    verify,
)
from tests.support.transactions.network import Network

PARTITIONS: Final = tuple(TopicPartition("t", index) for index in range(3))
_UNAVAILABLE: Final = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


@dataclass
class Client:
    """One producer. `version`: its transaction.version."""

    name: str  # its transactional id
    version: int
    producer: ProducerIdAndEpoch = NO_PRODUCER


@dataclass
class Asked:
    """A request without an answer. `client`: receives the answer; None: a copy, or a stranger's."""

    request: Any
    exchange: Exchange
    client: Client | None
    since_ms: int
    permitted: set[ErrorCode]
    has_waited: bool = False  # for the end of another change


@dataclass
class World:
    """`level`, `epoch` (-1: no id): at the beginning. `versions`: of the clients of id `x`.

    `past`: the clients' requests. `newest`: committed records, by id. `excused`: the ids whose
    decisions need no marker in a partition, because it was deleted meanwhile.
    """

    level: int
    epoch: int
    versions: tuple[int, ...]
    rules: TransactionRules = SOUND
    asked: dict[int, Asked] = field(default_factory=dict)
    past: list[tuple[Client, Any]] = field(default_factory=list)
    newest: dict[str, TransactionRecord] = field(default_factory=dict)
    excused: dict[TopicPartition, set[str]] = field(default_factory=dict)
    batches_read: int = 0

    def __post_init__(self) -> None:
        batches = [stored(producer_epoch=self.epoch)] if self.epoch >= 0 else []
        self.clients = [Client("x", version) for version in self.versions] + [Client("y", 2)]
        expiration_ms = SETTINGS.transactional_id_expiration_ms
        self.oracle = Transactions(self.is_whole, self.violated, expiration_ms)
        self.network = Network(PARTITIONS, self.oracle)
        self.coordination = Coordination(
            transaction_version=self.level, batches=batches, rules=self.rules
        )
        self.coordination.allocates = False
        self.look()

    def violated(self, rule: str) -> None:
        raise AssertionError(rule)

    def is_whole(self, at: TopicPartition) -> bool:
        """Whether a partition has each marker that was sent to its name."""
        return at in self.network.ends and not self.excused.get(at)

    def state(self, name: str) -> TransactionMetadata | None:
        return self.oracle.states.get(name)

    def is_current(self, client: Client) -> bool:
        """Whether no other producer has replaced it."""
        state = self.state(client.name)
        return state is not None and client.producer == (state.producer_id, state.producer_epoch)

    def is_busy(self, name: str) -> bool:
        state = self.state(name)
        written = (one for write in self.coordination.writes for one in records_of(write.records))
        return (
            (state is not None and state.state in PREPARED)
            or any(one.transactional_id == name for one in self.coordination.asked_for)
            or any(one.transactional_id == name for one in written)
        )

    # --- requests ---

    def ask(self, client: Client, request: Any) -> None:
        self.past.append((client, request))
        self.send(request, client)

    def send(self, request: Any, client: Client | None = None, client_id: str = "client") -> None:
        """Send a request; a copy or a stranger's if no client receives the answer."""
        name, request_id = request.transactional_id, self.coordination.last_request_id + 1
        is_busy = self.is_busy(name)
        codes = permitted(request, self.state(name), is_busy=is_busy)
        exchange = exchange_of(request, client_id)
        if not isinstance(request, AddPartitions):
            self.oracle.asked(exchange)
        asked = Asked(request, exchange, client, self.coordination.now_ms, codes)
        self.asked[request_id] = asked
        self.coordination.ask(request)
        is_fence = codes == {WAIT} and not is_busy
        assert not (is_fence and request_id in self.coordination.replies), f"a: no fence: {request}"
        self.look()
        asked.has_waited = is_busy

    def produce(self, client: Client, at: TopicPartition) -> None:
        """Have the leader verify the transaction; it appends if the partition was added."""
        if at in self.network.ends:
            self.send(replace(verify(client.producer, at), transactional_id=client.name))

    def answered(self, asked: Asked, result: Any) -> None:
        request, client, exchange = asked.request, asked.client, asked.exchange
        state, codes = self.state(request.transactional_id), asked.permitted
        if asked.has_waited:
            codes = permitted(request, state, is_busy=False) | {WAIT}
        is_addition = isinstance(request, AddPartitions)
        [error_code] = {*result.partitions.values()} if is_addition else [result.error_code]
        assert error_code in codes | _UNAVAILABLE, f"a: {error_code.name} for {request} in {state}"
        exchange.response = response_of(request, result)
        if isinstance(request, AddPartitions):
            self.oracle.confirmed(exchange)
            if request.verify_only and error_code is FINE:
                [at] = request.partitions
                self.network.produce(at, request.producer)
            return
        is_init = isinstance(request, InitProducerId)
        (self.oracle.initialized if is_init else self.oracle.ended)(exchange)
        if error_code is FINE and (is_init or request.client_transaction_version == 2):
            assert state is not None
            following = state.producer_id, state.producer_epoch
            if state.next_producer_id != NO_PRODUCER.producer_id:
                following = state.next_producer_id, 0
            assert result.producer == following, f"a: {result.producer} in {state}"
            if client is not None:
                client.producer = result.producer
        else:
            assert result.producer == NO_PRODUCER

    # --- acts of the coordinator ---

    def look(self) -> None:
        """Check all events since the last look."""
        self.read_log()
        for sent in self.coordination.markers:
            self.sent(sent)
        self.coordination.markers.clear()
        self.oracle.look()
        for names in self.excused.values():
            names -= {name for name in names if not self.is_decided(name)}
        for request_id in sorted(self.asked.keys() & self.coordination.replies.keys()):
            self.answered(self.asked.pop(request_id), self.coordination.replies[request_id])

    def is_decided(self, name: str) -> bool:
        state = self.state(name)
        return state is not None and state.state in PREPARED

    def read_log(self) -> None:
        for batch in self.coordination.batches[self.batches_read :]:
            for _, records in decode_batches(batch):
                for one in records:
                    self.read(decode(one.key or b"", one.value), one.timestamp_ms)
        self.batches_read = len(self.coordination.batches)

    def read(self, record: TransactionRecord, written_ms: int) -> None:
        name = record.transactional_id
        before, was_decided = self.state(name), self.is_decided(name)
        self.oracle.read(record, written_ms)
        self.newest[name] = record
        if before is not None and was_decided and not self.is_decided(name):
            for at in before.partitions:
                place = self.oracle.places[at].get(before.producer_id, Place())
                assert place.first_offset < 0, f"c: complete, and data in {at} is open"

    def sent(self, sent: SendMarkers) -> None:
        state = self.state(sent.transactional_id)
        assert state is not None, f"c: {sent} for no transaction"
        assert state.state in PREPARED, f"c: {sent} in {state}"
        assert {*sent.partitions} <= {*state.partitions}, f"c: {sent} in {state}"
        assert sent.coordinator_epoch == self.coordination.leader_epoch
        assert sent.transaction_version == (2 if state.client_transaction_version == 2 else 0)
        self.network.send(sent)

    def end_write(self, *, is_refused: bool = False) -> None:
        if self.coordination.writes:
            end = self.coordination.fail_write if is_refused else self.coordination.commit_write
            end()
            self.look()

    def allocate(self, *, fails: bool = False) -> None:
        if self.coordination.asked_for:
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if fails else FINE
            self.coordination.allocate(code)
            self.look()

    def change_coordinator(self, survivors: int, *, skew_ms: int, is_same: bool) -> None:
        """The outcome of all writes is unknown to it; the first `survivors` are in the log."""
        coordination = self.coordination
        for write in coordination.writes[:survivors]:
            coordination.batches.append(write.records)
        self.network.generation += 1
        if is_same and coordination.writes:
            coordination.asked_for.clear()
            coordination.end_write(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            coordination.writes.clear()
            self.network.deliver_older()
            coordination.load()
        else:
            successor = coordination.taken_over(now_ms=coordination.now_ms + skew_ms)
            successor.allocates = False
            successor.last_request_id = coordination.last_request_id
            self.asked.clear()
            self.coordination = successor
        self.look()

    # --- markers, time ---

    def deliver(self, index: int, fate: str) -> None:
        """Let a marker arrive, or not; the coordinator learns the outcome, or not."""
        for event in self.network.arrive(index, fate):
            self.step(event)

    def answer(self, index: int) -> None:
        """Let an answer arrive, at the coordinator that is there now."""
        self.step(self.network.answer(index))

    def step(self, event: Event) -> None:
        if isinstance(event, PartitionsDeleted):  # no decision until now needs a marker there
            decided = {name for name in self.oracle.states if self.is_decided(name)}
            for at in event.partitions:
                self.excused[at] = self.excused.get(at, set()) | decided
        self.coordination.step(event)
        self.look()

    def delete_partition(self, at: TopicPartition) -> None:
        """Delete it, or make another of that name."""
        if at in self.network.ends:
            self.network.delete(at)
            self.step(PartitionsDeleted(partitions=frozenset({at})))
        else:
            self.network.ends[at] = 0

    def let_time_pass(self, elapsed_ms: int) -> None:
        self.coordination.tick(elapsed_ms)
        self.look()

    def set_level(self, level: int) -> None:
        """Change `transaction.version`."""
        self.coordination.transaction_version = level
        self.coordination.step(TransactionVersionChanged(transaction_version=level))

    def settle(self) -> None:
        """Let all that is under way end well, except answers to an earlier coordinator."""
        while self.coordination.asked_for:
            self.allocate()
        while self.coordination.writes:
            self.end_write()
        while self.network.messages:
            self.deliver(0, "written")
        while (index := self.network.first_in_time()) is not None:
            self.answer(index)
        while self.coordination.writes:
            self.end_write()

    # --- invariants ---

    def check(self) -> None:
        live = self.coordination.coordinator.transactions
        known = {name for name, one in live.items() if not one.is_new}
        assert known == self.oracle.states.keys(), "b"
        for name in known:
            written = replace(self.newest[name], metadata=live[name].metadata)
            assert encode(written) == encode(self.newest[name]), f"b: {name} is not as in the log"
        awaited = {one.transactional_id for one in self.coordination.asked_for}
        for write in self.coordination.writes:
            awaited |= {one.transactional_id for one in records_of(write.records)}
        for asked in self.asked.values():
            request = asked.request
            assert self.is_busy(request.transactional_id), f"e: nothing ends the wait of {request}"
            if asked.has_waited:
                assert isinstance(request, AddPartitions), f"e: {request}"
                assert request.client_transaction_version == 2, f"e: {request}"
                waited_ms = self.coordination.now_ms - asked.since_ms
                is_late = waited_ms >= SETTINGS.add_partitions_to_txn_retry_backoff_ms
                assert not is_late or request.transactional_id in awaited, f"e: {request} is late"
        deadlines = self.coordination.coordinator._deadlines
        awaited |= self.network.awaited()
        for name, one in live.items():
            assert not one.is_busy or name in awaited or name in deadlines, f"d: {name}"

    def heal(self) -> None:
        """Everything that was begun ends, and all can begin anew."""
        for _ in range(20):
            self.settle()
            while self.network.answers:
                self.answer(0)
            self.let_time_pass(1000)
        while self.network.late:
            self.network.deliver_late()
        assert not self.asked, "every request is answered"
        self.check()
        for name, state in self.oracle.states.items():
            assert state.state in WITHOUT_TRANSACTION, f"{name}: {state} has no end"
        for at, places in self.oracle.places.items():
            still_open = [one for one in places.values() if one.first_offset >= 0]
            assert not still_open, f"c: {still_open} in {at} is open for ever"
        for client in (self.clients[0], self.clients[-1]):
            self.begin_anew(client)

    def begin_anew(self, client: Client) -> None:
        version = 5 if client.version == 2 else 3
        name, at = client.name, PARTITIONS[0]
        self.ask(client, init(name=name))
        self.settle()
        self.ask(client, add(client.producer, at, name=name, api_version=version))
        self.settle()
        assert self.oracle.states[name].partitions == (at,), f"{client} has added no partition"
        end_version = 5 if client.version == 2 else 4
        self.ask(client, commit(client.producer, name=name, api_version=end_version))
        self.settle()
        assert self.oracle.states[name].state is TransactionState.COMPLETE_COMMIT
