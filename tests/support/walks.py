"""The four walks of docs/architecture/index.md, traced in a simulated cluster of three nodes.

    python -m tests.support.walks TRACES.json

writes, for each walk, the functions that ran in it, in their order: `file.py: Class.method`.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import quorumlog
from quorumlog.chaos.node_simulation.machine import KAFKA_PORT, host_of
from quorumlog.chaos.node_simulation.run import TOPIC, SimulatedRun
from quorumlog.chaos.node_simulation.simulate import settings_of
from quorumlog.client import Consumer, Producer

PACKAGE: Final = str(Path(quorumlog.__file__).parent) + "/"
LAB: Final = PACKAGE + "chaos/"
SETTLED_S: Final = 1.0  # until answers of earlier requests have arrived
ELECTION_S: Final = 3.0
BOOTSTRAP: Final = ",".join(f"{host_of(node_id)}:{KAFKA_PORT}" for node_id in (1, 2, 3))


class Walks(SimulatedRun):
    """A run whose clients do one thing at a time."""

    def __init__(self, path: Path) -> None:
        directory = Path(tempfile.mkdtemp(prefix="quorumlog-walks-"))
        super().__init__(settings_of(0, duration_ms=1_000, faults=()), directory)
        self._path: Final = path
        self._traces: Final[dict[str, list[str]]] = {}

    async def _break_under_load(self, *_: Any) -> None:
        await self._produce()
        await self._commit()
        await self._rebalance()
        await self._elect()
        self._path.write_text(json.dumps(self._traces))
        os._exit(0)  # as each simulated run ends: nothing cleans up after killed nodes

    async def _produce(self) -> None:
        async with Producer(BOOTSTRAP) as producer:
            await producer.send_and_wait(TOPIC, b"0", partition=0)
            await asyncio.sleep(SETTLED_S)
            with self._traced("One produce request"):
                await producer.send_and_wait(TOPIC, b"1", partition=0)

    async def _commit(self) -> None:
        async with Producer(BOOTSTRAP, transactional_id="t") as producer:
            await producer.init_transactions()
            producer.begin_transaction()
            await producer.send_and_wait(TOPIC, b"2", partition=0)
            await asyncio.sleep(SETTLED_S)
            with self._traced("One commit of a transaction"):
                await producer.commit_transaction()
                await asyncio.sleep(SETTLED_S)

    async def _rebalance(self) -> None:
        async with (
            Consumer(BOOTSTRAP, group_id="g") as old,
            Consumer(BOOTSTRAP, group_id="g") as new,
        ):
            old.subscribe([TOPIC])
            while not old.assignment():
                await old.poll(timeout_ms=100)
            await asyncio.sleep(SETTLED_S)
            new.subscribe([TOPIC])
            with self._traced("One rebalance"):
                while not new.assignment():
                    await old.poll(timeout_ms=100)
                    await new.poll(timeout_ms=100)
                await new.poll(timeout_ms=100)

    async def _elect(self) -> None:
        (leader,) = await self._target.holders("metadata-leader", TOPIC)
        with self._traced("One election of a metadata leader"):
            self._machines[leader].kill()
            await asyncio.sleep(ELECTION_S)

    @contextmanager
    def _traced(self, walk: str) -> Iterator[None]:
        calls = self._traces[walk] = []

        def note(frame: FrameType, event: str, _argument: object) -> None:
            path = frame.f_code.co_filename
            if event == "call" and path.startswith(PACKAGE) and not path.startswith(LAB):
                calls.append(f"{path.removeprefix(PACKAGE)}: {frame.f_code.co_qualname}")

        sys.setprofile(note)
        try:
            yield
        finally:
            sys.setprofile(None)


if __name__ == "__main__":
    Walks(Path(sys.argv[1])).run()
