"""What a driver does when a write fails or lasts, when it ends, and when too many requests wait."""

import asyncio
import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorumlog.metadata_quorum.controller.requests import AllocateProducerIds
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.messages import Request
from quorumlog.metadata_quorum.driver.driver import INBOX_FACTS_MAX, Driver
from quorumlog.metadata_quorum.driver.seams import NotController, Seams, Stopped
from quorumlog.metadata_quorum.io.metadata_quorum import DiskThreads, EventLoopClock
from quorumlog.metadata_quorum.log.election_store import Election
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from tests.support.metadata_quorum.drivers import Claims, ask, call
from tests.support.metadata_quorum.quorums import fetch_request, fetch_response

SAVE = effects.PersistElection(leader_epoch=Epoch(1), leader_id=BrokerId(-1), voted_id=BrokerId(1))
LEAD = effects.BecomeLeader(leader_epoch=Epoch(1), epoch_start_offset=Offset(0))
FLUSH = effects.FlushLog(log_end_offset=Offset(1))
IDS = AllocateProducerIds(broker_id=BrokerId(1), broker_epoch=0)
FETCH = fetch_request(epoch=1, offset=0, last_epoch=0)


class IdleQuorum:
    """Orders nothing, whatever happens, but what it is given; keeps what it was told."""

    node_id = BrokerId(1)
    flushes_log = True
    resignation_pending = False

    def __init__(self, *orders: effects.Effect) -> None:
        self.orders = list(orders)
        self.events: list[events.Event] = []

    def step(self, now_ms: int, event: events.Event) -> list[effects.Effect]:
        self.events.append(event)
        orders, self.orders = self.orders, []
        return orders

    def next_deadline_ms(self) -> None:
        return None

    def voters_at(self, end_offset: Offset) -> None:
        return None


class NeverDone:
    """An Executor whose work never ends."""

    def run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        pass


def driver_of(quorum: IdleQuorum, *, failed: Any = None, **parts: Any) -> Driver:
    log = SimpleNamespace(
        end_offset=Offset(0), flushed_offset=Offset(0), start=None, epoch_starts=lambda: ()
    )
    log.flush = parts.pop("flush", None)
    return Driver(
        quorum=cast(Any, quorum),
        log=cast(Any, log),
        elections=cast(Any, parts.pop("elections", SimpleNamespace(save=lambda election: None))),
        committed=cast(
            Any,
            SimpleNamespace(
                restored_id=None, restored_voter_sets=(), lead_by=lambda *_: None, is_behind=False
            ),
        ),
        settings=ControllerSettings(),
        seams=Seams(
            clock=EventLoopClock(),
            executor=parts.pop("executor", NeverDone()),
            transport=parts.pop("transport", None),
            leader_listener=Claims(),
            random_bytes=bytes,
            failed=failed,
        ),
    )


async def test_a_failed_flush_ends_the_node() -> None:
    failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    def fail() -> Offset:
        raise StorageError("cannot flush")

    threads = DiskThreads(failure.set_result)
    driver_of(IdleQuorum(FLUSH), executor=threads, flush=fail).start(Election())
    async with asyncio.timeout(30):
        assert isinstance(await failure, StorageError)
    await threads.close()


async def test_an_error_of_the_core_ends_the_driver_and_is_reported_once() -> None:
    class Broken(IdleQuorum):
        def step(self, now_ms: int, event: events.Event) -> list[effects.Effect]:
            raise ZeroDivisionError

    failures: list[BaseException] = []
    driver = driver_of(Broken(), failed=failures.append)
    driver.start(Election())
    driver.feed(events.Ticked())
    assert [type(failure) for failure in failures] == [ZeroDivisionError]
    with pytest.raises(Stopped):
        await call(driver, FETCH)


async def test_a_write_that_is_under_way_ends_before_its_threads_do() -> None:
    """The log is closed when they have ended."""
    begun, may_end, has_ended = threading.Event(), threading.Event(), threading.Event()

    def save(election: Election) -> None:
        begun.set()
        assert may_end.wait(30)
        has_ended.set()

    threads = DiskThreads(lambda error: None)
    driver = driver_of(IdleQuorum(SAVE), executor=threads, elections=SimpleNamespace(save=save))
    driver.start(Election())
    assert await asyncio.to_thread(begun.wait, 30)
    driver.stop()
    closing = asyncio.create_task(threads.close())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not closing.done()
    may_end.set()
    await closing
    assert has_ended.is_set()


async def test_nothing_is_taken_in_while_a_write_is_under_way() -> None:
    quorum, written = IdleQuorum(SAVE), []

    class Held:
        def run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
            written.append(done)

    driver = driver_of(quorum, executor=Held())
    driver.start(Election())
    driver.feed(events.Ticked())
    assert len(quorum.events) == 1
    (done,) = written
    done(None)
    fed = [type(event) for event in quorum.events]
    assert fed == [events.Started, events.WriteEnded, events.Ticked]


async def test_a_request_that_comes_before_the_start_waits_for_it() -> None:
    quorum = IdleQuorum()
    driver = driver_of(quorum)
    waiting = asyncio.create_task(call(driver, FETCH))
    await asyncio.sleep(0)
    assert quorum.events == []
    driver.start(Election())
    assert [type(event) for event in quorum.events] == [events.Started, events.RequestReceived]
    driver.stop()
    with pytest.raises(Stopped):
        await waiting


async def test_a_driver_that_has_ended_confirms_no_resignation() -> None:
    driver = driver_of(IdleQuorum())
    driver.start(Election())
    driver.stop()
    known = asyncio.get_running_loop().create_future()
    driver.resign(known)
    with pytest.raises(Stopped):
        await known


async def test_requests_that_find_no_room_are_refused_and_facts_are_not() -> None:
    quorum = IdleQuorum(LEAD, SAVE)
    driver = driver_of(quorum)
    driver.start(Election())
    for _ in range(INBOX_FACTS_MAX):
        driver.feed(events.Ticked())
    with pytest.raises(NotController, match="too many"):
        await ask(driver, IDS)
    with pytest.raises(Stopped):
        await call(driver, FETCH)
    driver.feed(events.Ticked())
    assert len(driver._inbox) == INBOX_FACTS_MAX + 1


async def test_every_request_that_waits_when_it_ends_is_refused() -> None:
    driver = driver_of(IdleQuorum(LEAD, SAVE))
    driver.start(Election())
    waiting = [asyncio.create_task(ask(driver, IDS)), asyncio.create_task(call(driver, FETCH))]
    await asyncio.sleep(0)
    driver.stop()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [NotController, Stopped]
    with pytest.raises(NotController):
        await ask(driver, IDS)


async def test_a_peer_that_sends_corrupt_records_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class CorruptPeer:
        def send(
            self, destination: BrokerId, request: Request, *, timeout_ms: int, done: Any
        ) -> None:
            done((fetch_response(1), bytes(100)))

    sends = [
        effects.SendRequest(
            request_id=request_id, destination=BrokerId(2), request=FETCH, timeout_ms=1000
        )
        for request_id in (1, 2, 3)
    ]
    quorum = IdleQuorum(*sends)
    with caplog.at_level(logging.WARNING):
        driver_of(quorum, transport=CorruptPeer()).start(Election())
    assert quorum.events[1:] == [events.RequestFailed(request_id=n) for n in (1, 2, 3)]
    assert [record.message[:29] for record in caplog.records] == ["node 2 sends corrupt records:"]
