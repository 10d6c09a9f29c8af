import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorumlog.metadata_quorum.core import events
from quorumlog.metadata_quorum.io.driver import INBOX_EVENTS_MAX, Driver
from quorumlog.metadata_quorum.io.election_store import Election
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.identifiers import Offset


class IdleQuorum:
    """Orders nothing, whatever happens."""

    resignation_pending = False

    def step(self, now_ms: int, event: events.Event) -> list[object]:
        return []

    def next_deadline_ms(self) -> None:
        return None


@pytest.mark.parametrize("waiting", [0, INBOX_EVENTS_MAX])
def test_an_error_in_the_background_ends_it_even_if_its_inbox_is_full(waiting: int) -> None:
    async def fail() -> None:
        raise StorageError("cannot flush")

    async def main() -> None:
        log = SimpleNamespace(
            end_offset=Offset(0), flushed_offset=Offset(0), epoch_starts=lambda: ()
        )
        driver = Driver(cast(Any, SimpleNamespace(quorum=IdleQuorum(), log=log)))
        for _ in range(waiting):
            driver._inbox.put_nowait(events.Ticked())
        driver._spawn(fail())
        for _ in range(3):
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            with pytest.raises(StorageError, match="cannot flush"):
                await driver.run(Election())

    asyncio.run(main())
