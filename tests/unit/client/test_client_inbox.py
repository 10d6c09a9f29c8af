"""Records that threads hand to a producer's event loop: order, wake-ups, closing, transactions."""

import itertools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.client import KafkaError, TopicPartition
from quorumlog.client.core.accumulator import Accumulator, BatchAnswer
from quorumlog.client.core.batch import Batch, ProducerIdentity, checked_record_size
from quorumlog.client.core.metadata_cache import Leader
from quorumlog.client.core.topic_queues import TopicQueues
from quorumlog.client.core.transaction_requests import Answer
from quorumlog.client.core.transactions import Transactions
from quorumlog.client.io import inbox as inbox_module
from quorumlog.client.io.delivery import Outcome
from quorumlog.client.io.inbox import PENDING, Inbox
from quorumlog.client.producer import inbox_of
from quorumlog.client.settings import ProducerOptions, ProducerSettings
from quorumlog.client.sync import SyncDelivery, SyncProducer
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.records import Fields
from tests.support.client.fake_cluster import PRODUCE, SILENCE, FakeCluster
from tests.support.client.fake_transactions import coordinating
from tests.support.client.opened import in_a_thread, producing
from tests.support.waiting import loop_turns, until
from tests.unit.client.test_client_sync import threads
from tests.unit.client.test_client_sync_interrupted import at_moment

IDENTITY: Final = ProducerIdentity(1, 0)
PARTITIONS: Final = 3


class World:
    """A sender without sockets: time, steps, requests and responses are moves of the test."""

    def __init__(self, **options: Any) -> None:
        settings = ProducerSettings(bootstrap_servers="x:1", **options)
        self.accumulator = Accumulator(settings)
        self.accumulator.identify(IDENTITY)
        self.topic = TopicQueues(settings.batch_size)
        self.topic.count, self.topic.candidates = PARTITIONS, [*range(PARTITIONS)]
        for number in range(PARTITIONS):
            queue = self.accumulator.queue(TopicPartition("t", number))
            self.topic.queues[number] = queue
        self.lines: set[str] = set()
        self.transactions: Transactions | None = None
        if settings.transactional_id is not None:
            self.transactions = Transactions(settings)
        self.inbox = Inbox(
            self,
            self.accumulator,
            {"t": self.topic},
            self.lines,
            transactions=self.transactions,
            wake=self.wake,
        )
        self.now_ms = self.timer_ms = 0.0
        self.is_woken = False
        self.wakes = 0
        self.in_flight: list[tuple[Batch, list[Fields]]] = []
        self.log: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
        self.outcomes: list[Outcome] = []

    # --- the loop, the leaders ---

    def time(self) -> float:
        return self.now_ms / 1000

    def call_soon_threadsafe(self, callback: Callable[[], object], /) -> None:
        self.wakes += 1
        callback()

    def wake(self) -> None:
        self.is_woken = True

    def leader(self, topic_partition: TopicPartition) -> Leader:
        return Leader(1, 0)

    def has_room(self, broker_id: int) -> bool:
        return True

    # --- moves ---

    def put(self, partition: int | None, size: int = 0) -> bool:
        value = b"%0*d" % (size, len(self.outcomes))
        outcome = Outcome(PENDING, -1, 7)
        record = (7, None, value, ())
        is_in = self.inbox.put(
            "t", partition, record, checked_record_size(None, value, ()), outcome
        )
        if is_in:
            self.outcomes.append(outcome)
        return is_in

    def step(self, between: Callable[[], object] = lambda: None) -> None:
        """Make the sender's step; `between`: the act of a thread in its middle."""
        self.is_woken = False
        self.inbox.admit()
        between()
        drained = self.accumulator.drain(self.now_ms, self)
        self.timer_ms = drained.wake_at_ms
        for batches in drained.by_broker.values():
            self.in_flight += [(batch, [*batch.records]) for batch in batches]
        if self.inbox.has_records:
            self.wake()
        self.accumulator.check_invariants()

    def answer(self) -> None:
        """Acknowledge the oldest request."""
        if self.in_flight:
            batch, records = self.in_flight.pop(0)
            values = [int(fields[3] or b"") for fields in records]
            self.log[batch.topic_partition.partition] += values
            self.accumulator.handle_answer(self.now_ms, batch, BatchAnswer(base_offset=0), 0.5)
            self.wake()

    def settle(self) -> None:
        """Let happen only the events that are due or scheduled, until there is none."""
        for _ in range(10_000):
            if self.is_woken:
                self.step()
            elif self.in_flight:
                self.answer()
            elif self.timer_ms < self.now_ms + 1_000:  # the delivery timeout is no event
                self.now_ms = max(self.now_ms, self.timer_ms)
                self.step()
            else:
                return
        raise AssertionError("it does not settle")


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "step", "answer", "put in a step"]),
        st.none() | st.integers(0, PARTITIONS - 1),
        st.integers(0, 60),
        st.floats(0, 3),
    ),
    max_size=60,
)


