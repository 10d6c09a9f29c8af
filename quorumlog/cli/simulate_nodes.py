"""`quorumlog simulate nodes`: whole nodes, one process per core, and what to say about them."""

import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress

from quorumlog.chaos.node_simulation.forked import RunFailed, run_forked
from quorumlog.chaos.node_simulation.settings import NODES_MAX, NodesResult, NodesSettings
from quorumlog.chaos.node_simulation.simulate import settings_of, shrink
from quorumlog.chaos.schedule import Schedule
from quorumlog.cli.output import EXIT_FAILED, EXIT_USAGE, data, fail, say

_SHOWN: Final = 20  # seeds
_FINDINGS_SHOWN: Final = 3  # of a seed; --json has all


def node_settings(
    seeds: Sequence[int],
    *,
    schedule: Path | None,
    duration_ms: int,
    nodes: int,
    faults: str | None,
    mutant: str | None,
    config: Sequence[str],
) -> list[NodesSettings]:
    """Return what is to be run; end with a usage error if it makes no sense."""
    if not 1 <= nodes <= NODES_MAX:
        fail(f"--nodes {nodes}: there may be 1 to {NODES_MAX}", EXIT_USAGE)
    chosen = None if faults is None else [name for name in faults.split(",") if name != "none"]
    try:
        drawn = [
            settings_of(
                seed,
                duration_ms=duration_ms,
                faults=chosen,
                nodes=nodes,
                mutant=mutant,
                config=dict(_name_and_value(text) for text in config),
            )
            for seed in seeds
        ]
        if schedule is None:
            return drawn
        return [replace(drawn[0], schedule=Schedule.from_json(schedule.read_text()))]
    except (OSError, ValueError) as error:
        fail(str(error) if schedule is None else f"{schedule}: {error}", EXIT_USAGE)


def _name_and_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--config {text}: write it as name=value")
    return name, value


def run_nodes(wanted: Sequence[NodesSettings]) -> list[NodesResult | RunFailed]:
    """Run them all, with a bar that shows how far they are."""
    console = Console(stderr=True)
    outcomes: list[NodesResult | RunFailed] = []
    # It is refreshed from here: a thread of its own might hold a lock while a process is forked.
    with Progress(
        console=console, transient=True, auto_refresh=False, disable=len(wanted) == 1
    ) as bar:
        task = bar.add_task("simulating", total=len(wanted))
        for outcome in run_forked(wanted, idle=bar.refresh):
            outcomes.append(outcome)
            bar.advance(task)
    return outcomes


def has_failed(outcome: NodesResult | RunFailed) -> bool:
    """Tell whether this run says that something is wrong."""
    return isinstance(outcome, RunFailed) or outcome.valid is not True


def summary(
    wanted: Sequence[NodesSettings], outcomes: Sequence[NodesResult | RunFailed], seconds: float
) -> dict[str, Any]:
    """Return the document of one run, or of many."""
    results = [outcome for outcome in outcomes if isinstance(outcome, NodesResult)]
    figures: dict[str, Any] = {
        "valid": not any(map(has_failed, outcomes)),
        "virtual_s": round(sum(result.virtual_s for result in results), 3),
        "cpu_s": round(sum(result.cpu_s for result in results), 3),
        "operations": sum(result.operations for result in results),
        "seconds": round(seconds, 3),
    }
    if len(outcomes) > 1:
        failed = [
            _failure(settings, outcome)
            for settings, outcome in zip(wanted, outcomes, strict=True)
            if has_failed(outcome)
        ]
        return {**figures, "seeds": len(outcomes), "failed": failed}
    settings, outcome = wanted[0], outcomes[0]
    return {**figures, **_failure(settings, outcome), **_details(outcome)}


def _details(outcome: NodesResult | RunFailed) -> dict[str, Any]:
    if isinstance(outcome, RunFailed):
        return {"error": str(outcome)}
    return {
        "valid": outcome.valid,
        "violations": list(outcome.violations),
        "faults": list(outcome.faults),
        "start_cpu_s": outcome.start_cpu_s,
        "verdict": dict(outcome.verdict),
    }


def _failure(settings: NodesSettings, outcome: NodesResult | RunFailed) -> dict[str, Any]:
    seed = settings.schedule.seed
    if isinstance(outcome, RunFailed):
        return {"seed": seed, "digest": None, "anomalies": ["no result"]}
    anomalies = [*outcome.violations, *outcome.anomalies]
    if outcome.valid == "unknown":
        anomalies += [f"unknown: {why}" for why in outcome.verdict["unknown_because"]]
    return {"seed": seed, "digest": outcome.digest, "anomalies": anomalies}


def show(document: dict[str, Any], outcomes: Sequence[NodesResult | RunFailed]) -> None:
    """Print the same for a person."""
    rate = document["virtual_s"] / max(document["cpu_s"], 0.01)
    data(
        f"{len(outcomes)} {'seed' if len(outcomes) == 1 else 'seeds'}, "
        f"{document['virtual_s']:.0f} virtual seconds in "
        f"{document['seconds']:.1f} s, {rate:.1f} per CPU second, "
        f"{document['operations']} operations"
    )
    if len(outcomes) == 1 and document["digest"]:
        data(f"digest {document['digest']}")
    failed = document.get("failed", [document] if document["valid"] is not True else [])
    for one in failed[:_SHOWN]:
        found = one["anomalies"]
        more = f"; and {len(found) - _FINDINGS_SHOWN} more" if len(found) > _FINDINGS_SHOWN else ""
        data(f"seed {one['seed']}: {'; '.join(found[:_FINDINGS_SHOWN])}{more}")
    if not failed:
        data("nothing was lost, and no rule was broken")
    for outcome in outcomes:
        if isinstance(outcome, RunFailed):
            say(str(outcome))


def explain(
    wanted: Sequence[NodesSettings], outcomes: Sequence[NodesResult | RunFailed], arguments: str
) -> None:
    """Say the command that runs the first failing seed again."""
    for settings, outcome in zip(wanted, outcomes, strict=True):
        if has_failed(outcome):
            say(f"again: quorumlog simulate nodes --seed {settings.schedule.seed}{arguments}")
            return


def again(
    duration: str, nodes: int, faults: str | None, mutant: str | None, config: Sequence[str]
) -> str:
    """Return the options that, with the seed, give the same run."""
    options = ["--duration", duration, "--nodes", str(nodes)]
    options += [] if faults is None else ["--faults", faults]
    options += [] if mutant is None else ["--mutant", mutant]
    for text in config:
        options += ["--config", text]
    return f" {shlex.join(options)}"


def shrink_first(
    wanted: Sequence[NodesSettings],
    outcomes: Sequence[NodesResult | RunFailed],
    path: Path,
) -> None:
    """Write the smallest schedule of the first seed that fails."""
    for settings, outcome in zip(wanted, outcomes, strict=True):
        if isinstance(outcome, NodesResult) and has_failed(outcome):
            started_s = time.monotonic()
            smallest = shrink(settings, outcome)
            path.write_text(smallest.to_json())
            mutant = "" if settings.mutant is None else f" --mutant {settings.mutant}"
            say(
                f"{len(outcome.schedule.actions)} faults became {len(smallest.actions)} in "
                f"{time.monotonic() - started_s:.0f} s; replay: "
                f"quorumlog simulate nodes --schedule {path}{mutant}"
            )
            return


def status_of(outcomes: Sequence[NodesResult | RunFailed]) -> int:
    """Return the exit status."""
    return EXIT_FAILED if any(map(has_failed, outcomes)) else os.EX_OK
