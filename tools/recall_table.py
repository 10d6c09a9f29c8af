"""Measure which level finds which planted bug; write tests/data/recall.json and docs/recall.md.

`python -m tools.recall_table` resumes: it executes what the budget of each cell leaves open, and
writes the file after each step. `docs/recall.md` describes the levels.

    --levels cores,nodes   only these levels: unit, property, cores, nodes, processes
    --mutants A,B          only these mutants
    --again                from the beginning: drop the cells of these levels and mutants
    --seeds N              budget: seeds of each world (100), of whole nodes (8)
    --minutes N            begin nothing new after N minutes
    --workers N            processes for simulations (2)
    --check                repeat the cheapest recorded run of each mutant in simulation, and the
                           same run without the mutant; exit status 1 if a bug is not found, or if
                           the product fails
    --commands             print the command of each recorded run in simulation
    --page                 write docs/recall.md only
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress

from tools.recall_page import cheapest, page
from tools.recall_real import REAL_OPTIONS, carry_out, sound_runs
from tools.recall_runs import (
    MUTANTS,
    NODES,
    NODES_SEEDS,
    WORLD_SEEDS,
    simulated,
    simulated_command,
    subjects_of,
    worlds_of,
)

FILE: Final = Path("tests/data/recall.json")
PAGE: Final = Path("docs/recall.md")
TESTS: Final = ("unit", "property")
LEVELS: Final = (*TESTS, "cores", NODES, "processes")
_WORLD_STEP: Final = 20  # seeds in one piece of work
_NODES_STEP: Final = 2

Cell = dict[str, Any]
Recall = dict[str, dict[str, Cell]]  # mutant -> level of tests, world or `nodes` -> result


@dataclass(frozen=True, slots=True)
class Piece:
    """Seeds of one mutant in one subject."""

    mutant: str
    subject: str
    first: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The cells to fill, and the limits. until_s: no work begins after this monotonic time."""

    mutants: Sequence[str]
    levels: Sequence[str]
    seeds: int | None = None
    workers: int = 2
    until_s: float = float("inf")


def search(piece: Piece) -> Cell:
    """Run the seeds up to the first that finds the bug; return the result, with the CPU time."""
    begun = _cpu_seconds()
    told_by = ""
    seed = piece.first
    for seed in range(piece.first, piece.end):
        if told_by := simulated(piece.mutant, piece.subject, seed):
            break
    cpu_s = round(_cpu_seconds() - begun, 2)
    found: Cell = {"seed": seed, "told_by": told_by} if told_by else {"seed": None}
    return {**found, "tried": seed + 1, "cpu_s": cpu_s}


def _cpu_seconds() -> float:
    return sum(os.times()[:4])  # also of processes that have ended: whole nodes have one


def read() -> Recall:
    """Return the recorded results of the mutants and worlds that exist."""
    known: Recall = json.loads(FILE.read_text()) if FILE.exists() else {}
    found: Recall = {}
    for name in MUTANTS:
        of_it = (*TESTS, *subjects_of(name))
        found[name] = {one: known[name][one] for one in of_it if one in known.get(name, {})}
    return found


def write(recall: Recall) -> None:
    """Write the results."""
    FILE.write_text(json.dumps(recall, indent=1) + "\n")


def next_piece(mutant: str, found: dict[str, Cell], wanted: Wanted) -> Piece | None:
    """Return the next seeds for a mutant; None: each cell has its result, or its budget."""
    subjects = worlds_of(mutant) if "cores" in wanted.levels else []
    subjects += [NODES] if NODES in wanted.levels else []
    for subject in subjects:
        noted = found.get(subject, {"seed": None, "tried": 0})
        of_nodes = subject == NODES
        budget = wanted.seeds or (NODES_SEEDS if of_nodes else WORLD_SEEDS)
        if noted["seed"] is None and noted["tried"] < budget:
            step = _NODES_STEP if of_nodes else _WORLD_STEP
            return Piece(mutant, subject, noted["tried"], min(budget, noted["tried"] + step))
    return None


def simulate_cells(recall: Recall, wanted: Wanted) -> None:
    """Fill the cells of simulations, in parallel; the pieces of one mutant in order."""

    def following(mutant: str) -> Piece | None:
        is_late = time.monotonic() > wanted.until_s
        return None if is_late else next_piece(mutant, recall[mutant], wanted)

    pieces = list(filter(None, map(following, wanted.mutants)))
    with (
        ProcessPoolExecutor(wanted.workers) as pool,
        Progress(console=Console(stderr=True), transient=True) as bar,
    ):
        task = bar.add_task("simulations", total=len(pieces))
        running: dict[Future[Cell], Piece] = {}
        while pieces or running:
            while pieces and len(running) < 2 * wanted.workers:
                piece = pieces.pop(0)
                running[pool.submit(search, piece)] = piece
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                piece = running.pop(future)
                _note(recall, piece, future.result())
                if (again := following(piece.mutant)) is not None:
                    pieces.insert(0, again)
                else:
                    bar.advance(task)
            if time.monotonic() > wanted.until_s:
                pieces.clear()


def _note(recall: Recall, piece: Piece, result: Cell) -> None:
    before = recall[piece.mutant].get(piece.subject, {})
    result["cpu_s"] = round(result["cpu_s"] + before.get("cpu_s", 0.0), 2)
    recall[piece.mutant][piece.subject] = result
    write(recall)


