"""A raw client of requests that brokers must refuse: late copies, and guessed epochs.

The caller draws the requests: only a model of groups and transactions can choose requests that
change nothing (`simulation.oracles.rude_requests`). Its oracles see the requests, as those of
all clients, and check that they change nothing.
"""

import asyncio
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any, Final, Protocol

from quorumlog.chaos.rude_clients.connection import RawConnection
from quorumlog.wire.codec.identifiers import TopicPartition

MEAN_S: Final = 0.15  # between two requests
RUDE: Final = "rude"
"""The client id of requests that must be refused; see `simulation.oracles.exchanges`."""

AddressOf = Callable[[TopicPartition], tuple[str, int] | None]
"""Returns the address of the leader of a partition; None: it has none."""


class RefusedRequest(Protocol):
    """A request for the leader of `home`."""

    @property
    def home(self) -> TopicPartition:
        """The partition with the records of the group, or of the transactional id."""

    @property
    def api_version(self) -> int:
        """The version of the request."""

    @property
    def request(self) -> Any:
        """The message."""


class RefusedClient:
    """Sends one request at a time, each on a connection of its own. `draw`: None, without any."""

    def __init__(
        self,
        rng: Random,
        draw: Callable[[Random], RefusedRequest | None],
        address_of: AddressOf,
        now_ns: Callable[[], int],
    ) -> None:
        self._rng: Final = rng
        self._draw: Final = draw
        self._address_of: Final = address_of
        self._now_ns: Final = now_ns
        self._numbers: Final = count()

    async def run(self) -> None:
        """Send requests until it is cancelled."""
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / MEAN_S))
            refused = self._draw(self._rng)
            address = None if refused is None else self._address_of(refused.home)
            if refused is not None and address is not None:
                await self._send(refused, *address)

    async def _send(self, refused: RefusedRequest, host: str, port: int) -> None:
        """Send a request and await its response; under faults most requests get none."""
        connection = await RawConnection.connect(
            host,
            port,
            node=-1,
            number=next(self._numbers),
            now_ns=self._now_ns,
            client_id=RUDE,
            timeout_s=1.0,
        )
        if connection is not None:
            try:
                await connection.exchange(refused.request, refused.api_version)
            finally:
                await connection.close()
