"""A transactional producer and a model of its cluster, whose events come in any order."""

from collections.abc import Callable
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from quorumlog.client.core.accumulator import Accumulator, BatchAnswer
from quorumlog.client.core.batch import Batch, BatchState, checked_record_size
from quorumlog.client.core.metadata_cache import Leader
from quorumlog.client.core.transaction import Outcome
from quorumlog.client.core.transaction_attempts import TransactionAttempts
from quorumlog.client.core.transaction_requests import (
    Abilities,
    Answer,
    CommitOffsets,
    Dispatch,
    EndTransaction,
    FindCoordinator,
    InitProducerId,
    TransactionRequest,
)
from quorumlog.client.core.transactions import (
    COMMIT,
    TransactionBatches,
    Transactions,
    TransactionState,
)
from quorumlog.client.errors import KafkaError, TransactionError
from quorumlog.client.records import GroupMetadata, OffsetAndMetadata
from quorumlog.client.settings import ProducerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from tests.support.client.transaction_model import (
    FATAL,
    OF_BATCHES,
    REFUSED_BEFORE,
    Cluster,
    Ended,
    Entry,
    Sent,
    fits,
)

PARTITIONS = [TopicPartition("t", index) for index in range(2)]
SOURCE = TopicPartition("source", 0)
GROUP = GroupMetadata("g", 1, "m", None)
BROKERS = (1, 2)
LEADER = Leader(7, 0)


