"""The simulated event loop: what asyncio does in the order of a set follows from the seed."""

import asyncio
from contextlib import suppress
from random import Random
from typing import Final

from quorumlog.chaos.node_simulation.loop import SimulatedLoop
from quorumlog.chaos.node_simulation.process import Clock, Process

TASKS: Final = 30


def cancelled_in_a_group(*, disorder: int) -> list[int]:
    """Return the tasks of a TaskGroup in the order in which they hear that it ends."""
    loop, heard, rng = SimulatedLoop(0), list[int](), Random(disorder)
    between: list[object] = []  # the tasks, so that their addresses have no order

    async def wait(number: int) -> None:
        try:
            await asyncio.sleep(1)
        finally:
            heard.append(number)

    async def main() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5), asyncio.TaskGroup() as tasks:
                for number in range(TASKS):
                    between.append([object() for _ in range(rng.randrange(50))])
                    between.append([asyncio.Event() for _ in range(rng.randrange(50))])
                    tasks.create_task(wait(number))

    loop.run_until_complete(loop.spawn(Process("test", "10.0.0.1", Clock()), main))
    loop.close()
    return heard


def test_a_group_cancels_its_tasks_in_an_order_that_follows_from_the_seed() -> None:
    orders = [cancelled_in_a_group(disorder=disorder) for disorder in range(4)]
    assert sorted(orders[0]) == [*range(TASKS)]
    assert orders == [orders[0]] * 4
