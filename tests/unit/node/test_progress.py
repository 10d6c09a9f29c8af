"""The file in which a node says how far its start or its stop is."""

import asyncio
import errno
import os
from pathlib import Path

import pytest

from quorumlog.node import progress


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

    reporting = asyncio.create_task(progress.report(file, text))
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
    reporting = asyncio.create_task(progress.report(file, lambda: "opening logs: 1 of 2"))
    while not file.exists() or not file.read_text().strip():
        await asyncio.sleep(0)
    reporting.cancel()
    assert file.read_text() == "opening logs: 1 of 2"


async def test_another_error_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pwrite(descriptor: int, content: bytes, position: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(OSError, match="Input/output"):
        await progress.report(tmp_path / "node.progress", lambda: "opening logs: 1 of 2")


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
