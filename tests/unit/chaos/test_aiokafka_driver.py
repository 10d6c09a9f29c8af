"""A client of aiokafka that does not start holds no connection."""

import asyncio
from typing import Any, ClassVar

import aiokafka
import pytest

from quorumlog.chaos.drivers import aiokafka_driver
from quorumlog.chaos.drivers.aiokafka_driver import AiokafkaDriver


class NeverStarts:
    """Takes the place of every client of the library."""

    made: ClassVar[list["NeverStarts"]] = []

    def __init__(self, **_: Any) -> None:
        self.has_started_to_start = asyncio.Event()
        self.is_closed = False
        self.made.append(self)

    async def start(self) -> None:
        self.has_started_to_start.set()
        await asyncio.Event().wait()

    async def stop(self) -> None:
        self.is_closed = True

    close = stop


@pytest.mark.parametrize("kind", ["producer", "consumer", "offsets", "admin"])
async def test_a_client_that_never_starts_is_closed(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NeverStarts, "made", [])
    for name in ("AIOKafkaProducer", "AIOKafkaConsumer"):
        monkeypatch.setattr(aiokafka, name, NeverStarts)
    monkeypatch.setattr(aiokafka_driver, "AIOKafkaAdminClient", NeverStarts)
    starting = asyncio.ensure_future(getattr(AiokafkaDriver(), kind)("127.0.0.1:1", "c"))
    await asyncio.sleep(0)
    [client] = NeverStarts.made
    await client.has_started_to_start.wait()
    starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled()
    assert client.is_closed
