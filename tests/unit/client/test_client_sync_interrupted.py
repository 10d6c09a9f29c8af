"""A blocking call that is interrupted at any moment: the next call finds the client at rest.

The interrupt is raised at each moment of the call at which CPython may run a signal handler (as a
function begins, after a call, as a loop begins anew), in the blocking clients, in asyncio's loop
and in threading.
"""

import asyncio
import dis
import itertools
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from quorumlog.client.io import inbox
from quorumlog.client.sync import SyncConsumer, SyncProducer, loop_thread
from tests.support.client.fake_cluster import FakeCluster, T
from tests.support.client.fake_group import GroupCluster
from tests.support.client.fake_transactions import Coordinating, coordinating
from tests.support.client.opened import in_a_thread
from tests.unit.client.test_client_sync import OPTIONS, threads

TRACED = (
    str(Path(loop_thread.__file__).parent),
    str(inbox.__file__),
    str(asyncio.base_events.__file__),
    str(threading.__file__),
)
CLOSED = r"^the client is closed$"
pytestmark = pytest.mark.filterwarnings(
    # The coroutine of a call that was interrupted before it reached the loop.
    "ignore:coroutine .* was never awaited:RuntimeWarning"
)


@cache
def moments_of(code: CodeType) -> frozenset[int]:
    """Return the offsets of the instructions before which a signal handler may run."""
    return frozenset(
        after.offset
        for before, after in itertools.pairwise(dis.get_instructions(code))
        if before.opname.startswith(("RESUME", "CALL", "JUMP_BACKWARD"))
    )


@contextmanager
def at_moment(
    number: int, act: Callable[[], None], files: tuple[str, ...] = TRACED
) -> Iterator[None]:
    """Call `act` at the moment of this number in the block, as it runs through `files`."""
    left = itertools.count(number, -1)

    def at_instruction(frame: FrameType, event: str, _argument: object) -> Any:
        is_moment = event == "opcode" and frame.f_lasti in moments_of(frame.f_code)
        if is_moment and not next(left):
            sys.settrace(None)
            act()
        return at_instruction

    def at_call(frame: FrameType, _event: str, _argument: object) -> Any:
        code = frame.f_code
        # Python drops what `__del__` raises, and the garbage collector may call it at any moment.
        if not code.co_filename.startswith(files) or code.co_name == "__del__":
            return None
        frame.f_trace_opcodes = True
        return at_instruction

    before = sys.gettrace()
    sys.settrace(at_call)
    try:
        yield
    finally:
        sys.settrace(before)


def interrupt() -> None:
    raise KeyboardInterrupt


def interrupted(number: int, call: Callable[[], Any]) -> bool:
    """Call, and interrupt at the moment of this number; False if there are fewer."""
    try:
        with at_moment(number, interrupt):
            call()
    except KeyboardInterrupt:
        return True
    return False


def everywhere(call: Callable[[], Any], then: Callable[[], Any]) -> int:
    """Interrupt `call` at every moment, and call `then` after each; return how many."""
    for number in itertools.count():
        if not interrupted(number, call):
            assert number > 10, "it was hardly traced"
            return number
        then()
    raise AssertionError


@pytest.fixture
def coordinator() -> Iterator[Coordinating]:
    with in_a_thread(coordinating()) as cluster:
        yield cluster


def member(cluster: FakeCluster) -> SyncConsumer:
    consumer = SyncConsumer(cluster.bootstrap, **OPTIONS)
    consumer.subscribe(["t"])
    while not consumer.assignment():
        consumer.poll(10)
    return consumer


def call_next(calls: Iterator[Callable[[], Any]]) -> None:
    next(calls)()


def alone(cluster: FakeCluster) -> SyncConsumer:
    consumer = SyncConsumer(cluster.bootstrap, auto_offset_reset="latest")
    consumer.assign([T])
    consumer.position(T)
    return consumer


@pytest.mark.parametrize("timeout_ms", [0, 2])
def test_a_poll_after_an_interrupted_poll(brokers: FakeCluster, timeout_ms: float) -> None:
    with alone(brokers) as consumer:
        everywhere(lambda: consumer.poll(timeout_ms), consumer.poll)
    assert threads() == []


def test_any_call_after_an_interrupted_poll(group: GroupCluster) -> None:
    with member(group) as consumer:
        actions: list[Callable[[], Any]] = [consumer.commit, consumer.poll]
        calls = itertools.cycle([*actions, lambda: consumer.seek(T, 3)])
        everywhere(lambda: consumer.poll(1), lambda: call_next(calls))
    assert threads() == []


def test_a_loop_after_an_interrupted_loop(group: GroupCluster) -> None:
    with member(group) as consumer:

        def read() -> None:
            consumer.seek(T, 0)
            for record in consumer:
                if record.offset == 2:
                    return

        def then() -> None:
            consumer.seek(T, 7)
            assert next(iter(consumer)).offset == 7

        everywhere(read, then)


def test_a_call_after_an_interrupted_commit(group: GroupCluster) -> None:
    with member(group) as consumer:
        everywhere(lambda: consumer.commit({T: 4}), lambda: consumer.commit({T: 5}))
        assert group.committed == 4


