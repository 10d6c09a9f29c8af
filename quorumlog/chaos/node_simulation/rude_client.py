"""A client that sends requests which brokers must refuse; it shares no code with the real clients.

The oracles see its requests, as those of all clients, and check that they change nothing.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Final

from quorumlog.chaos.simulation.oracles.exchanges import RUDE
from quorumlog.chaos.simulation.oracles.rude_requests import RudeRequest, RudeRequests
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.schemas import encode_request

MEAN_S: Final = 0.15  # between two requests
TIMEOUT_S: Final = 1.0
_LENGTH_BYTES: Final = 4

AddressOf = Callable[[TopicPartition], tuple[str, int] | None]
"""Returns the address of the leader of a partition; None: it has none."""


class RudeClient:
    """Sends one request at a time, each on a connection of its own."""

    def __init__(self, rng: Random, requests: RudeRequests, address_of: AddressOf) -> None:
        self._rng: Final = rng
        self._requests: Final = requests
        self._address_of: Final = address_of
        self.sent = 0

    async def run(self) -> None:
        """Send requests until it is cancelled."""
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / MEAN_S))
            rude = self._requests.draw(self._rng)
            address = None if rude is None else self._address_of(rude.home)
            if rude is not None and address is not None:
                self.sent += 1
                try:
                    async with asyncio.timeout(TIMEOUT_S):
                        await self._send(rude, *address)
                except (OSError, EOFError):  # under faults most requests get no response
                    continue

    async def _send(self, rude: RudeRequest, host: str, port: int) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        try:
            frame = encode_request(
                rude.request, api_version=rude.api_version, correlation_id=1, client_id=RUDE
            )
            writer.write(b"".join(frame))
            size = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
            await reader.readexactly(size)
        finally:
            writer.close()
