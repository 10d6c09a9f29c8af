"""One test that uses the lab: its seed, its directory, and its output below a failure.

The directory has the layout of a `quorumlog chaos run`: history, verdict, report, cluster. It is
removed when the test has passed.
"""

import os
import re
import shlex
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from quorumlog.testing.options import OPTIONS, Options

if TYPE_CHECKING:
    from quorumlog.chaos.checkers import Verdict
    from quorumlog.cluster import LocalCluster

_SEEDS: Final = 1_000_000
_NAME_MAX: Final = 100
_ACTS_MAX: Final = 20
_SEED, _VERDICT, _STORE = "quorumlog_seed", "quorumlog_verdict", "quorumlog_store"
PROPERTIES: Final = frozenset({_SEED, _VERDICT, _STORE})
_BASE: Final = "quorumlog"  # in pytest's temporary directory


class Trial:
    """The shared state of one test's fixtures."""

    def __init__(self, item: pytest.Item, base: Path) -> None:
        self._item: Final = item
        self.name: Final = item.nodeid
        self._options: Final = item.config.stash[OPTIONS]
        self.store: Final = store_directory(self._options, base) / directory_name(item.nodeid)
        self.records: list[Callable[[str, str, str], object]] = []  # each into a history
        self.verdict: Verdict | None = None
        self.command: tuple[str, ...] | None = None  # repeats the run; None: pytest does
        self.has_failed = False
        self.judges: list[Callable[[], str | None]] = []  # each returns an error, or None
        self.began_s = time.monotonic()  # the start of the test's body
        self._acts_done: Final[list[tuple[float, str, str, str]]] = []  # the nemesis's acts
        self._seed: int | None = None

    def seed(self, of_mark: int | None = None) -> int:
        """Return the seed, and record that the test depends on it."""
        if self._seed is None or of_mark is not None:
            self._seed = seed_of(self._item, of_mark)
        return self._seed

    def note(self, f: str, node: str, details: str) -> None:
        """Record an act of the nemesis, for the failure's report and in the history, if any."""
        self._acts_done.append((time.monotonic() - self.began_s, f, node, details))
        for record in self.records:
            record(f, node, details)

    def complaints(self) -> Iterator[str]:
        """Yield the errors of a test whose body has passed."""
        for judge in self.judges:
            if complaint := judge():
                yield complaint

    @property
    def is_kept(self) -> bool:
        """Whether the directory is kept."""
        return self.has_failed or self._options.keep

    def properties(self) -> list[tuple[str, object]]:
        """Return the properties of the test in JUnit's file."""
        told: list[tuple[str, object]] = []
        if self._seed is not None:
            told.append((_SEED, self._seed))
        if self.verdict is not None:
            told.append((_VERDICT, WORDS[str(self.verdict.valid)].lower()))
        if self.is_kept and self.store.exists():
            told.append((_STORE, str(self.store)))
        return told

    def lines(self) -> list[str]:
        """Return the lines to show below a failure."""
        lines = [] if self.verdict is None else describe(self.verdict)
        lines += self._acts()
        if self.store.exists():
            lines.append(f"kept    {self.store}")
            if self._options.store is None:
                lines.append(f"        {self._retention()}; --quorumlog-store DIR keeps it")
        return [*lines, f"repeat  {shlex.join(self.command or self._pytest_command())}"]

    def _acts(self) -> Iterator[str]:
        """Yield the last acts of the nemesis: `kill 2 at 1.3 s (partition-leader)`."""
        if not self._acts_done:
            return
        from quorumlog.chaos.faults.rows import read_details

        for at_s, f, node, details in self._acts_done[-_ACTS_MAX:]:
            read = read_details(details)
            remark = details if read is None else read[2]
            yield (
                f"nemesis {f} {node}".rstrip() + f" at {at_s:.1f} s" + f" ({remark})" * bool(remark)
            )

    def _retention(self) -> str:
        if self._item.config.option.basetemp is not None:
            return "the next run of pytest with this --basetemp removes it"
        count = self._item.config.getini("tmp_path_retention_count")
        return f"pytest removes it after {count} runs"

    def _pytest_command(self) -> tuple[str, ...]:
        seed = () if self._seed is None else ("--quorumlog-seed", str(self._seed))
        rest = self._item.nodeid.partition("::")[2]
        file = os.path.relpath(self._item.path, self._item.config.invocation_params.dir)
        return ("pytest", f"{file}::{rest}", *seed)

    def make_room(self) -> None:
        """Remove the files of an earlier run of this test. Raises ValueError for foreign files."""
        from quorumlog.chaos.run.run_directory import make_room

        make_room(self.store)

    def finish(self) -> None:
        """Remove the directory, unless it is to be kept."""
        if not self.is_kept:
            shutil.rmtree(self.store, ignore_errors=True)


TRIAL: Final = pytest.StashKey[Trial]()
CLUSTERS: Final = pytest.StashKey[list["LocalCluster"]]()
"""Clusters that a test created besides `quorumlog_cluster`."""
WORDS: Final = {"True": "VALID", "False": "INVALID", "unknown": "UNKNOWN"}


def forget_attempt(item: pytest.Item) -> None:
    """Forget an earlier attempt at the same test: its fixtures are made anew."""
    if TRIAL in item.stash:
        del item.stash[TRIAL]
    if CLUSTERS in item.stash:
        del item.stash[CLUSTERS]


def seed_of(item: pytest.Item, of_mark: int | None) -> int:
    """Return the seed of --quorumlog-seed, else of the mark, else a hash of the test's name.

    So a test meets the same faults in each run, and two tests meet different faults.
    """
    given = item.config.stash[OPTIONS].seed
    if given is None:
        given = of_mark
    return zlib.crc32(item.nodeid.encode()) % _SEEDS if given is None else given


def store_directory(options: Options, base: Path) -> Path:
    """Return the directory of all runs; `base` is pytest's temporary directory."""
    return base / _BASE if options.store is None else options.store


def directory_name(nodeid: str) -> str:
    """Return the directory name of a test, unique for each test."""
    plain = re.sub(r"[^\w.]+", "-", nodeid).strip("-")
    if len(plain) <= _NAME_MAX and re.fullmatch(r"[\w./]+\.py(::\w+)+", nodeid):
        return plain
    return f"{plain[:_NAME_MAX]}-{zlib.crc32(nodeid.encode()):08x}"


def describe(verdict: "Verdict") -> list[str]:
    """Return a verdict in a few lines: each anomaly with its count and its first witness."""
    lines = [f"{WORDS[str(verdict.valid)]}: {verdict.operations} operations"]
    lines += [f"  unknown: {reason}" for reason in verdict.unknown_because]
    for result in verdict.results:
        explained = f", {result.explained_part} follow from the above" * bool(result.explained)
        lines.append(f"  {result.name}: {result.count} ({result.severity.name.lower()}{explained})")
        lines += [f"    e.g. {first['key']}: {first['note']}" for first in result.witnesses[:1]]
    return lines
