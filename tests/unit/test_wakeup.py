"""A wakeup ends one wait, and shows whether its task sleeps."""

import asyncio

import pytest

from quorumlog.clock import monotonic_ms
from quorumlog.wakeup import Wakeup
from tests.support.waiting import loop_turns

pytestmark = pytest.mark.jumping_time


async def test_a_wait_ends_when_it_is_set_and_clears_it() -> None:
    wakeup = Wakeup()
    assert not wakeup.sleeps()
    waiting = asyncio.create_task(wakeup.wait())
    await loop_turns(2)
    assert wakeup.sleeps()
    assert wakeup.sleeps_past(monotonic_ms() + 1_000_000)
    wakeup.set()
    assert not wakeup.sleeps()
    await waiting
    assert not wakeup.is_set()


async def test_a_wait_that_was_set_before_ends_at_once() -> None:
    wakeup = Wakeup()
    wakeup.set()
    begun_ms = monotonic_ms()
    await wakeup.wait(1_000)
    assert monotonic_ms() == begun_ms
    wakeup.set()
    wakeup.clear()
    assert not wakeup.is_set()


async def test_a_wait_with_a_deadline_ends_there() -> None:
    wakeup = Wakeup()
    due_ms = monotonic_ms() + 1_000
    waiting = asyncio.create_task(wakeup.wait(1_000))
    await loop_turns(2)
    assert not wakeup.sleeps()
    assert wakeup.sleeps_past(due_ms - 100)
    assert not wakeup.sleeps_past(due_ms + 1)
    await waiting
    assert monotonic_ms() >= due_ms
    assert not wakeup.sleeps_past(0)