@given(MOVES, st.sampled_from([0, 2, 50]), st.sampled_from([0, 100, 1000]))
def test_every_record_is_sent_without_another_call_and_in_order(
    moves: list[tuple[str, int | None, int, float]], linger_ms: float, batch_size: int
) -> None:
    """No record waits in the inbox for an event that does not come."""
    world = World(linger_ms=linger_ms, batch_size=batch_size)
    for move, partition, size, pause_ms in moves:
        world.now_ms += pause_ms
        match move:
            case "put":
                world.put(partition, size)
            case "step" if world.is_woken or world.now_ms >= world.timer_ms:
                world.step()
            case "put in a step" if world.is_woken or world.now_ms >= world.timer_ms:
                world.step(lambda partition=partition, size=size: world.put(partition, size))  # type: ignore[misc]
            case "answer":
                world.answer()
            case _:
                pass
    world.settle()
    assert all(outcome.done() for outcome in world.outcomes)
    assert sorted(itertools.chain(*world.log.values())) == list(range(len(world.outcomes)))
    assert all(values == sorted(values) for values in world.log.values())


def test_the_loop_is_woken_for_a_batch_that_begins_or_is_full_and_not_for_each_record() -> None:
    world = World(linger_ms=60_000, batch_size=1_000)
    record = checked_record_size(None, b"%020d" % 0, ())
    for _ in range(100):
        world.put(0, 20)
        if world.is_woken:
            world.step()
    assert 100 * record // 1_000 <= world.wakes <= 2 * (100 * record // 900 + 1)


def test_the_buffer_is_full_with_records_that_are_not_admitted() -> None:
    world = World(linger_ms=0, batch_size=100, buffer_memory=1_000)
    while world.put(0, 79):
        assert len(world.outcomes) <= 10
    assert len(world.outcomes) == 10
    world.step()
    assert not world.put(0, 79)
    while world.in_flight:
        world.answer()
        world.step()
    assert world.put(0, 79)


def test_calls_that_must_wait_or_make_a_queue_are_not_put_in() -> None:
    world = World(batch_size=1_000)
    record = (7, b"key", b"value", ())
    assert not world.inbox.put("unknown", 0, record, 50, Outcome(PENDING, -1, 7))
    assert not world.put(PARTITIONS)
    world.lines.add("t")  # a call waits for room
    assert not world.put(0)
    world.lines.clear()
    world.topic.queues.clear()
    assert not world.inbox.put("t", None, record, 50, Outcome(PENDING, -1, 7))
    assert world.put(None)  # no partition is chosen yet: the loop makes its queue
    world.settle()
    assert sum(map(len, world.log.values())) == 1


def test_a_record_of_an_ended_transaction_fails_and_the_next_transaction_lacks_it() -> None:
    world = World(transactional_id="tx", batch_size=1_000)
    transactions = world.transactions
    assert transactions is not None
    with pytest.raises(RuntimeError, match="call begin_transaction first"):
        world.put(0)
    transactions.initialize()
    request = transactions.wanted(is_quiet=True)
    assert request is not None
    transactions.take(request, Answer(identity=IDENTITY), is_refused=False)
    transactions.begin()
    assert world.put(0)
    transactions.abort()
    world.inbox.admit()
    error = world.outcomes[0].exception()
    assert error is not None
    assert (error.code, error.definite) == (ErrorCode.OPERATION_NOT_ATTEMPTED, True)
    assert not world.accumulator.incomplete()


