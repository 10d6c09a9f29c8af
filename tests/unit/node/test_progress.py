"""The file in which a node says how far its start or its stop is."""

import asyncio
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
        seen.append(file.read_text())
        return next(texts, "")

    reporting = asyncio.create_task(progress.report(file, text))
    while len(seen) < 6:
        await asyncio.sleep(0)
    reporting.cancel()
    opening = "opening logs: 9 of 10"
    assert seen[:6] == ["", "", opening, opening, opening, "closing logs: 1 of 9"]
