"""Timers of the broker in each event loop: one that is due at once may be set again."""

import asyncio
from collections.abc import Callable

import pytest

from quorumlog.broker.deadline_timer import DeadlineTimer
from quorumlog.clock import monotonic_ms
from tests.support.groups.memory_log import World


def _uvloop() -> asyncio.AbstractEventLoop:
    loop: asyncio.AbstractEventLoop = pytest.importorskip("uvloop").new_event_loop()
    return loop


LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, _uvloop])


class Deadlines:
    def next_deadline_ms(self) -> int | None:
        return None


@LOOPS
def test_a_timer_that_is_due_is_armed_again_and_a_shard_is_loaded_and_serves(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def story() -> None:
        rang = asyncio.Event()
        timer = DeadlineTimer(Deadlines(), lambda _now_ms: rang.set())
        for earlier_ms in (10, 5, 20):
            timer.arm(monotonic_ms() - earlier_ms)
        await asyncio.wait_for(rang.wait(), 5)
        timer.stop()
        world = World()
        await world.lead()
        await world.commit(1)
        assert world.offset() == 1
        world.service.stop()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(story())