def test_after_the_end_each_record_that_is_left_fails_once() -> None:
    world = World(linger_ms=60_000)
    assert world.put(0)
    world.inbox.close()
    assert not world.put(0)  # the call goes to the loop, and is refused there
    world.inbox.admit()
    with pytest.raises(KafkaError, match="the producer was closed") as raised:
        world.outcomes[0].metadata()
    assert raised.value.definite
    assert not world.accumulator.incomplete()


def test_a_record_after_the_end_that_a_thread_had_begun_to_put_in_fails() -> None:
    world = World(linger_ms=60_000)

    def close_meanwhile() -> float:
        world.inbox.close()
        return 0

    world.inbox._total_bytes = close_meanwhile  # type: ignore[method-assign, assignment]
    assert not world.put(0)
    assert not world.inbox.has_records


# --- with threads and sockets ---


@pytest.mark.parametrize(
    "options",
    [
        {"linger_ms": 0},
        {"linger_ms": 1, "batch_size": 200},
        {"linger_ms": 0, "batch_size": 100, "buffer_memory": 500},
    ],
)
def test_threads_keep_their_order_and_every_record_is_done_once(
    brokers: FakeCluster, options: ProducerOptions
) -> None:
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with SyncProducer(brokers.bootstrap, **options) as producer:
            deliveries = _send_by_threads(producer, count=150)
        offsets = [one.result(0).offset for one in itertools.chain(*deliveries)]
    finally:
        sys.setswitchinterval(interval_s)
    assert sorted(offsets) == list(range(len(offsets)))
    log = [tuple(map(int, value.split(b"-"))) for value in brokers.values()]
    for sender, own in enumerate(deliveries):
        assert [number for one, number in log if one == sender] == list(range(150))
        assert [log[one.result(0).offset] for one in own] == [(sender, n) for n in range(150)]


def _send_by_threads(producer: SyncProducer, count: int) -> list[list[SyncDelivery]]:
    deliveries: list[list[SyncDelivery]] = [[] for _ in range(4)]

    def send(sender: int) -> None:
        for number in range(count):
            delivery = producer.send("t", b"%d-%d" % (sender, number))
            deliveries[sender].append(delivery)
            if number % 50 == 7:
                assert delivery.result(30).topic == "t"

    _run_all([threading.Thread(target=send, args=(sender,)) for sender in range(4)])
    return deliveries


def _run_all(senders: list[threading.Thread]) -> None:
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()


def _send_until_closed(
    producer: SyncProducer, deliveries: list[SyncDelivery], ends: list[str]
) -> None:
    try:
        while True:
            deliveries.append(producer.send("t", b"v"))
    except RuntimeError as error:
        ends.append(str(error))


def test_a_close_during_sends_leaves_no_record_open_and_loses_none_that_is_acknowledged(
    brokers: FakeCluster,
) -> None:
    for turn in range(10):
        producer = SyncProducer(
            brokers.bootstrap, linger_ms=turn % 2, batch_size=200, buffer_memory=2_000
        )
        before = len(brokers.values())
        deliveries: list[SyncDelivery] = []
        ends: list[str] = []

        arguments = producer, deliveries, ends
        senders = [threading.Thread(target=_send_until_closed, args=arguments) for _ in range(2)]
        for sender in senders:
            sender.start()
        while len(deliveries) < 100:
            time.sleep(0.001)
        producer.close()
        for sender in senders:
            sender.join()
        assert ends == ["the client is closed"] * 2
        assert all(one.done() for one in deliveries)
        errors = [one.exception() for one in deliveries]
        in_doubt = [error for error in errors if error is not None and not error.definite]
        written = len(brokers.values()) - before
        # A call that close has interrupted may have written its record, too.
        assert errors.count(None) <= written
        assert written <= errors.count(None) + len(in_doubt) + len(senders)
    assert threads() == []