def test_cells(recall: Recall, level: str, wanted: Wanted) -> None:
    """Fill the cells of a level of tests, one mutant after the other."""
    open_cells = [
        name
        for name in wanted.mutants
        if level not in recall[name] or _is_outdated(recall[name][level])
    ]
    if not open_cells or time.monotonic() > wanted.until_s:
        return
    command = [sys.executable, "-m", "tools.recall_tests", level, "--mutants", ",".join(open_cells)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tests,  # noqa: S603 - our own
        Progress(console=Console(stderr=True), transient=True) as bar,
    ):
        lines = tests.stdout or ()
        for line in bar.track(lines, total=len(open_cells), description=f"{level} tests"):
            noted = json.loads(line)
            recall[noted["mutant"]][level] = noted["cell"]
            write(recall)
            if time.monotonic() > wanted.until_s:
                tests.terminate()
                return
    if tests.returncode:
        raise RuntimeError(f"the {level} tests ended with status {tests.returncode}")


def _is_outdated(cell: Cell) -> bool:
    """Return whether the test of a finding is gone."""
    file, _, test = (cell.get("found_by") or "").partition("::")
    name = test.partition("::")[0].partition("[")[0]  # of a function, or of a class of tests
    return bool(file) and not (Path(file).exists() and name in Path(file).read_text())


def lost(recall: Recall, names: Sequence[str]) -> Iterator[str]:
    """Repeat the cheapest recorded run of each mutant; yield the mutants that are not found."""
    for name in names:
        if (run := cheapest(name, recall[name])) is None:
            continue
        subject, noted = run
        told_by = simulated(name, subject, noted["seed"])
        if told_by != noted["told_by"]:
            yield f"{name}: {subject}, seed {noted['seed']}: {told_by or 'found nothing'}"


def unsound(recall: Recall, names: Sequence[str]) -> Iterator[str]:
    """Repeat the recorded runs without their mutants; yield the runs that fail.

    If the product fails, too, the run does not prove that it finds the bug. Equal runs are executed
    once.
    """
    known: set[str] = set()
    for name in names:
        if (run := cheapest(name, recall[name])) is None:
            continue
        subject, noted = run
        command = simulated_command(name, subject, noted["seed"], is_sound=True)
        if command in known:
            continue
        known.add(command)
        if told_by := simulated(name, subject, noted["seed"], is_sound=True):
            yield f"{command}: {told_by}, without a planted bug"


def check(recall: Recall, names: Sequence[str]) -> int:
    """Repeat the recorded runs, and print those that fail; return the exit status."""
    missing, failing = [*lost(recall, names)], [*unsound(recall, names)]
    sys.stdout.writelines(f"{line}\n" for line in missing + failing)
    found = len([name for name in names if cheapest(name, recall[name])])
    sys.stdout.write(f"{found - len(missing)} of {found} are found by the run that is stated\n")
    return 1 if missing or failing else 0


def _commands(recall: Recall, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        for subject in subjects_of(name):
            if (noted := recall[name].get(subject, {})).get("seed") is not None:
                yield f"{noted['told_by']}: {simulated_command(name, subject, noted['seed'])}\n"


def measure(recall: Recall, wanted: Wanted, *, again: bool) -> None:
    """Fill the cells, the cheapest level first."""
    for name in wanted.mutants if again else ():
        dropped = {*wanted.levels, *(worlds_of(name) if "cores" in wanted.levels else ())}
        recall[name] = {key: cell for key, cell in recall[name].items() if key not in dropped}
    for level in TESTS:
        if level in wanted.levels:
            test_cells(recall, level, wanted)
    simulate_cells(recall, wanted)
    write(recall)


def main(arguments: Sequence[str]) -> int:
    """Execute the command line; return the exit status."""
    given = _given(arguments)
    recall = read()
    names = given.mutants.split(",") if given.mutants else [*recall]
    if unknown := {*names} - {*recall, *REAL_OPTIONS}:
        raise SystemExit(f"no mutant is called {', '.join(sorted(unknown))}")
    simulated_names = [name for name in names if name in recall]
    levels = given.levels.split(",")
    if given.check:
        return check(recall, simulated_names)
    if given.commands:
        sys.stdout.writelines(_commands(recall, simulated_names))
        return 0
    if not given.page:
        wanted = Wanted(
            mutants=simulated_names,
            levels=levels,
            seeds=given.seeds,
            workers=given.workers,
            until_s=time.monotonic() + 60 * given.minutes,
        )
        measure(recall, wanted, again=given.again)
        if "processes" in levels:
            carry_out(names if given.mutants else [*REAL_OPTIONS, *sound_runs()])
    PAGE.write_text(page(recall))
    return 0


def _given(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mutants", default="")
    parser.add_argument("--levels", default=",".join(LEVELS[:-1]))
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--workers", type=int, default=2)
    for flag in ("--again", "--check", "--commands", "--page"):
        parser.add_argument(flag, action="store_true")
    given = parser.parse_args(arguments)
    if unknown := {*given.levels.split(",")} - {*LEVELS}:
        parser.error(f"no level is called {', '.join(sorted(unknown))}")
    return given


if __name__ == "__main__":
    with suppress(BrokenPipeError):  # of `head`, behind --commands
        sys.exit(main(sys.argv[1:]))
