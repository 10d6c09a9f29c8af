"""The page docs/recall.md: which level finds which planted bug, and at which price."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath
from typing import Any, Final

from tools.recall_real import REAL_OPTIONS, read_real, sound_runs
from tools.recall_runs import (
    MUTANTS,
    NODES,
    NODES_SEEDS,
    TEST_CPU_S,
    WORLD_SEEDS,
    subjects_of,
    worlds_of,
)

Cell = Mapping[str, Any]
Cells = Mapping[str, Cell]

_LEVELS: Final = ("unit", "property", "cores", NODES, "processes")
_HEAD: Final = f"""\
# Recall: the planted bugs, and the levels that find them

A check that has never failed proves nothing. Each mutant below breaks one rule of the product. The
tables show which level of tests finds it, and at which price:

- **unit**: the tests in tests/golden, tests/paper and tests/unit (broker, metadata_quorum, mirror,
  node and storage) that use the broken rule. The budget of a cell is {TEST_CPU_S} s of CPU time.
- **property**: the tests in tests/property that use the broken rule, with a fixed seed of
  hypothesis. Budget: {TEST_CPU_S} s of CPU time.
- **cores**: the simulated worlds of the metadata quorum and of logs, which have the cores on
  simulated disks and networks. Budget: {WORLD_SEEDS} seeds of each world that has the mutant.
- **nodes**: whole nodes in simulation, with the workload and the faults that can show the mutant.
  Budget: {NODES_SEEDS} seeds.
- **processes**: `quorumlog chaos run` on real processes. Budget: 3 runs of each mutant that has
  options in tools/recall_real.py.

**A cell with a finding** has the price in seconds of CPU time, from the first test or the seed 0 up
to the finding, and its finder: the file of the failing test; a world and its seed, or the seed of
whole nodes, with the violated rule or the anomaly; the share of the runs on real processes that are
invalid. `? s`: the price was not noted. Tests are executed from the cheapest on. **`no`** shows the
budget that found nothing. **`-`**: the level cannot run the mutant (no world has the rule, no test
uses it, or the mutant is no class that inherits a rule). **An empty cell** has not been measured.

In the levels `unit` and `property` the sound rule becomes the broken rule in the whole process
(tools/recall_injection.py), and the product keeps its own checks. In simulations and on real
processes a mutant does not check itself: the clients' history, or the oracle of the simulation,
must show it. Tests about mutants do not count.

```
python -m tools.recall_table                    # fill the open cells; write this page
python -m tools.recall_table --minutes 120 --seeds 400 --levels cores,nodes    # as a nightly run
python -m tools.recall_table --again --levels unit --mutants cuts_too_much     # measure anew
python -m tools.recall_table --levels processes # on real processes
python -m tools.recall_table --commands         # print the command of each run in simulation
python -m tools.recall_table --check            # repeat the cheapest of them, and the product
```

A nightly run raises `--seeds`: it continues each cell without a finding at its next seed, and
writes tests/data/recall.json after each step, so that the next night resumes there. A cell with a
finding is final until `--again`; `--check` shows when its run no longer finds the bug.

