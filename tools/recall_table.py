"""Find every planted bug by the cheapest run that shows it, and write the table of docs/recall.md.

`python -m tools.recall_table` resumes from tests/data/recall.json: it searches for the bugs not yet
found, seed by seed, the cheapest subject first, and writes the file after each step.

    --mutants A,B      only these mutants, from the beginning
    --subjects nodes   only in these subjects: worlds, or `nodes`
    --only real        on real processes: tests/data/recall_real.json
    --seeds N          number of seeds of each world (400), of whole nodes (40)
    --check            repeat the recorded run of each mutant, and the same run without the mutant;
                       exit status 1 if a bug is not found, or if the product fails
    --page             write docs/recall.md only
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress

from quorumlog.chaos.mutants.registry import MUTANTS
from tools.recall_page import cheapest, page
from tools.recall_real import REAL_OPTIONS, carry_out, sound_runs
from tools.recall_runs import NODES, simulated, simulated_command, subjects_of

FILE: Final = Path("tests/data/recall.json")
PAGE: Final = Path("docs/recall.md")
_SEEDS: Final = {NODES: 40}
_WORLD_SEEDS: Final = 400
_STEP: Final = {NODES: 4}  # seeds in one piece of work
_WORLD_STEP: Final = 20

Recall = dict[str, dict[str, dict[str, Any]]]  # mutant -> subject -> result


@dataclass(frozen=True, slots=True)
class Piece:
    """Seeds of one mutant in one subject."""

    mutant: str
    subject: str
    first: int
    end: int


def search(piece: Piece) -> dict[str, Any]:
    """Run the seeds up to the first that finds the bug; return the result."""
    for seed in range(piece.first, piece.end):
        if told_by := simulated(piece.mutant, piece.subject, seed):
            return {"seed": seed, "tried": seed + 1, "told_by": told_by}
    return {"seed": None, "tried": piece.end}


def read() -> Recall:
    """Return the recorded results."""
    known: Recall = json.loads(FILE.read_text()) if FILE.exists() else {}
    return {name: known.get(name, {}) for name in MUTANTS}


def write(recall: Recall) -> None:
    """Write the results."""
    FILE.write_text(json.dumps(recall, indent=1) + "\n")


def next_piece(
    mutant: str, found: dict[str, dict[str, Any]], subjects: Sequence[str], seeds: int | None
) -> Piece | None:
    """Return the next seeds for a mutant; None: it is found, or all seeds were tried."""
    for subject in subjects_of(mutant):
        noted = found.get(subject, {"seed": None, "tried": 0})
        if noted["seed"] is not None and not subjects:
            return None  # a cheaper subject found it
        wanted = seeds or _SEEDS.get(subject, _WORLD_SEEDS)
        is_wanted = not subjects or subject in subjects
        if is_wanted and noted["seed"] is None and noted["tried"] < wanted:
            step = _STEP.get(subject, _WORLD_STEP)
            return Piece(mutant, subject, noted["tried"], min(wanted, noted["tried"] + step))
    return None


def work(
    recall: Recall, names: Sequence[str], following: Callable[[str], Piece | None], workers: int
) -> None:
    """Do all pieces of work, in parallel; the pieces of one mutant in order."""
    pieces = list(filter(None, map(following, names)))
    with (
        ProcessPoolExecutor(workers) as pool,
        Progress(console=Console(stderr=True), transient=True) as bar,
    ):
        task = bar.add_task("searching", total=len(pieces))
        running: dict[Future[dict[str, Any]], Piece] = {}

        def submit(piece: Piece) -> None:
            running[pool.submit(search, piece)] = piece

        for piece in pieces:
            submit(piece)
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                piece = running.pop(future)
                recall[piece.mutant][piece.subject] = future.result()
                write(recall)
                if (again := following(piece.mutant)) is not None:
                    submit(again)
                else:
                    bar.advance(task)


def lost(recall: Recall, names: Sequence[str]) -> Iterator[str]:
    """Repeat the recorded run of each mutant; yield the mutants that are not found any more."""
    for name in names:
        for subject in subjects_of(name):
            noted = recall[name].get(subject, {})
            if noted.get("seed") is None:
                continue
            told_by = simulated(name, subject, noted["seed"])
            if told_by != noted["told_by"]:
                yield f"{name}: {subject}, seed {noted['seed']}: {told_by or 'found nothing'}"
            break


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


def main(arguments: Sequence[str]) -> int:
    """Execute the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_AS_WRITTEN)
    parser.add_argument("--mutants", default="")
    parser.add_argument("--subjects", default="")
    parser.add_argument("--only", choices=["real"])
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args(arguments)
    recall = read()
    names = given.mutants.split(",") if given.mutants else [*recall]
    subjects = given.subjects.split(",") if given.subjects else []
    if unknown := {*names} - {*recall, *REAL_OPTIONS}:
        parser.error(f"no mutant is called {', '.join(sorted(unknown))}")
    if given.only == "real":
        carry_out(names if given.mutants else [*REAL_OPTIONS, *sound_runs()])
    elif given.check:
        missing, failing = [*lost(recall, names)], [*unsound(recall, names)]
        sys.stdout.writelines(f"{line}\n" for line in missing + failing)
        found = len([name for name in names if name in MUTANTS and cheapest(name, recall[name])])
        sys.stdout.write(f"{found - len(missing)} of {found} are found by the run that is stated\n")
        return 1 if missing or failing else 0
    elif not given.page:
        for name in names if given.mutants else []:  # from the beginning
            kept = {*recall[name]} - {*(subjects or recall[name])}
            recall[name] = {subject: recall[name][subject] for subject in sorted(kept)}
        work(recall, names, partial(_following, recall, subjects, given.seeds), given.workers)
        write(recall)
    PAGE.write_text(page(recall))
    return 0


def _following(
    recall: Recall, subjects: Sequence[str], seeds: int | None, name: str
) -> Piece | None:
    return next_piece(name, recall[name], subjects, seeds)


_AS_WRITTEN: Final = argparse.RawDescriptionHelpFormatter

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
