"""The counts of instructions that are kept, their table in docs/benchmarks.md, and the command."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import instructions
from benchmarks.counted import FEW, MANY, Case
from quorumlog.native import lane as native_lane

LAST = json.loads(instructions.FILE.read_text())
KEPT = {"python": {"first": 110}, "native": {"first": 100}}


def test_the_page_shows_the_counts_that_are_kept() -> None:
    page = instructions.PAGE.read_text()
    assert instructions.table(LAST["counts"]) in page
    assert f"Python {LAST['python']}:" in page


def test_every_case_has_a_count() -> None:
    for lane in instructions.LANES:
        assert list(LAST["counts"][lane]) == list(instructions.CASES)


async def never(_: Path, __: int) -> bool:
    raise NotImplementedError


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Two cases of known cost, one of them counted before, and a page with an old table."""
    first, second = (
        Case(name=name, run=never, unit="batch", per_step=2) for name in ("first", "second")
    )
    page = f"before\n\n{instructions.HEAD}| first | batch | 9 | 8 |\n\nafter\n"
    (tmp_path / "page.md").write_text(page)
    (tmp_path / "kept.json").write_text(json.dumps({"python": "3", "counts": KEPT}))
    monkeypatch.setattr(instructions, "CASES", {"first": first, "second": second})
    monkeypatch.setattr(instructions, "FILE", tmp_path / "kept.json")
    monkeypatch.setattr(instructions, "PAGE", tmp_path / "page.md")
    lines = "".join(
        f"==7{at}== I refs:        {count:,}\nended 7{at} 0\n"
        for at, count in enumerate((7_000 + FEW * 200, 7_000 + MANY * 200) * 2)
    )
    words = [sys.executable, "-c", f"print({lines!r})"]
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _, **options: popen(words, **options))
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/valgrind")
    monkeypatch.setattr(native_lane, "functions", object())
    return tmp_path


def test_the_change_of_each_is_printed_and_kept(
    kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert FEW < MANY
    monkeypatch.setattr(sys, "argv", ["instructions"])
    instructions.main()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["python:"],
        ["first", "100", "per", "batch", "-9.1%"],
        ["second", "100", "per", "batch", "new"],
        ["native:"],
        ["first", "100", "per", "batch", "+0.0%"],
        ["second", "100", "per", "batch", "new"],
    ]
    counts = json.loads((kept / "kept.json").read_text())["counts"]
    assert counts == {lane: {"first": 100, "second": 100} for lane in instructions.LANES}
    table = f"{instructions.HEAD}| first | batch | 100 | 100 |\n| second | batch | 100 | 100 |\n"
    assert (kept / "page.md").read_text() == f"before\n\n{table}\nafter\n"


def test_an_empty_table_is_filled(
    kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (kept / "page.md").write_text(f"{instructions.HEAD}\n## The next\n\nafter\n")
    monkeypatch.setattr(sys, "argv", ["instructions", "first"])
    instructions.main()
    page = f"{instructions.HEAD}| first | batch | 100 | 100 |\n\n## The next\n\nafter\n"
    assert (kept / "page.md").read_text() == page
    assert "first" in capsys.readouterr().out


def test_other_counts_stay_if_cases_are_named(
    kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["instructions", "sec"])
    instructions.main()
    assert capsys.readouterr().out.split()[1:3] == ["second", "100"]
    counts = json.loads((kept / "kept.json").read_text())["counts"]
    assert counts == {lane: {**KEPT[lane], "second": 100} for lane in instructions.LANES}


def test_without_valgrind_the_command_says_so(
    kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["instructions"])
    instructions.main()
    assert "valgrind is not installed" in capsys.readouterr().out
    assert json.loads((kept / "kept.json").read_text())["counts"] == KEPT


def test_without_the_native_lane_the_command_says_so(
    kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(native_lane, "functions", None)
    monkeypatch.setattr(sys, "argv", ["instructions"])
    instructions.main()
    assert "the native lane is to be counted, too" in capsys.readouterr().out
    assert json.loads((kept / "kept.json").read_text())["counts"] == KEPT
