"""Mutate seams by machine, and print the mutants that no near test finds.

    python -m tools.mutate --since COMMIT           the lines that differ from a commit
    python -m tools.mutate --sample 200 --seed 1    mutants that a seed draws
    python -m tools.mutate --all --minutes 480      everything; the next night resumes

    --packages A,B     only mutants of these packages
    --operators A,B    only these operators: their first words, as `swap,flip`
    --under PATH       only mutants of modules whose path begins so
    --workers N        processes (2)
    --minutes N        begin nothing new after N minutes
    --cpu-seconds N    of tests on one mutant (20)
    --again            try all mutants again, whatever earlier commands have found

A mutant drops an argument or an effect, skips a condition, flips a comparison, or swaps an offset
for its neighbour. The tests that execute its line run on it, the cheapest first, until one fails.
Survivors are printed with the tests that ran. A survivor that no test can find is an entry, with
its reason, of tests/data/equivalent_mutants.json. Exit status 1: there are survivors.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest
from rich.console import Console
from rich.table import Table

from tools.mutate.mutant import Mutant
from tools.mutate.nearest import digest_of, kept_in
from tools.mutate.notes import EQUIVALENTS, Equivalents, Notes, read_equivalents
from tools.mutate.operators import OPERATORS
from tools.mutate.runs import KILLED, NO_PROGRAM, OPTIONS, SURVIVED, UNTESTED, Limits, Outcome, Runs
from tools.mutate.sources import PACKAGES, Sources, every, sample, since

TESTS: Final = (
    *(f"tests/unit/{name}" for name in ("broker", "metadata_quorum", "storage", "client", "node")),
    "tests/golden",
    "tests/paper",
    "tests/property",
)
KEPT: Final = Path(".cache/mutate")
EQUIVALENT: Final = "equivalent"
_COLUMNS: Final = (KILLED, EQUIVALENT, SURVIVED, UNTESTED)
_TESTS_SHOWN: Final = 5


class Report:
    """Prints the survivors as they come, and the counts of each package at the end."""

    def __init__(self, out: Console, notes: Notes) -> None:
        self._out: Final = out
        self._notes: Final = notes
        self.counts: Counter[tuple[str, str]] = Counter()

    def note(self, mutant: Mutant, outcome: Outcome) -> None:
        """Write down a new outcome, and print it if the mutant survives."""
        self._notes.add(mutant, outcome)
        self.show(mutant, outcome)

    def show(self, mutant: Mutant, outcome: Outcome) -> None:
        """Count an outcome, and print it if the mutant survives."""
        if outcome.verdict == NO_PROGRAM:
            return
        self.count(mutant, outcome.verdict)
        if outcome.verdict in {SURVIVED, UNTESTED}:
            self._print(mutant, outcome)

    def count(self, mutant: Mutant, verdict: str) -> None:
        """Count a mutant of a package."""
        self.counts[Path(mutant.path).parts[1], verdict] += 1

    def _print(self, mutant: Mutant, outcome: Outcome) -> None:
        lines = [f"{mutant.place}: {mutant.operator}", mutant.diff]
        if outcome.verdict == UNTESTED:
            lines.append("no test executes it")
        else:
            lines.append(f"{len(outcome.tried)} of {outcome.of} tests pass, {outcome.cpu_s} s:")
            lines += [f"    {one}" for one in outcome.tried[-_TESTS_SHOWN:]]
        self._out.print("\n".join(lines) + "\n", markup=False, highlight=False, soft_wrap=True)

    def print_counts(self) -> None:
        """Print the table."""
        table = Table("package", "tried", *_COLUMNS)
        for package in dict.fromkeys(package for package, _ in sorted(self.counts)):
            found = [self.counts[package, verdict] for verdict in _COLUMNS]
            table.add_row(package, str(sum(found)), *map(str, found))
        self._out.print(table)

    @property
    def survivors(self) -> int:
        """The number of mutants that no test has found."""
        return sum(
            count for (_, verdict), count in self.counts.items() if verdict in {SURVIVED, UNTESTED}
        )


def to_run(
    mutants: Iterable[Mutant], report: Report, notes: Notes | None, equivalents: Equivalents
) -> Iterator[Mutant]:
    """Yield the mutants without a known outcome; count the others.

    notes: None if each mutant is to run.
    """
    for mutant in mutants:
        if mutant in equivalents:
            report.count(mutant, EQUIVALENT)
        elif notes is not None and (outcome := notes.find(mutant)) is not None:
            report.show(mutant, outcome)
        else:
            yield mutant


def main(arguments: Sequence[str]) -> int:
    """Execute the command line; return the exit status."""
    given = _given(arguments)
    root = given.root.resolve()
    sources = Sources(root, given.product, given.packages.split(","))
    tests = given.tests.split(",")
    digest = digest_of(root, [sources.product, "tests"])
    notes = Notes(root / KEPT / "outcomes.jsonl", digest)
    report = Report(Console(file=sys.stdout), notes)
    found = to_run(
        _chosen(sources, given),
        report,
        None if given.again else notes,
        read_equivalents(root / EQUIVALENTS),
    )
    runs = Runs(
        mutants=found,
        root=root,
        include=[f"{root}/{sources.product}/{package}/*" for package in sources.packages],
        nearest=kept_in(root / KEPT, digest),
        limits=Limits(
            workers=given.workers,
            cpu_s=given.cpu_seconds,
            until_s=time.monotonic() + 60 * given.minutes,
        ),
        note=report.note,
    )
    status = int(
        pytest.main(
            [*OPTIONS, f"--rootdir={root}", *(str(root / one) for one in tests)], plugins=[runs]
        )
    )
    report.print_counts()
    return status or (1 if report.survivors else 0)


def _chosen(sources: Sources, given: argparse.Namespace) -> Iterable[Mutant]:
    if given.since:
        found: Iterable[Mutant] = since(sources, given.since)
    elif given.sample:
        found = sample(sources, given.sample, given.seed)
    else:
        found = every(sources)
    words = tuple(given.operators.split(","))
    return (
        one for one in found if one.operator.startswith(words) and one.path.startswith(given.under)
    )


def _given(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--since", metavar="COMMIT")
    choice.add_argument("--sample", type=int, metavar="N")
    choice.add_argument("--all", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--packages", default=",".join(PACKAGES))
    parser.add_argument("--operators", default=",".join(OPERATORS))
    parser.add_argument("--under", default="")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--cpu-seconds", type=float, default=20.0)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--root", type=Path, default=Path(), help="of another repository")
    parser.add_argument("--product", default="quorumlog", help="its package")
    parser.add_argument("--tests", default=",".join(TESTS), help="its tests")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