@pytest.mark.parametrize("name", ["send", "send_and_wait", "flush", "result"])
def test_a_send_after_an_interrupted_call(brokers: FakeCluster, name: str) -> None:
    with SyncProducer(brokers.bootstrap, linger_ms=0) as producer:

        def call() -> None:
            match name:
                case "send":
                    producer.send("t", b"interrupted")
                case "send_and_wait":
                    producer.send_and_wait("t", b"interrupted")
                case "flush":
                    producer.flush()
                case _:
                    producer.send("t", b"interrupted").result(30)

        sent = itertools.count()
        count = everywhere(call, lambda: producer.send("t", b"%d" % next(sent)).result(30))
    numbers = [value for value in brokers.values() if value != b"interrupted"]
    assert numbers == [b"%d" % number for number in range(count)]
    assert threads() == []


def test_a_transaction_after_an_interrupted_transaction(coordinator: Coordinating) -> None:
    with SyncProducer(
        coordinator.bootstrap, transactional_id="tx", transaction_timeout_ms=7_000, linger_ms=0
    ) as producer:
        producer.init_transactions()

        def transaction() -> None:
            with producer.transaction():
                producer.send("t", b"interrupted")

        def then() -> None:
            try:
                producer.begin_transaction()
            except RuntimeError as error:  # the end of the interrupted commit or abort is unknown
                operation = str(error).partition(" has not returned: call it again first")[0]
                getattr(producer, operation)()
                producer.begin_transaction()
            producer.commit_transaction()

        everywhere(transaction, then)
        producer.begin_transaction()
        with pytest.raises(RuntimeError, match="a transaction is open"), producer.transaction():
            raise AssertionError
        producer.commit_transaction()  # the error of the block's begin has not ended it


@pytest.mark.filterwarnings("ignore:unclosed SyncProducer:ResourceWarning")  # interrupted between
def test_an_interrupted_start_leaves_nothing_open(brokers: FakeCluster) -> None:
    def then() -> None:
        with SyncProducer(brokers.bootstrap, linger_ms=0) as producer:
            producer.send("t", b"v").result(30)

    with SyncProducer(brokers.bootstrap):
        connections = count_of_connections(brokers)
        everywhere(lambda: SyncProducer(brokers.bootstrap).close(), then)
        until(lambda: count_of_connections(brokers) == connections)
    until(lambda: threads() == [])


@pytest.mark.parametrize("kind", ["producer", "member"])
def test_an_interrupted_close_closes(group: GroupCluster, kind: str) -> None:
    """At once if it is repeated, else in the background; a record that was sent is delivered."""
    sent = 0

    def opened() -> SyncProducer | SyncConsumer:
        nonlocal sent
        if kind == "member":
            return member(group)
        producer = SyncProducer(group.bootstrap, linger_ms=60_000)
        producer.send("t", b"sent")
        sent += 1
        return producer

    before = len(group.values())
    with SyncProducer(group.bootstrap):  # so that the loop's end closes nothing
        connections = count_of_connections(group)
        for number in itertools.count():
            client = opened()
            was_interrupted = interrupted(number, client.close)
            client.close()
            if kind == "producer":
                until(lambda: len(group.values()) == before + sent)
            del client
            if not was_interrupted:
                break
        until(lambda: count_of_connections(group) == connections)
    until(lambda: threads() == [])


def count_of_connections(cluster: FakeCluster) -> int:
    return sum(map(len, cluster.connections.values()))


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.001)


@pytest.mark.parametrize("is_shared", [True, False], ids=["another client", "no other client"])
@pytest.mark.parametrize("moment", range(0, 60, 3))
def test_a_loop_whose_consumer_a_signal_handler_closes_ends_in_one_way(
    brokers: FakeCluster, is_shared: bool, moment: int
) -> None:
    """The handler runs at some moment of a poll, or in the wait for its end."""
    other = SyncProducer(brokers.bootstrap) if is_shared else None
    consumer = alone(brokers)

    def handle(*_: object) -> None:
        sys.settrace(None)
        consumer.close()

    def read() -> None:
        for _ in consumer:
            pass

    handler = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.2)  # if the poll waits before the moment comes
    try:
        with pytest.raises(RuntimeError, match=CLOSED), at_moment(moment, handle):
            read()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    for call in (consumer.poll, read, lambda: consumer.position(T)):
        with pytest.raises(RuntimeError, match=CLOSED):
            call()
    if other is not None:
        other.send("t", b"v").result(30)
        other.close()
    assert threads() == []


def test_a_cancelled_call_that_does_not_end_is_not_waited_for_for_ever(
    brokers: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()

    async def stubborn() -> None:
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)

    monkeypatch.setattr(loop_thread, "CANCEL_S", 0.05)
    with SyncProducer(brokers.bootstrap) as producer:
        with pytest.raises(TimeoutError):
            producer._loop.run(stubborn(), 0.01)
        assert producer.send_and_wait("t", b"v").offset == 0
        may_end.set()


def test_a_cancelled_call_is_over_when_its_caller_goes_on(brokers: FakeCluster) -> None:
    ended: list[bool] = []

    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(100):  # turns of the loop
                await asyncio.sleep(0)
            ended.append(True)

    with SyncProducer(brokers.bootstrap) as producer:
        with pytest.raises(TimeoutError):
            producer._loop.run(slow_to_end(), 0.01)
        assert ended
