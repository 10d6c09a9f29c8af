"""The tests that execute a line, by coverage.py with a context for each test.

They are recorded once for a state of the product and its tests, and kept in a file.
"""

import hashlib
import pickle
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final

import coverage
import pytest

from tools.forked import BROKEN_PIPE, Executed, Forked, cpu_seconds
from tools.mutate.mutant import Mutant

_KEPT: Final = "nearest-"
Lines = dict[str, dict[int, list[str]]]  # path -> line -> ids of tests


@dataclass(frozen=True, slots=True)
class Sound:
    """A test without a mutant: its times in seconds, while coverage was recorded."""

    passed: bool
    cpu_s: float
    wall_s: float


@dataclass(frozen=True, slots=True)
class Nearest:
    """Which tests execute which lines of the product."""

    tests: dict[str, Sound] = field(default_factory=dict)
    lines: Lines = field(default_factory=dict)

    def of(self, mutant: Mutant) -> list[str]:
        """Return the tests that pass without the mutant and execute its lines, cheapest first."""
        lines = self.lines.get(mutant.path, {})
        ids = {test for line in mutant.at_lines for test in lines.get(line, ())}
        passed = [one for one in ids if one in self.tests and self.tests[one].passed]
        return sorted(passed, key=lambda one: (self.tests[one].cpu_s, one))


def digest_of(root: Path, directories: Iterable[str]) -> str:
    """Return a digest of all modules below the directories."""
    found = hashlib.sha256()
    for directory in directories:
        for path in sorted((root / directory).rglob("*.py")):
            found.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def recorded(
    items: Sequence[pytest.Item],
    executed: Executed,
    *,
    root: Path,
    include: Sequence[str],
    file: Path,
    workers: int,
) -> Nearest:
    """Return the recorded lines, or record them now. include: patterns of the product's files."""
    if file.exists():
        kept: Nearest = pickle.loads(file.read_bytes())  # noqa: S301 - our own
        return kept
    nearest = Nearest()
    shares = [_share(items, index, workers) for index in range(workers)]

    def work(index: int, connection: "Connection[Any, Any]") -> None:
        connection.send(_record(shares[index], executed, root, include))

    processes = [Forked(lambda link, index=index: work(index, link)) for index in range(workers)]  # type: ignore[misc]
    waiting = {process.connection: process for process in processes}
    while waiting:
        for connection in wait([*waiting]):
            process = waiting.pop(connection)  # type: ignore[call-overload]
            with process:
                try:
                    _join(nearest, process.receive())
                except BROKEN_PIPE as error:
                    raise RuntimeError("a process ended while it recorded the tests") from error
    for older in file.parent.glob(f"{_KEPT}*"):
        older.unlink()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(pickle.dumps(nearest))
    return nearest


def kept_in(directory: Path, digest: str) -> Path:
    """Return the file of the lines for a digest of the product and its tests."""
    return directory / f"{_KEPT}{digest}.pickle"


def _share(items: Sequence[pytest.Item], index: int, workers: int) -> list[pytest.Item]:
    """Return the tests of every nth file: tests of a file share fixtures."""
    files = {path: at for at, path in enumerate(dict.fromkeys(item.path for item in items))}
    return [item for item in items if files[item.path] % workers == index]


def _record(
    items: Sequence[pytest.Item], executed: Executed, root: Path, include: Sequence[str]
) -> Nearest:
    """Execute tests, and record the lines that each of them executes."""
    recorder = coverage.Coverage(data_file=None, config_file=False, include=[*include])
    nearest = Nearest()
    recorder.start()
    for item, following in zip(items, [*items[1:], None], strict=True):
        recorder.switch_context(item.nodeid)
        begun_s, cpu_s = time.monotonic(), cpu_seconds()
        error = executed.execute(item, following)
        nearest.tests[item.nodeid] = Sound(
            error is None, cpu_seconds() - cpu_s, time.monotonic() - begun_s
        )
    recorder.stop()
    data = recorder.get_data()
    for name in data.measured_files():
        path = str(Path(name).relative_to(root))
        found = data.contexts_by_lineno(name)
        nearest.lines[path] = {line: [one for one in tests if one] for line, tests in found.items()}
    return nearest


def _join(nearest: Nearest, other: Nearest) -> None:
    nearest.tests.update(other.tests)
    for path, lines in other.lines.items():
        into = nearest.lines.setdefault(path, {})
        for line, tests in lines.items():
            into.setdefault(line, []).extend(tests)
