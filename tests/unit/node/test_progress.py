"""The file in which a node writes how far its start or its stop is; a start that waits for room."""

import asyncio
import errno
import os
from pathlib import Path

import pytest

from quorumlog.node import progress
from quorumlog.node.room import Room, StartEnded
from quorumlog.storage.errors import DiskExhausted, StorageError
from tests.support.waiting import loop_turns, until


async def _always() -> None:
    pass


async def test_each_new_text_replaces_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "INTERVAL_S", 0)
    file = progress.progress_file(tmp_path / "node.pid")
    file.write_text("what the process before said")
    texts = iter(["", "opening logs: 9 of 10", "opening logs: 9 of 10", "", "closing logs: 1 of 9"])
    seen: list[str] = []

    def text() -> str:
        seen.append(file.read_text().strip())
        return next(texts, "")

    reporting = asyncio.create_task(progress.report(file, text, _always))
    while len(seen) < 6:
        await asyncio.sleep(0)
    reporting.cancel()
    opening = "opening logs: 9 of 10"
    assert seen[:6] == ["", "", opening, opening, opening, "closing logs: 1 of 9"]


def test_reasons_come_below_the_progress_one_for_each_subject() -> None:
    obstacles = progress.Obstacles()
    assert obstacles.below("") == ""
    obstacles.note("quorum", "it waits for node 2")
    obstacles.note("quorum", "it waits for node 3")
    obstacles.note("log", "p-0 is damaged:\nrestore it", is_final=True)
    text = obstacles.below("opening logs: 1 of 2")
    assert text.splitlines()[0] == "opening logs: 1 of 2"
    final = "it cannot get ready: p-0 is damaged: restore it"
    assert progress.reasons_in(text) == ["it waits for node 3", final]
    assert progress.final_reason_in(text) == final
    obstacles.clear("log")
    assert progress.final_reason_in(obstacles.below("")) is None
    assert progress.reasons_in(obstacles.below("")) == ["it waits for node 3"]


async def test_a_full_disk_does_not_end_the_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "INTERVAL_S", 0)
    write, refusals = os.pwrite, iter([errno.ENOSPC, errno.EDQUOT])

    def pwrite(descriptor: int, content: bytes, position: int) -> int:
        for number in refusals:
            raise OSError(number, os.strerror(number))
        return write(descriptor, content, position)

    monkeypatch.setattr(os, "pwrite", pwrite)
    file = progress.progress_file(tmp_path / "node.pid")
    reporting = asyncio.create_task(progress.report(file, lambda: "opening logs: 1 of 2", _always))
    while not file.exists() or not file.read_text().strip():
        await asyncio.sleep(0)
    reporting.cancel()
    assert file.read_text() == "opening logs: 1 of 2"


async def test_another_error_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pwrite(descriptor: int, content: bytes, position: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(OSError, match="Input/output"):
        await progress.report(tmp_path / "node.progress", lambda: "opening logs", _always)


def test_the_exit_status_is_neither_progress_nor_a_reason(tmp_path: Path) -> None:
    file = progress.progress_file(tmp_path / "node.pid")
    file.write_text("closing logs: 70 of 90")
    assert progress.exit_status_in(file.read_text()) is None
    progress.note_end(file, 70)
    text = file.read_text()
    assert progress.exit_status_in(text) == 70
    assert text.partition("\n")[0] == ""
    assert progress.reasons_in(text) == []
    progress.blank(file)
    assert progress.exit_status_in(file.read_text()) is None


# --- a start waits for room, names this in its log and its progress, and goes on ---


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


async def test_no_text_is_made_while_no_process_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "INTERVAL_S", 0)
    needed, asked = asyncio.Event(), 0

    def text() -> str:
        nonlocal asked
        asked += 1
        return f"closing logs: {asked} of 9"

    file = progress.progress_file(tmp_path / "node.pid")
    reporting = asyncio.create_task(progress.report(file, text, needed.wait))
    await loop_turns(9)
    assert asked == 1
    needed.set()
    await until(lambda: asked > 2)
    reporting.cancel()
    assert file.read_text().startswith("closing logs: ")
