"""tools.mutate on a package of two rules: a bug that a test finds, and bugs that none does."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tools.mutate.notes import EQUIVALENTS, read_equivalents
from tools.mutate.sources import Sources

ROOT = Path(__file__).parents[2]
RULES = """
class Parent:
    def note(self) -> None:
        self.noted = True


class Log(Parent):
    def __init__(self) -> None:
        self.end = 0

    def may_read(self, offset: int) -> bool:
        return offset < self.end

    def is_full(self, size: int) -> bool:
        return size > 10

    def append(self) -> None:
        super().note()
        self.end += 1

    @property
    def is_empty(self) -> bool:
        return self.end <= 0

    async def drained(self) -> int:
        while self.end > 0:
            self.end -= 1
        return self.end


def never_called(x: int) -> bool:
    return x < 1
"""
TESTS = """
import asyncio

from tiny.core.rules import Log


def test_the_end_is_exclusive():
    log = Log()
    assert log.is_empty
    log.append()
    assert log.noted
    assert log.may_read(0)
    assert not log.may_read(1)
    assert not log.is_empty


def test_a_small_log_is_not_full():
    assert not Log().is_full(5)
    assert Log().is_full(50)


def test_a_log_is_drained():
    log = Log()
    log.append()
    assert asyncio.run(log.drained()) == 0


def test_that_fails_by_itself():
    assert Log().is_full(0)
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    for name, text in {
        "tiny/__init__.py": "",
        "tiny/core/__init__.py": "",
        "tiny/core/rules.py": RULES,
        "tests/test_rules.py": TESTS,
        "tests/data/equivalent_mutants.json": "[]",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def mutate(tiny: Path, *options: str) -> tuple[int, str]:
    of_it = ("--root", str(tiny), "--product", "tiny", "--packages", "core", "--tests", "tests")
    done = subprocess.run(
        [sys.executable, "-m", "tools.mutate", *of_it, "--workers", "1", *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tiny}", "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def outcomes(tiny: Path) -> dict[str, str]:
    """Return the verdict of each mutant by its changed line."""
    lines = (tiny / ".cache/mutate/outcomes.jsonl").read_text().splitlines()
    return {one["key"][3]: one["outcome"]["verdict"] for one in map(json.loads, lines)}


def test_survivors_are_shown_until_they_are_judged_or_a_test_kills_them(tiny: Path) -> None:
    status, said = mutate(tiny, "--all")
    assert outcomes(tiny) == {
        "return offset <= self.end": "killed",
        "return size >= 10": "survived",
        "pass": "killed",
        "return self.end < 0": "killed",
        "while self.end >= 0:": "killed",
        "return x <= 1": "untested",
    }
    assert status == 1
    assert "tiny/core/rules.py:15 Log.is_full: flip a comparison" in said
    assert "-        return size > 10\n+        return size >= 10" in said
    assert "1 of 1 tests pass" in said
    assert "test_a_small_log_is_not_full" in said
    assert "no test executes it" in said
    kept = tiny / ".cache/mutate/outcomes.jsonl"
    before = kept.read_text()
    assert mutate(tiny, "--all")[0] == 1
    assert kept.read_text() == before  # neither the killed nor the survivors ran again
    judged = [
        {"path": "tiny/core/rules.py", "function": function, "before": before, "after": after}
        for function, before, after in (
            ("Log.is_full", "return size > 10", "return size >= 10"),
            ("never_called", "return x < 1", "return x <= 1"),
        )
    ]
    accepted = tiny / "tests/data/equivalent_mutants.json"
    accepted.write_text(json.dumps([{**one, "reason": "sizes are odd"} for one in judged]))
    status, said = mutate(tiny, "--all")
    assert (status, "flip a comparison" in said) == (0, False)
    accepted.write_text(json.dumps([{**judged[0], "reason": " "}]))
    assert "an equivalent mutant has a reason" in mutate(tiny, "--all")[1]
    accepted.write_text("[]")
    test = tiny / "tests/test_rules.py"
    test.write_text(test.read_text() + "\n\ndef test_ten():\n    assert not Log().is_full(10)\n")
    mutate(tiny, "--all")
    added = kept.read_text().removeprefix(before)
    again = {one["key"][3]: one["outcome"] for one in map(json.loads, added.splitlines())}
    assert again.keys() == {"return size >= 10", "return x <= 1"}
    assert again["return size >= 10"]["by"] == "tests/test_rules.py::test_ten"


def test_the_lines_since_a_commit(tiny: Path) -> None:
    for command in (
        ("init", "-q"),
        ("add", "-A"),
        ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first"),
    ):
        subprocess.run(["git", *command], cwd=tiny, check=True)
    rules = tiny / "tiny/core/rules.py"
    rules.write_text(rules.read_text().replace("size > 10", "size > 20"))
    mutate(tiny, "--since", "HEAD")
    assert outcomes(tiny) == {"return size >= 20": "survived"}


def test_each_judged_mutant_is_a_mutant_of_today() -> None:
    sources, judged = Sources(ROOT), read_equivalents(ROOT / EQUIVALENTS)
    paths = {path for path, *_ in judged.reasons}
    assert [
        key for path in sorted(paths) for key in judged.stale(path, sources.mutants(path))
    ] == []
    unknown = replace(judged, reasons={("a.py", "f", "x", "y", 0): "why"})
    assert unknown.stale("a.py", []) == [("a.py", "f", "x", "y", 0)]
