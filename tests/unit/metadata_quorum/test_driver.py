import asyncio
import logging
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorumlog.metadata_quorum.controller.requests import AllocateProducerIds
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.messages import FetchRequest
from quorumlog.metadata_quorum.driver.active_controller import NotController
from quorumlog.metadata_quorum.driver.driver import INBOX_EVENTS_MAX, Driver
from quorumlog.metadata_quorum.driver.seams import Stopped
from quorumlog.metadata_quorum.io.disk_threads import DiskThreads
from quorumlog.metadata_quorum.log.election_store import Election
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from tests.support.metadata_quorum.quorums import fetch_request, fetch_response

SAVE = effects.PersistElection(leader_epoch=Epoch(1), leader_id=BrokerId(-1), voted_id=BrokerId(1))


class IdleQuorum:
    """Orders nothing, whatever happens, but what it is given."""

    resignation_pending = False

    def __init__(self, *orders: effects.Effect) -> None:
        self.orders = list(orders)

    def step(self, now_ms: int, event: events.Event) -> list[effects.Effect]:
        orders, self.orders = self.orders, []
        return orders

    def next_deadline_ms(self) -> None:
        return None


def driver_of(quorum: IdleQuorum, **parts: Any) -> Driver:
    log = SimpleNamespace(end_offset=Offset(0), flushed_offset=Offset(0), epoch_starts=lambda: ())
    parts = {"elections": None, "threads": DiskThreads(), **parts}
    return Driver(cast(Any, SimpleNamespace(quorum=quorum, log=log, addresses=str, **parts)))


@pytest.mark.parametrize("waiting", [0, INBOX_EVENTS_MAX])
def test_an_error_in_the_background_ends_it_even_if_its_inbox_is_full(waiting: int) -> None:
    async def fail() -> None:
        raise StorageError("cannot flush")

    async def main() -> None:
        driver = driver_of(IdleQuorum())
        for _ in range(waiting):
            driver._inbox.put_nowait(events.Ticked())
        driver._spawn(fail())
        for _ in range(3):
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            with pytest.raises(StorageError, match="cannot flush"):
                await driver.run(Election())

    asyncio.run(main())


def test_a_write_that_is_under_way_ends_before_the_driver_does() -> None:
    begun, may_end, has_ended = threading.Event(), threading.Event(), threading.Event()

    def save(election: Election) -> None:
        begun.set()
        assert may_end.wait(30)
        has_ended.set()

    async def main() -> None:
        driver = driver_of(IdleQuorum(SAVE), elections=SimpleNamespace(save=save))
        running = asyncio.create_task(driver.run(Election()))
        assert await asyncio.to_thread(begun.wait, 30)
        running.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not running.done()  # whoever stops it closes the files next
        may_end.set()
        await asyncio.wait({running})
        assert has_ended.is_set()
        assert running.cancelled()

    asyncio.run(main())


def test_who_waits_for_room_when_it_ends_is_told() -> None:
    async def main() -> None:
        driver = driver_of(IdleQuorum())
        driver._active = cast(Any, SimpleNamespace(stand_down=lambda: None))
        while not driver._inbox.full():
            driver._inbox.put_nowait(events.Ticked())
        asks = AllocateProducerIds(broker_id=BrokerId(1), broker_epoch=0)
        waiting = [
            asyncio.create_task(driver.ask(asks)),
            asyncio.create_task(driver.request(fetch_request(epoch=1, offset=0, last_epoch=0))),
        ]
        await asyncio.sleep(0)
        await driver._end()
        async with asyncio.timeout(30):
            results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [NotController, Stopped]

    asyncio.run(main())


def test_a_peer_that_sends_corrupt_records_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class CorruptPeer:
        async def call(
            self, address: str, request: FetchRequest, *, timeout_ms: int
        ) -> tuple[object, bytes]:
            return fetch_response(1), bytes(100)

    async def main() -> None:
        driver = driver_of(IdleQuorum(), transport=CorruptPeer())
        for request_id in (1, 2, 3):
            await driver._send(
                effects.SendRequest(
                    request_id=request_id,
                    destination=BrokerId(2),
                    request=fetch_request(epoch=1, offset=0, last_epoch=0),
                    timeout_ms=1000,
                )
            )
            assert driver._inbox.get_nowait() == events.RequestFailed(request_id=request_id)

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert [record.message[:29] for record in caplog.records] == ["node 2 sends corrupt records:"]
