"""A start waits for room, says so in the log and in the file of its progress, and goes on."""

import asyncio

import pytest

from quorumlog.node.room import Room, StartEnded
from quorumlog.storage.errors import DiskExhausted, StorageError

REASON = "waiting for disk space, or for a file handle: cannot use /data"


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "quorumlog.node"]


@pytest.mark.jumping_time
async def test_a_step_is_repeated_until_there_is_room(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    room, loop = Room(), asyncio.get_running_loop()
    began_s, seen = loop.time(), list[str]()

    async def step() -> int:
        seen.append(room.obstacles.below(""))
        if loop.time() - began_s < 100:
            raise DiskExhausted("cannot use /data")
        return 7

    assert await room.wait_for(step) == 7
    assert seen[0] == ""
    assert set(seen[1:]) == {f"\n{REASON}"}
    assert room.obstacles.below("") == ""
    assert len(seen) < 30
    first, again, last = lines(caplog)
    assert first == f"the start is blocked: {REASON}"
    assert again.startswith(f"{first} (")
    assert last.startswith("the start continues: disk space is free again, after 1")


async def test_another_error_ends_the_start() -> None:
    async def step() -> None:
        raise StorageError("cannot read /data")

    with pytest.raises(StorageError, match="cannot read /data"):
        await Room().wait_for(step)


@pytest.mark.jumping_time
async def test_the_wait_ends_when_the_node_is_to_stop() -> None:
    room = Room()

    async def step() -> None:
        raise DiskExhausted("cannot use /data")

    asyncio.get_running_loop().call_later(60, room.end)
    with pytest.raises(StartEnded, match="cannot use /data"):
        await room.wait_for(step)


async def test_a_step_that_finds_room_is_done_after_the_end_too() -> None:
    """A stop during a start lets the step end, so that its parts are stopped in order."""
    room, outcomes = Room(), iter([1])
    room.end()

    async def step() -> int:
        return next(outcomes)

    assert await room.wait_for(step) == 1