"""


def page(recall: Mapping[str, Cells]) -> str:
    """Return the text of the page."""
    real = read_real()
    kinds = [*dict.fromkeys(mutant.of for mutant in MUTANTS.values())]
    finders = {name: {*_finders(name, recall.get(name, {}), real)} for name in MUTANTS}
    found = len([name for name in finders if finders[name]])
    lines = [f"{found} of {len(MUTANTS)} mutants are found by some level.", ""]
    lines += [*_summary(kinds, finders, recall, real)]
    for kind in kinds:
        lines += ["", f"## {kind.capitalize()}", ""]
        lines += [f"| mutant | {' | '.join(_LEVELS)} |", "|---" * (1 + len(_LEVELS)) + "|"]
        lines += [
            _row(name, recall.get(name, {}), real)
            for name, mutant in MUTANTS.items()
            if mutant.of == kind
        ]
    return _HEAD + "\n".join([*lines, *_real_rows(real), *_sound(real)]) + "\n"


def cheapest(mutant: str, found: Cells) -> tuple[str, Cell] | None:
    """Return the first simulation that finds the mutant, and its result."""
    for subject in subjects_of(mutant):
        if found.get(subject, {}).get("seed") is not None:
            return subject, found[subject]
    return None


def _finders(name: str, cells: Cells, real: Cells) -> Iterator[str]:
    """Yield the levels that find a mutant."""
    yield from (level for level in ("unit", "property") if cells.get(level, {}).get("found_by"))
    if any(_is_found(cells, world) for world in worlds_of(name)):
        yield "cores"
    if _is_found(cells, NODES):
        yield NODES
    if name in REAL_OPTIONS and any(real.get(name, {"told_by": []})["told_by"]):
        yield "processes"


def _measured(name: str, level: str, cells: Cells, real: Cells) -> bool:
    """Return whether a level has run a mutant."""
    if level == "cores":
        return any(world in cells for world in worlds_of(name))
    if level == "processes":
        return name in real
    return bool(cells.get(level, {}).get("tried"))


def _is_found(cells: Cells, subject: str) -> bool:
    return cells.get(subject, {}).get("seed") is not None


def _summary(
    kinds: Iterable[str], finders: Mapping[str, set[str]], recall: Mapping[str, Cells], real: Cells
) -> Iterator[str]:
    yield "Found of measured; in brackets, how many mutants only this level finds:"
    yield ""
    yield f"| mutants of | number | {' | '.join(_LEVELS)} | no level |"
    yield "|---" * (3 + len(_LEVELS)) + "|"
    for kind in (*kinds, "all"):
        names = [name for name, mutant in MUTANTS.items() if kind in {mutant.of, "all"}]
        cells = []
        for level in _LEVELS:
            by_it = [name for name in names if level in finders[name]]
            tried = [name for name in names if _measured(name, level, recall.get(name, {}), real)]
            alone = [name for name in by_it if len(finders[name]) == 1]
            cells.append(f"{len(by_it)} of {len(tried)}" + f" ({len(alone)})" * bool(alone))
        nowhere = len([name for name in names if not finders[name]])
        yield f"| {kind} | {len(names)} | {' | '.join(cells)} | {nowhere} |"


def _row(name: str, cells: Cells, real: Cells) -> str:
    texts = [_of_tests(cells.get(level)) for level in ("unit", "property")]
    worlds = worlds_of(name)
    texts.append(_of_worlds(worlds, cells) if worlds else "-")
    texts.append(_of_simulation(cells.get(NODES), ""))
    told_by = [told for told in real[name]["told_by"] if told] if name in real else []
    texts.append(f"{len(told_by)} of {len(real[name]['told_by'])}" if name in real else "")
    return f"| `{name}`: {MUTANTS[name].breaks} | {' | '.join(texts)} |"


def _of_tests(cell: Cell | None) -> str:
    if cell is None:
        return ""
    if not cell.get("tried"):
        return "-"
    if not cell["found_by"]:
        return f"no: {cell['tried']} of {cell['of']} tests, {_seconds(cell)}"
    return f"{_seconds(cell)}: {PurePath(cell['found_by'].partition('::')[0]).stem}"


def _of_worlds(worlds: list[str], cells: Cells) -> str:
    measured = [world for world in worlds if world in cells]
    found = [world for world in measured if _is_found(cells, world)]
    return ", ".join(_of_simulation(cells[world], world) for world in found[:1] or measured)


def _of_simulation(cell: Cell | None, world: str) -> str:
    if cell is None:
        return ""
    price = f", {_seconds(cell)}" if "cpu_s" in cell else ""
    if cell["seed"] is None:
        return f"no: {world} {cell['tried']} seeds{price}".replace("  ", " ")
    return f"{_seconds(cell)}: {world} {cell['seed']}, {cell['told_by']}".replace("  ", " ")


def _seconds(cell: Cell) -> str:
    cpu_s: float | None = cell.get("cpu_s")
    if cpu_s is None:
        return "? s"
    return f"{cpu_s:.0f} s" if cpu_s >= 10 else f"{cpu_s:.1f} s"


def _real_rows(real: Cells) -> Iterator[str]:
    yield from ("", "## On real processes", "")
    yield "A run on real processes is not a function of its seed: the seeds 1 to 3 have three runs."
    yield from ("", "| mutant | invalid | anomalies | options |", "|---|---|---|---|")
    for name, found in real.items():
        told_by = [told for told in found["told_by"] if told]
        if name in REAL_OPTIONS and told_by:
            yield (
                f"| `{name}` | {len(told_by)} of {len(found['told_by'])} | "
                f"{', '.join(dict.fromkeys(told_by))} | `{found['options']}` |"
            )


def _sound(real: Cells) -> Iterator[str]:
    """Yield the lines on runs with the same options without a mutant."""
    told = [told for name in sound_runs() if name in real for told in real[name]["told_by"]]
    yield ""
    yield (
        f"The same runs without a mutant: {len(told)} runs, "
        f"{len([one for one in told if one])} of them invalid."
    )
