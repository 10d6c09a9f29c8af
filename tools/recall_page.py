"""The page docs/recall.md, from the results of the search."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

from quorumlog.chaos.mutants.registry import MUTANTS
from tools.recall_real import REAL_OPTIONS, read_real, real_command, sound_runs
from tools.recall_runs import simulated_command, subjects_of

_HEAD: Final = """\
# Recall: the planted bugs, and the checks that find them

A check that has never failed proves nothing. Each mutant below breaks one rule of the product and
does not check itself: the clients' history, or the oracle of a simulation, must show it. For each
mutant the tables name the cheapest simulated run that finds it. Such a run is a function of its
seed. `seeds` is the number of seeds tried, from 0 on, including the one that finds the mutant.

```
python -m tools.recall_table                    # search for mutants not found yet; write this page
python -m tools.recall_table --check            # rerun each of these runs, and the product
python -m tools.recall_table --mutants cuts_too_much --subjects nodes
python -m tools.recall_table --only real        # on real processes: 3 runs of each
```

"""
_REAL_HEAD: Final = """
## On real processes

A run on real processes is not a function of its seed: the table shows how many runs, with the
seeds 1 to 3, had the verdict invalid, and the anomalies.

| mutant | found | anomalies | the run |
|---|---|---|---|"""


def page(recall: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Return the text of the page."""
    found = {name: run for name in MUTANTS if (run := cheapest(name, recall.get(name, {})))}
    kinds = [*dict.fromkeys(mutant.of for mutant in MUTANTS.values())]
    lines = [
        f"{len(found)} of {len(MUTANTS)} mutants are found in simulation, of {_listed(kinds)}."
    ]
    for kind in kinds:
        lines += ["", f"## {kind.capitalize()}", ""]
        lines += [
            "| mutant | the rule that it breaks | found by | seeds | the run |",
            "|---|---|---|---|---|",
        ]
        lines += [
            _row(name, mutant.breaks, found.get(name), recall.get(name, {}))
            for name, mutant in MUTANTS.items()
            if mutant.of == kind
        ]
    lines += [_REAL_HEAD, *_real_rows(), *_sound()]
    return _HEAD + "\n".join(lines) + "\n"


def cheapest(
    mutant: str, found: Mapping[str, Mapping[str, Any]]
) -> tuple[str, Mapping[str, Any]] | None:
    """Return the first subject that finds the mutant, and its result."""
    for subject in subjects_of(mutant):
        if found.get(subject, {}).get("seed") is not None:
            return subject, found[subject]
    return None


def _row(
    name: str,
    breaks: str,
    run: tuple[str, Mapping[str, Any]] | None,
    found: Mapping[str, Mapping[str, Any]],
) -> str:
    if run is None:
        tried = [f"{subject} {noted['tried']}" for subject, noted in found.items()]
        return f"| `{name}` | {breaks} | not found | {', '.join(tried) or 'none'} | |"
    subject, noted = run
    command = simulated_command(name, subject, noted["seed"])
    return f"| `{name}` | {breaks} | {noted['told_by']} | {noted['tried']} | `{command}` |"


def _real_rows() -> Iterator[str]:
    for name, found in read_real().items():
        told_by = [told for told in found["told_by"] if told]
        if name in REAL_OPTIONS and told_by:
            yield (
                f"| `{name}` | {len(told_by)} of {len(found['told_by'])} | "
                f"{', '.join(dict.fromkeys(told_by))} | `{shlex.join(real_command(name, 1))}` |"
            )


def _sound() -> Iterator[str]:
    """Yield the lines on runs with the same options without a mutant."""
    told = [
        told for name, one in read_real().items() if name in sound_runs() for told in one["told_by"]
    ]
    yield ""
    yield (
        f"Without `--mutant`, each of these commands was run as well: {len(told)} runs, "
        f"{len([one for one in told if one])} of them invalid."
    )


def _listed(words: list[str]) -> str:
    return ", ".join(words[:-1]) + " and " + words[-1]
