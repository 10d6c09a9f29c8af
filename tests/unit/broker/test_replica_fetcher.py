import asyncio
from typing import Any, cast

import pytest

from quorumlog.broker.core.settings import BrokerSettings
from quorumlog.broker.io.replica_fetcher import ReplicaFetcher
from quorumlog.wire.codec.identifiers import BrokerId


def test_one_that_was_stopped_starts_no_fetch_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a leader's lanes are stopped, an answer in the second may wake the first."""
    runs: list[int] = []

    async def note_run(_fetcher: ReplicaFetcher, serial: int) -> None:
        runs.append(serial)

    async def story() -> None:
        monkeypatch.setattr(ReplicaFetcher, "_run", note_run)
        fetcher = ReplicaFetcher(
            BrokerId(1),
            ("localhost", 0),
            BrokerSettings(),
            broker_epoch=lambda: 0,
            now_ms=lambda: 0,
            failed=lambda error: None,
            took=cast(Any, None),
        )
        fetcher.wake()
        await asyncio.sleep(0)
        await fetcher.stop()
        fetcher.set_followed([])
        await asyncio.sleep(0)
        assert len(runs) == 1

    asyncio.run(story())
