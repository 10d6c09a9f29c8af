"""Execute the nearest tests on each mutant, in processes that begin with all tests collected."""

import resource
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import Phase, settings

from tools.forked import BROKEN_PIPE, Executed, Forked, cpu_seconds
from tools.mutate.mutant import Mutant
from tools.mutate.nearest import Nearest, recorded
from tools.mutate.planting import NotPlanted, plant

KILLED: Final = "killed"
SURVIVED: Final = "survived"
UNTESTED: Final = "untested"
NO_PROGRAM: Final = "no program"
VERDICTS: Final = (KILLED, SURVIVED, UNTESTED, NO_PROGRAM)

OPTIONS: Final = (
    *("-q", "-m", "not integration and not spark and not planted", "--capture=no"),
    *("-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0"),
    *("--timeout=0", "-W", "ignore::pytest.PytestAssertRewriteWarning"),
)
_QUICK: Final = "quick"
"""The profile of hypothesis: searches try fewer cases."""
_ABOUT_MUTANTS: Final = ("mutant", "planted", "recall")
_BEGUN: Final = "begun"
_MEMORY_BYTES: Final = 2**30  # more than a test takes: a mutant may append for ever
_SPARE_CPU_S: Final = 3.0
_SPARE_WALL_S: Final = 20.0
_TIMES: Final = 5
"""A test has failed that takes the spare time, and so many times its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a mutant. `by`: the test that found it, and its error."""

    verdict: str
    by: str = ""
    error: str = ""
    tried: Sequence[str] = ()
    of: int = 0
    cpu_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Limits:
    """workers: processes. cpu_s: of all tests on one mutant. until_s: no mutant begins later."""

    workers: int = 2
    cpu_s: float = 20.0
    until_s: float = float("inf")


@dataclass(kw_only=True, eq=False)  # pytest hashes its plugins
class Runs(Executed):
    """A plugin of pytest: executes the collected tests on the mutants, instead of pytest.

    include: patterns of the product's files. nearest: the file that keeps the recorded lines.
    note: receives each mutant with its outcome.
    """

    mutants: Iterable[Mutant]
    root: Path
    include: Sequence[str]
    nearest: Path
    limits: Limits
    note: Callable[[Mutant, Outcome], None]
    _items: dict[str, pytest.Item] = field(default_factory=dict)
    _sound: Nearest = field(default_factory=Nearest)
    _finders: dict[str, dict[str, None]] = field(default_factory=dict)
    """The tests that found mutants of a file, the latest last."""

    def __post_init__(self) -> None:
        super().__init__()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Shrink no failing example: that costs more than to find it."""
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile(
            _QUICK,
            settings(deadline=None, max_examples=25),
            phases=phases,
            database=None,
            report_multiple_bugs=False,
        )
        settings.load_profile(_QUICK)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out tests about mutants."""
        items[:] = [
            item for item in items if not any(word in item.nodeid for word in _ABOUT_MUTANTS)
        ]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Execute the tests, instead of pytest."""
        if session.testsfailed:
            raise session.Failed("the tests cannot be collected")
        self._items = {item.nodeid: item for item in session.items}
        self._sound = recorded(
            session.items,
            self,
            root=self.root,
            include=self.include,
            file=self.nearest,
            workers=self.limits.workers,
        )
        self._share_out(iter(self.mutants))
        return True

    # --- In the process of the command ---

    def _share_out(self, mutants: Iterator[Mutant]) -> None:
        processes = [Forked(self._serve) for _ in range(self.limits.workers)]
        under_way: dict[Any, tuple[Forked, Mutant]] = {}
        idle = processes
        while True:
            for process in idle:
                late = time.monotonic() > self.limits.until_s
                mutant = None if late else next(mutants, None)
                if mutant is None:
                    process.__exit__()
                else:
                    process.connection.send(mutant)
                    under_way[process.connection] = process, mutant
            if not under_way:
                return
            idle = []
            for connection in wait([*under_way]):
                process, mutant = under_way.pop(connection)
                self.note(mutant, process.receive())
                idle.append(process)

    # --- In the process of a worker ---

    def _serve(self, connection: "Connection[Any, Any]") -> None:
        while True:
            try:
                mutant = connection.recv()
            except BROKEN_PIPE:
                return
            outcome = self._judged(mutant)
            if outcome.verdict == KILLED:
                finders = self._finders.setdefault(mutant.path, {})
                finders.pop(outcome.by, None)
                finders[outcome.by] = None
            connection.send(outcome)

    def _judged(self, mutant: Mutant) -> Outcome:
        nearest = [one for one in self._sound.of(mutant) if one in self._items]
        if not nearest:
            return Outcome(verdict=UNTESTED)
        finders = self._finders.get(mutant.path, {})
        first = [one for one in reversed(finders) if one in nearest]
        ordered = [*first, *(one for one in nearest if one not in finders)]
        with Forked(lambda link: self._executed(link, mutant, ordered)) as process:
            return self._followed(process, ordered)

    def _followed(self, process: Forked, tests: Sequence[str]) -> Outcome:
        """Follow the tests on a mutant until one fails, ends its process, or takes too long."""
        tried: list[str] = []
        spent = 0.0
        while True:
            under_way = tried[-1] if tried else tests[0]
            patience = _SPARE_WALL_S + _TIMES * self._sound.tests[under_way].wall_s
            name, error, cpu_s = under_way, "time", 0.0
            if process.connection.poll(patience):
                try:
                    name, error, cpu_s = process.receive()
                except BROKEN_PIPE:
                    error = "exit"
                if error == _BEGUN:
                    tried.append(name)
                    continue
            spent += cpu_s
            if error == NO_PROGRAM:
                return Outcome(verdict=NO_PROGRAM, error=name)
            if error:
                return Outcome(
                    verdict=KILLED,
                    by=under_way,
                    error=error,
                    tried=tried,
                    of=len(tests),
                    cpu_s=round(spent, 2),
                )
            if len(tried) == len(tests) or spent > self.limits.cpu_s:
                return Outcome(verdict=SURVIVED, tried=tried, of=len(tests), cpu_s=round(spent, 2))

    # --- In the process of a mutant ---

    def _executed(
        self, connection: "Connection[Any, Any]", mutant: Mutant, tests: Sequence[str]
    ) -> None:
        try:
            plant(mutant.path, mutant.function, mutant.mutated)
        except NotPlanted as error:
            connection.send((str(error), NO_PROGRAM, 0.0))
            return
        _limit_memory()
        items = [self._items[name] for name in tests]
        for item, following in zip(items, [*items[1:], None], strict=True):
            connection.send((item.nodeid, _BEGUN, 0.0))
            # Its signal ends the process: an endless loop of a mutant is a failure.
            sound = self._sound.tests[item.nodeid]
            signal.setitimer(signal.ITIMER_PROF, _SPARE_CPU_S + _TIMES * sound.cpu_s)
            begun = cpu_seconds()
            failure = self.execute(item, following)
            connection.send((item.nodeid, failure, cpu_seconds() - begun))


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _MEMORY_BYTES, most))
