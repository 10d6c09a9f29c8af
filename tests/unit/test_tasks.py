"""Background tasks: each failure is reported once, and `stop` leaves none."""

import asyncio
import logging

import pytest

from quorumlog.tasks import Tasks, log_failure


async def test_a_failure_is_reported_once() -> None:
    errors = list[BaseException]()
    tasks = Tasks(errors.append)
    error = ValueError("broken")

    async def fail() -> None:
        raise error

    tasks.start(fail())
    await tasks.join()
    assert errors == [error]
    assert len(tasks) == 0


async def test_a_task_that_is_awaited_reports_its_failure_as_well() -> None:
    errors = list[BaseException]()

    async def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await Tasks(errors.append).start(fail())
    await asyncio.sleep(0)
    assert len(errors) == 1


async def test_being_cancelled_is_no_failure() -> None:
    errors = list[BaseException]()
    tasks = Tasks(errors.append)
    task = tasks.start(asyncio.Event().wait())
    await tasks.stop()
    assert task.cancelled()
    assert errors == []


async def test_stop_waits_until_every_task_has_cleaned_up() -> None:
    tasks, cleaned = Tasks(list[BaseException]().append), list[int]()

    async def work(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(number)

    for number in range(30):
        tasks.start(work(number))
    await asyncio.sleep(0)
    await tasks.stop()
    assert cleaned == [*range(30)]  # in the order of their starts


async def test_stop_also_ends_a_task_that_another_starts_while_it_ends() -> None:
    tasks = Tasks(list[BaseException]().append)
    late = list[asyncio.Task[bool]]()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            late.append(tasks.start(asyncio.Event().wait()))

    tasks.start(work())
    await asyncio.sleep(0)
    await tasks.stop()
    assert late[0].cancelled()


async def test_a_task_may_stop_the_others() -> None:
    tasks = Tasks(list[BaseException]().append)
    other = tasks.start(asyncio.Event().wait())
    await tasks.start(tasks.stop())
    assert other.cancelled()


async def test_a_logged_failure_names_the_work(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks(log_failure(logging.getLogger("test"), "closing a connection"))

    async def fail() -> None:
        raise OSError("gone")

    tasks.start(fail())
    await tasks.join()
    assert "closing a connection failed: gone" in caplog.text
