"""The threads of the disk queue: order for each key, and a loop that goes on."""

import asyncio
import threading
from functools import partial
from typing import Any

import pytest

from quorumlog.broker.partitions.io.disk_threads import (
    THREADS,
    WAITING_PER_WORK,
    WORKS_MAX,
    DiskThreads,
    performed,
)
from quorumlog.storage.errors import StorageError


def queue_and_errors() -> tuple[DiskThreads, list[BaseException]]:
    errors: list[BaseException] = []
    return DiskThreads(errors.append), errors


async def test_work_of_one_key_is_done_in_order_and_of_others_meanwhile() -> None:
    queue, errors = queue_and_errors()
    may_go_on, seen = threading.Event(), list[str]()

    def blocked() -> str:
        may_go_on.wait(20)
        return "first"

    queue.submit("a", blocked, seen.append)  # type: ignore[arg-type]  # the outcomes are text
    queue.submit("a", lambda: "second", seen.append)  # type: ignore[arg-type]
    assert await performed(queue, "b", lambda: "other") == "other"
    assert seen == []
    may_go_on.set()
    await queue.drain()
    queue.close()
    assert (seen, errors) == (["first", "second"], [])


async def test_what_is_done_next_waits_until_the_outcome_is_told() -> None:
    queue, _ = queue_and_errors()
    seen = list[str]()

    def done(outcome: object) -> None:
        seen.append("told")
        queue.submit("a", lambda: seen.append("third"), lambda _: None)

    queue.submit("a", lambda: seen.append("first"), done)
    queue.submit("a", lambda: seen.append("second"), lambda _: None)
    await queue.drain()
    queue.close()
    assert seen == ["first", "told", "second", "third"]


async def test_many_keys_share_few_threads() -> None:
    queue, _ = queue_and_errors()
    names = set[str]()

    def note() -> None:
        names.add(threading.current_thread().name)

    results = await asyncio.gather(*(performed(queue, key, note) for key in range(99)))
    queue.close()
    assert len(results) == 99
    assert 1 <= len(names) <= THREADS


async def test_a_disk_that_refuses_is_an_outcome_and_a_bug_is_not() -> None:
    queue, errors = queue_and_errors()

    def fail(error: Exception) -> None:
        raise error

    with pytest.raises(StorageError, match="no disk"):
        await performed(queue, "a", partial(fail, OSError("no disk")))
    bug = ZeroDivisionError()
    queue.submit("a", partial(fail, bug), lambda _: None)
    queue.submit("a", lambda: None, lambda _: fail(bug))
    assert await performed(queue, "a", lambda: "it goes on") == "it goes on"
    queue.close()
    assert errors == [bug, bug]


async def test_thousands_of_works_are_handed_to_the_threads_a_few_at_a_time() -> None:
    """Each costs the loop as much as a small request."""
    queue, errors = queue_and_errors()
    may_go_on, seen = threading.Event(), list[int]()
    for key in range(5_000):
        queue.submit(key, partial(may_go_on.wait, 20), lambda _, key=key: seen.append(key))  # type: ignore[misc]
    queue.submit(4_999, lambda: None, lambda _: seen.append(5_000))
    assert len(queue._running) == 2 * THREADS
    may_go_on.set()
    await queue.drain()
    queue.close()
    assert sorted(seen) == [*range(5_001)]
    assert seen[-1] == 5_000
    assert errors == []


async def test_of_many_that_wait_a_thread_takes_several_and_a_bug_is_that_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each outcome is told, in order; what is submitted then for the same key comes later."""
    queue, errors = queue_and_errors()
    loop, handed_over = asyncio.get_running_loop(), list[int]()
    run = loop.run_in_executor

    def counted(pool: Any, work: Any, *arguments: Any) -> Any:
        handed_over.append(len(arguments[0]))
        return run(pool, work, *arguments)

    monkeypatch.setattr(loop, "run_in_executor", counted)
    count = 2 * THREADS + WAITING_PER_WORK * WORKS_MAX
    seen, bug = list[object](), ZeroDivisionError()

    def fail(key: int) -> int:
        if key == 50:
            raise bug
        return key

    for key in range(count):
        queue.submit(key, partial(fail, key), seen.append)
    queue.submit(count - 1, lambda: "last", seen.append)
    await queue.drain()
    queue.close()
    assert handed_over[: 2 * THREADS + 1] == [1] * 2 * THREADS + [WORKS_MAX]
    assert max(handed_over) == WORKS_MAX
    assert handed_over[-1] == 1
    assert errors == [bug]
    assert sorted(map(str, seen)) == sorted(map(str, [*({*range(count)} - {50}), "last"]))
    assert seen.index("last") > seen.index(count - 1)