class AnySchedule(RuleBasedStateMachine):
    transactions_class: ClassVar[type[Transactions]] = Transactions
    attempts_class: ClassVar[type[TransactionAttempts]] = TransactionAttempts
    batches_class: ClassVar[type[TransactionBatches]] = TransactionBatches
    accumulator_class: ClassVar[type[Accumulator]] = Accumulator

    @initialize(is_implicit=st.booleans())
    def start(self, is_implicit: bool) -> None:
        settings = ProducerSettings(
            bootstrap_servers="x:1",
            transactional_id="tx",
            linger_ms=0,
            batch_size=110,  # two records
            request_timeout_ms=100,
            delivery_timeout_ms=2_000,
        )
        self.cluster = Cluster(is_implicit)
        self.accumulator = self.accumulator_class(settings)
        self.transactions = self.transactions_class(settings)
        self.attempts = self.attempts_class(settings, self.transactions)
        self.batches = self.batches_class(self.transactions, self.accumulator, self)
        self.now_ms = 0.0
        self.value = 0
        self.coordinator = 1
        self.asked: list[Dispatch] = []
        self.sent: list[Sent] = []
        self.late: list[TransactionRequest | Entry] = []
        self.old: list[tuple[Dispatch, Answer]] = []
        self.calls: list[tuple[int, Outcome]] = []
        self.history: dict[int, Ended] = {}
        self.is_disturbed = False  # the coordinator, or another producer, has ended our epoch
        self.was_refused = False  # for good
        self.may_have_gaps = False  # in the current transaction
        self.was_forgotten = False  # the producer id, during it
        self.wait_for(self.transactions.initialize())

    # --- what the accumulator asks ---

    def leader(self, topic_partition: TopicPartition) -> Leader | None:
        return LEADER

    def has_room(self, broker_id: int) -> bool:
        return len(self.sent) < 5

    # --- the driver ---

    def done(self, batches: list[Batch]) -> None:
        self.may_have_gaps |= any(batch.error is not None for batch in batches)
        self.batches.handle_done(batches)

    @rule()
    def pump(self) -> None:
        is_dead = self.transactions.state is TransactionState.FATAL_ERROR
        self.done(self.accumulator.expire(self.now_ms))
        self.done(self.batches.sweep())
        is_quiet = self.batches.is_empty and not self.sent
        dispatch = self.attempts.next(self.now_ms, is_quiet=is_quiet)
        if dispatch is not None:
            assert not is_dead, "asked after a fatal error"
            if isinstance(dispatch.request, EndTransaction):
                assert is_quiet, "EndTxn while a batch is in flight"
            self.asked.append(dispatch)
        while drained := self.accumulator.drain(self.now_ms, self.batches).by_broker:
            assert not is_dead, "sent after a fatal error"
            for batch in drained[LEADER.broker_id]:
                self.note_sent(batch)
        self.settle()

    def note_sent(self, batch: Batch) -> None:
        name = batch.topic_partition
        assert batch.identity is not None
        is_added = self.cluster.is_implicit or name in self.cluster.partitions
        is_excused = self.is_disturbed or self.was_forgotten
        assert is_added or is_excused, "a batch of a partition that was not added"
        values = tuple(int(fields[3] or b"") for fields in batch.records)
        entry = Entry(name, batch.identity, batch.base_sequence, values)
        self.sent.append(Sent(batch, entry))

    def wait_for(self, outcome: Outcome) -> None:
        self.calls.append((self.transactions.number, outcome))
        self.pump()

    def settle(self) -> None:
        """Pass the results of ended calls to their callers."""
        for number, outcome in [call for call in self.calls if call[1].is_done]:
            self.calls.remove((number, outcome))
            error = self.transactions.claim(outcome)
            ended = self.history.get(number)
            if ended is None or outcome.operation.startswith("send"):
                continue
            if error is None:
                is_commit = outcome.operation == COMMIT
                assert ended.was_committed in {None, is_commit}, "it was said to end otherwise"
                ended.was_committed = is_commit
                assert self.accumulator.buffered_bytes == 0
            elif error.definite and outcome.operation == COMMIT:
                ended.was_committed = False

    # --- the user ---

    def call(self, work: Callable[[], Outcome | None]) -> None:
        """A call that does not fit is refused, and changes nothing."""
        try:
            outcome = work()
        except (RuntimeError, TransactionError):
            return
        if outcome is not None and all(outcome is not one for _, one in self.calls):
            self.wait_for(outcome)

    @rule()
    def begin(self) -> None:
        def work() -> None:
            self.transactions.begin()
            self.may_have_gaps = self.was_forgotten = False
            self.history[self.transactions.number] = Ended(set())

        self.call(work)

    @rule(count=st.integers(1, 4), index=st.integers(0, 1))
    def send(self, count: int, index: int) -> None:
        def work() -> None:
            queue = self.accumulator.queue(PARTITIONS[index])
            for _ in range(count):
                number = self.transactions.ticket()
                self.transactions.admit(number, PARTITIONS[index])
                self.value += 1
                value = b"%d" % self.value
                size = checked_record_size(None, value, ())
                self.accumulator.append(self.now_ms, queue, (0, None, value, ()), size)
                self.history[number].values.add(self.value)

        self.call(work)
        self.pump()

    @rule(offset=st.integers(0, 9))
    def send_offsets(self, offset: int) -> None:
        places = {SOURCE: OffsetAndMetadata(offset)}
        self.call(lambda: self.transactions.send_offsets(places, GROUP))

    @rule()
    def commit(self) -> None:
        def work() -> Outcome:
            outcome = self.transactions.commit()
            self.accumulator.flushing = True
            self.history[self.transactions.number].commit_was_asked = True
            return outcome

        self.call(work)

    @rule()
    def abort(self) -> None:
        self.call(self.transactions.abort)

    # --- coordinators ---

    @rule(fate=st.sampled_from(["answered", "lost", "lost after", "late", "unsent"]))
    def answer(self, fate: str = "answered") -> None:
        if not self.asked:
            return
        dispatch = self.asked.pop(0)
        is_executed = fate in {"answered", "lost after"}
        answer = self.execute(dispatch) if is_executed else None
        if answer is not None and fate == "answered":
            self.old.append((dispatch, answer))
            self.attempts.handle_answer(self.now_ms, dispatch, answer, 0.5)
        else:
            if fate == "late" and not isinstance(dispatch.request, FindCoordinator):
                self.late.append(dispatch.request)
            lost = KafkaError(ErrorCode.NETWORK_EXCEPTION, fate, definite=fate == "unsent")
            self.attempts.handle_lost(self.now_ms, dispatch, lost, 0.5)
        self.pump()

    def execute(self, dispatch: Dispatch) -> Answer:
        request = dispatch.request
        if isinstance(request, FindCoordinator):
            abilities = Abilities(recovers=True, is_implicit=self.cluster.is_implicit)
            return Answer(coordinator_id=self.coordinator, abilities=abilities)
        if dispatch.broker_id != self.coordinator:
            return self.refused(request, ErrorCode.NOT_COORDINATOR)
        return self.cluster.execute(request)

    def refused(self, request: TransactionRequest, code: ErrorCode) -> Answer:
        if isinstance(request, CommitOffsets):
            return Answer(partitions=dict.fromkeys(request.offsets, code))
        return Answer(error_code=code)

    @rule(code=st.sampled_from(REFUSED_BEFORE))
    def refuse(self, code: ErrorCode) -> None:
        if self.asked and fits(self.asked[0].request, code):
            dispatch = self.asked.pop(0)
            is_end = isinstance(dispatch.request, EndTransaction)
            self.was_refused |= is_end and code == ErrorCode.TRANSACTION_ABORTABLE
            answer = self.refused(dispatch.request, code)
            self.attempts.handle_answer(self.now_ms, dispatch, answer, 0.5)
            self.pump()

    @rule(code=st.sampled_from(FATAL))
    def refuse_for_good(self, code: ErrorCode) -> None:
        self.was_refused |= bool(self.asked)
        self.refuse(code=code)

    @rule(code=st.sampled_from([ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR]))
    def execute_and_refuse(self, code: ErrorCode) -> None:
        """The coordinator is deposed between append and answer."""
        if self.asked and not isinstance(self.asked[0].request, FindCoordinator):
            self.execute(self.asked[0])
            self.refuse(code=code)

    @rule(index=st.integers(0, 99))
    def repeat_an_old_answer(self, index: int) -> None:
        if self.old:
            self.attempts.handle_answer(self.now_ms, *self.old[index % len(self.old)], 0.5)
            self.pump()

    @rule(index=st.integers(0, 99))
    def execute_late(self, index: int) -> None:
        if not self.late:
            return
        request = self.late.pop(index % len(self.late))
        if isinstance(request, Entry):
            self.cluster.produce(request)
            return
        if isinstance(request, InitProducerId) and request.identity is None:
            self.is_disturbed = True  # it ends the epoch that its repetition has given
        was_open = self.cluster.is_open
        self.cluster.execute(request)
        # Before KIP-890, a late AddPartitionsToTxn begins what its producer does not know of.
        self.is_disturbed |= self.cluster.is_open and not was_open

    @rule()
    def move(self) -> None:
        self.coordinator = 3 - self.coordinator

    @rule()
    def time_out(self) -> None:
        self.is_disturbed = True
        self.cluster.time_out()

    @rule()
    def take_over(self) -> None:
        self.is_disturbed = True
        if self.cluster.initialize(None).error_code != ErrorCode.NONE:
            self.cluster.initialize(None)

    @rule()
    def forget(self) -> None:
        """The coordinator loses the producer id, as when it has expired (KIP-360).

        If its next answer is lost, it takes the repeated question for that of another producer.
        """
        self.was_refused = True
        self.was_forgotten = self.may_have_gaps = True
        self.cluster.forget()

    # --- leaders ---

    @rule(
        index=st.integers(0, 4),
        fate=st.sampled_from(["answered", "answered", "lost", "lost after", "late", "unsent"]),
    )
    def produce(self, index: int, fate: str = "answered") -> None:
        if not self.sent:
            return
        sent = self.sent.pop(index % len(self.sent))
        code = ErrorCode.NONE
        if fate in {"answered", "lost after"}:
            gaps = self.cluster.gaps
            code = self.cluster.produce(sent.entry)
            is_excused = self.may_have_gaps or self.is_disturbed
            assert gaps == self.cluster.gaps or is_excused or index, "numbers with a gap"
        self.may_have_gaps |= fate != "answered" or code != ErrorCode.NONE
        if fate == "answered":
            self.answer_batch(sent, code)
            return
        if fate == "late":
            self.late.append(sent.entry)
        if self.accumulator.handle_lost(
            self.now_ms, sent.batch, written=fate != "unsent", message=fate, random_fraction=0.5
        ):
            self.done([sent.batch])
        self.pump()

    @rule(code=st.sampled_from(OF_BATCHES))
    def refuse_batch(self, code: ErrorCode) -> None:
        if self.sent:
            self.may_have_gaps = True
            self.answer_batch(self.sent.pop(0), code)

    def answer_batch(self, sent: Sent, code: ErrorCode) -> None:
        answer = BatchAnswer(code)
        if self.accumulator.handle_answer(self.now_ms, sent.batch, answer, 0.5):
            self.done([sent.batch])
        self.pump()

    @rule(elapsed_ms=st.sampled_from((10, 60, 150, 1_900)))
    def wait(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms
        self.pump()

    # --- what must hold ---

    @invariant()
    def the_accumulator_is_consistent(self) -> None:
        self.accumulator.check_invariants()

    @invariant()
    def a_transaction_is_visible_as_it_was_said_to_end(self) -> None:
        there: set[int] = set()
        for values in self.cluster.visible.values():
            assert values == sorted(set(values)), "duplicate or out of order"
            there |= {*values}
        for number, ended in self.history.items():
            shown = ended.values & there
            assert shown in (set(), ended.values), f"{number} is visible in part"
            assert not shown or ended.commit_was_asked, f"{number} is visible, and not committed"
            if ended.was_committed is not None and ended.values:
                assert bool(shown) is ended.was_committed, f"{number} ended otherwise"

    def teardown(self) -> None:
        """Heal: what is open ends, and the next transaction commits, or the producer says no."""
        transactions = self.transactions
        for last in (False, True):
            if transactions.state is TransactionState.READY and last:
                self.commit()  # a caller that gave up asks again
                self.begin()
                self.send(count=3, index=0)
            for _ in range(200):
                self.now_ms += 5
                while self.late:
                    self.execute_late(index=0)
                self.produce(index=0)
                self.answer()
                self.pump()
                if transactions.state in {TransactionState.IN_TRANSACTION}:
                    self.commit()
                elif transactions.state is TransactionState.ABORTABLE_ERROR:
                    self.abort()
                if transactions.state in {TransactionState.READY, TransactionState.FATAL_ERROR}:
                    break
            is_ready = transactions.state is TransactionState.READY
            is_dead = transactions.state is TransactionState.FATAL_ERROR
            assert is_ready or (is_dead and (self.is_disturbed or self.was_refused)), "no way on"
            self.a_transaction_is_visible_as_it_was_said_to_end()
        assert all(batch.state is BatchState.SENT for batch in self.accumulator.incomplete())
