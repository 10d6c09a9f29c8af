"""Waits that block a thread, and waits that a coroutine awaits."""

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest

from quorumlog.cluster.waits import Seen, TookTooLong, wait_until


def at_once(_: Callable[[], bool]) -> dict[str, Any]:
    return {"isr": 3}


def never(_: Callable[[], bool]) -> dict[str, Any]:
    raise TookTooLong("isr 2, after 1 s")


def test_without_an_event_loop_the_wait_is_over_at_once() -> None:
    assert Seen(at_once) == {"isr": 3}
    with pytest.raises(TookTooLong, match="isr 2"):
        Seen(never)


async def test_in_a_coroutine_the_wait_is_over_when_it_was_awaited() -> None:
    seen = Seen(at_once)
    assert await seen == {"isr": 3}
    assert await seen is seen  # a second time
    with pytest.raises(TookTooLong, match="isr 2"):
        await Seen(never)


async def test_a_cancelled_wait_ends_its_thread() -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait(is_cancelled: Callable[[], bool]) -> dict[str, Any]:
        wait_until(is_cancelled, lambda: "it is not cancelled", 10)
        loop.call_soon_threadsafe(ended.set)
        return {}

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await Seen(wait)
    await asyncio.wait_for(ended.wait(), 10)


async def test_a_wait_that_is_not_awaited_is_a_warning() -> None:
    def forget() -> None:
        Seen(at_once)
        gc.collect()

    with pytest.warns(RuntimeWarning, match="never awaited"):
        forget()


def test_a_condition_that_never_holds_ends_with_its_last_state() -> None:
    looks: list[float] = []
    with pytest.raises(TookTooLong, match=r"2 of 3, after 0\.05 s"):
        wait_until(lambda: False, lambda: "2 of 3", 0.05, pause=looks.append)
    assert looks
    assert max(looks) <= 0.05
