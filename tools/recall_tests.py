"""The levels `unit` and `property`: the tests of the product, with a planted bug in it.

`python -m tools.recall_tests LEVEL --mutants A,B` prints one JSON line for each mutant. It collects
the tests once, and executes them once as they are: a test that fails there is left out, and each
test's CPU time and use of the rules are noted. Then it forks a process for each mutant, breaks the
rule there, and executes the tests that use the rule, the cheapest first, until one fails.
"""

import argparse
import json
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, TextIO

import pytest
from hypothesis import Phase, settings

from tools.forked import BROKEN_PIPE, Executed, Forked, cpu_seconds
from tools.recall_injection import Site, inject, sites_of, watch
from tools.recall_runs import MUTANTS, TEST_CPU_S

LEVELS: Final = {
    "unit": (
        *(
            f"tests/unit/{package}"
            for package in ("broker", "metadata_quorum", "mirror", "node", "storage")
        ),
        "tests/golden",
        "tests/paper",
    ),
    "property": ("tests/property",),
}
_TEST_SECONDS: Final = 60
"""A test that takes longer has found a bug: the whole of it takes less."""
_OPTIONS: Final = (
    *("-q", "-m", "not integration and not spark and not planted", "--capture=no"),
    *("-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0"),
    *(f"--timeout={_TEST_SECONDS}", "-W", "ignore::pytest.PytestAssertRewriteWarning"),
)
_BEGUN: Final = "begun"
_OF_OLDER_OBJECTS: Final = "AttributeError"
"""An object from before the bug lacks the attributes of the mutant's `__init__`."""
_ABOUT_MUTANTS: Final = ("mutant", "planted", "recall")

Cell = dict[str, Any]


@dataclass(kw_only=True)
class Sound:
    """A test without a mutant."""

    passed: bool = False
    cpu_s: float = 0.0
    sites: set[str] = field(default_factory=set)


class Runs(Executed):
    """A plugin of pytest that executes the collected tests with each of the mutants."""

    def __init__(
        self, mutants: Sequence[str], cpu_s: float, known: Path | None, out: TextIO
    ) -> None:
        super().__init__()
        self._mutants: Final = mutants
        self._cpu_s: Final = cpu_s
        self._known: Final = known
        self._out: Final = out

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Shrink no failing example: that costs more than to find it."""
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile(
            "recall", settings(), phases=phases, database=None, report_multiple_bugs=False
        )
        settings.load_profile("recall")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out tests about mutants."""
        items[:] = [
            item for item in items if not any(word in item.nodeid for word in _ABOUT_MUTANTS)
        ]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Execute the tests, instead of pytest."""
        items = {item.nodeid: item for item in session.items}
        sound = self._sound(items)
        for mutant in self._mutants:
            cell = self._cell(mutant, items, sound)
            self._out.write(json.dumps({"mutant": mutant, "cell": cell}) + "\n")
            self._out.flush()
        return True

    def _cell(self, mutant: str, items: dict[str, pytest.Item], sound: dict[str, Sound]) -> Cell:
        sites = {_named(site) for site in sites_of(mutant)}
        if not sites:
            return {"reason": "the mutant is no class that inherits a rule"}
        wanted = sorted(
            (name for name, one in sound.items() if one.passed and one.sites & sites),
            key=lambda name: sound[name].cpu_s,
        )
        if not wanted:
            return {"found_by": None, "tried": 0, "of": 0, "cpu_s": 0.0}
        while True:
            cell = self._attempt([items[name] for name in wanted], mutant)
            suspect = cell["found_by"]
            if suspect is None or self._is_finding(items[suspect], mutant, cell["told_by"]):
                return cell
            wanted.remove(suspect)

    def _attempt(self, items: list[pytest.Item], mutant: str | None) -> Cell:
        cell: Cell = {"found_by": None, "tried": 0, "of": len(items), "cpu_s": 0.0}
        under_way: str | None = None
        for nodeid, error, cpu_s in _forked(lambda: self._executed(items, mutant)):
            if error == _BEGUN:
                under_way = nodeid
                cell["tried"] += 1
                continue
            under_way = None
            cell["cpu_s"] = round(cell["cpu_s"] + cpu_s, 2)
            if error:
                cell |= {"found_by": nodeid, "told_by": error}
        return cell if under_way is None else {**cell, "found_by": under_way, "told_by": "exit"}

    def _is_finding(self, item: pytest.Item, mutant: str, error: str) -> bool:
        """Execute a failed test again, with and without the mutant: chance may fail it."""
        if error == _OF_OLDER_OBJECTS:
            return False
        sound, broken = self._attempt([item], None), self._attempt([item], mutant)
        return sound["found_by"] is None and broken["found_by"] is not None

    def _sound(self, items: dict[str, pytest.Item]) -> dict[str, Sound]:
        if self._known is not None and self._known.exists():
            known: dict[str, Sound] = pickle.loads(self._known.read_bytes())  # noqa: S301 - our own
            return {name: one for name, one in known.items() if name in items}
        found = dict(_forked(lambda: self._watched([*items.values()])))
        if self._known is not None:
            self._known.write_bytes(pickle.dumps(found))
        return found

    def _watched(self, items: list[pytest.Item]) -> Iterator[tuple[str, Sound]]:
        used: set[str] = set()
        sites = [site for mutant in MUTANTS for site in sites_of(mutant)]
        watch(sites, lambda site: used.add(_named(site)))
        for item, following in zip(items, [*items[1:], None], strict=True):
            used.clear()
            error, cpu_s = self._one(item, following)
            yield item.nodeid, Sound(passed=error is None, cpu_s=cpu_s, sites={*used})

    def _executed(
        self, items: list[pytest.Item], mutant: str | None
    ) -> Iterator[tuple[str, str | None, float]]:
        if mutant is not None:
            inject(mutant)
        left = self._cpu_s
        for item, following in zip(items, [*items[1:], None], strict=True):
            yield item.nodeid, _BEGUN, 0.0
            error, cpu_s = self._one(item, following)
            yield item.nodeid, error, cpu_s
            left -= cpu_s
            if error or left < 0:
                return

    def _one(self, item: pytest.Item, following: pytest.Item | None) -> tuple[str | None, float]:
        begun = cpu_seconds()
        return self.execute(item, following), cpu_seconds() - begun


def _named(site: Site) -> str:
    return f"{site[0].__module__}.{site[0].__qualname__}.{site[1]}"


def _forked(work: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Yield the results of work in a process of its own."""

    def carry_out(connection: "Connection[Any, Any]") -> None:
        for result in work():
            connection.send(result)

    with Forked(carry_out) as process:
        while True:
            try:
                yield process.receive()
            except BROKEN_PIPE:
                return


def main(arguments: Sequence[str]) -> int:
    """Execute the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("level", choices=LEVELS)
    parser.add_argument("--mutants", required=True)
    parser.add_argument("--cpu-seconds", type=float, default=TEST_CPU_S)
    parser.add_argument("--known", type=Path, help="keeps the results without a mutant")
    given = parser.parse_args(arguments)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    runs = Runs(given.mutants.split(","), given.cpu_seconds, given.known, out)
    return int(pytest.main([*_OPTIONS, *LEVELS[given.level]], plugins=[runs]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