def test_a_signal_handler_may_close_the_producer_at_any_moment_of_a_send(
    brokers: FakeCluster,
) -> None:
    files = (inbox_module.__file__, str(SyncProducer.send.__code__.co_filename))
    for moment in itertools.count():
        producer = SyncProducer(brokers.bootstrap, linger_ms=0)
        producer.send("t", b"first").result(30)
        acted: list[bool] = []

        def close(producer: SyncProducer = producer, acted: list[bool] = acted) -> None:
            acted.append(True)
            producer.close()

        try:
            with at_moment(moment, close, files):
                delivery = producer.send("t", b"second")
            assert delivery.done() or not acted
        except RuntimeError as error:
            assert str(error) == "the client is closed"  # noqa: PT017 - or there is no error
        producer.close()
        if not acted:
            break
    assert moment > 10
    assert threads() == []


def test_an_interrupted_send_that_has_put_its_record_in_wakes_the_loop(
    brokers: FakeCluster,
) -> None:
    files = (inbox_module.__file__,)

    def interrupt() -> None:
        acted.append(True)
        raise KeyboardInterrupt

    with SyncProducer(brokers.bootstrap, linger_ms=0) as producer:
        for moment in itertools.count():
            producer.send("t", b"first").result(30)
            acted: list[bool] = []
            try:
                with at_moment(moment, interrupt, files):
                    producer.send("t", b"second")
            except KeyboardInterrupt:
                pass
            inbox = inbox_of(producer._client)
            assert inbox is not None
            while inbox.has_records:  # no other call is made
                time.sleep(0.001)
            if not acted:
                break
    assert moment > 10


def test_a_full_buffer_blocks_the_thread_until_there_is_room(brokers: FakeCluster) -> None:
    brokers.fault = lambda _, api: SILENCE if api == PRODUCE else None
    with SyncProducer(
        brokers.bootstrap, linger_ms=0, batch_size=100, buffer_memory=300, max_block_ms=500
    ) as producer:
        for number in range(2):
            producer.send("t", b"%060d" % number)
        with pytest.raises(KafkaError, match="the buffer was full for 500 ms") as raised:
            producer.send("t", b"%0160d" % 2)
        assert raised.value.definite
        brokers.fault = lambda _broker, _api: None
        brokers.hang_up()
    assert [int(value) for value in brokers.values()] == [0, 1]


def test_a_commit_has_every_record_that_its_thread_has_sent() -> None:
    with (
        in_a_thread(coordinating()) as cluster,
        SyncProducer(
            cluster.bootstrap, transactional_id="tx", transaction_timeout_ms=7_000
        ) as producer,
    ):
        producer.init_transactions()
        with pytest.raises(RuntimeError, match="no transaction is open"):
            producer.send("t", b"v")
        for turn in range(20):
            with producer.transaction():
                deliveries = [producer.send("t", b"%d" % number) for number in range(30)]
            assert [one.result(0).offset for one in deliveries] == [
                *range(30 * turn, 30 * turn + 30)
            ]


async def test_a_record_that_comes_during_a_step_makes_another_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with producing() as (cluster, producer):
        await producer.send_and_wait("t", b"0")
        await loop_turns()  # the step after the response
        sender, drain = producer._running().sender, producer._accumulator.drain

        def drain_after_a_put(*arguments: Any) -> Any:
            assert sender.inbox.put("t", 0, (7, None, b"1", ()), 22, Outcome(PENDING, -1, 7))
            return drain(*arguments)

        monkeypatch.setattr(producer._accumulator, "drain", drain_after_a_put)
        monkeypatch.setattr(sender.inbox, "_wake_from_thread", lambda: None)  # as for an open batch
        sender._start_requests(0.0)
        monkeypatch.undo()
        await until(lambda: cluster.values() == [b"0", b"1"])
