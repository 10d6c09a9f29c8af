"""`quorumlog simulate nodes`: runs whole nodes, one process per core, and reports."""

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Console
from rich.progress import Progress

from quorumlog.chaos.node_simulation.forked import RunFailed, run_forked
from quorumlog.chaos.node_simulation.settings import PARTITIONS, NodesResult, NodesSettings
from quorumlog.chaos.node_simulation.simulate import replayed, settings_of, shrink
from quorumlog.chaos.schedule import Schedule
from quorumlog.cli.options import parse_duration_ms
from quorumlog.cli.output import EXIT_FAILED, EXIT_USAGE, data, document, fail, parse_settings, say
from quorumlog.cli.simulate_options import shrunk_file
from quorumlog.cli.verify import require_checkers
from quorumlog.cluster import ClusterShape

_WORKLOAD: Final = "append_read"
_SHOWN: Final = 20  # seeds
_FINDINGS_SHOWN: Final = 3  # of a seed; --json has all


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options of the command line that, with a seed, determine a run."""

    duration: str
    shape: ClusterShape
    faults: str | None = None
    mutant: str | None = None
    workload: str | None = None
    workload_options: tuple[str, ...] = ()
    partitions: int | None = None
    any_power_loss: bool = False
    config: tuple[str, ...] = ()

    def settings(self, seed: int) -> NodesSettings:
        """Return the settings of the runs. Raises ValueError."""
        drawn = settings_of(
            seed,
            duration_ms=parse_duration_ms(self.duration),
            workload=self.workload or _WORKLOAD,
            options=parse_settings([*self.workload_options], "--workload-option"),
            faults=self._chosen_faults(),
            shape=self.shape,
            mutant=self.mutant,
            config=parse_settings([*self.config]),
        )
        return replace(
            drawn,
            partitions=self.partitions or drawn.partitions,
            any_power_loss=self.any_power_loss,
        )

    def _chosen_faults(self) -> list[str] | None:
        if self.faults is None:
            return None
        return [name for name in self.faults.split(",") if name != "none"]

    def command(self, seed: int) -> str:
        """Return the command that runs the seed again."""
        words = ["--seed", str(seed), "--duration", self.duration, *self.shape.options()]
        for name, value in (
            ("--faults", self.faults),
            ("--mutant", self.mutant),
            ("--workload", self.workload),
            ("--partitions", self.partitions),
        ):
            words += [] if value is None else [name, str(value)]
        for text in self.workload_options:
            words += ["--workload-option", text]
        words += ["--any-power-loss"] if self.any_power_loss else []
        for text in self.config:
            words += ["--config", text]
        return f"quorumlog simulate nodes {shlex.join(words)}"


def simulate_nodes(
    seeds: Sequence[int],
    asked: Asked,
    schedule: Path | None,
    *,
    shrink_to: str | None,
    json_output: bool,
) -> None:
    """Run the seeds, or the schedule of a file, and print the results."""
    require_checkers()
    started_s = time.monotonic()
    wanted = _settings(seeds, asked, schedule)
    outcomes = run_nodes(wanted)
    found = summary(wanted, outcomes, time.monotonic() - started_s)
    if json_output:
        document(found)
    else:
        show(found, outcomes)
        if schedule is None:
            explain(wanted, outcomes, asked)
    if shrink_to is not None:
        _shrink_first(wanted, outcomes, shrink_to)
    if any(map(has_failed, outcomes)):
        raise typer.Exit(EXIT_FAILED)


def _settings(seeds: Sequence[int], asked: Asked, schedule: Path | None) -> list[NodesSettings]:
    """Return the settings of the runs; end with a usage error if they are invalid."""
    try:
        if schedule is None:
            return [asked.settings(seed) for seed in seeds]
        drawn = asked.settings(seeds[0])
        return [replayed(drawn, Schedule.from_json(schedule.read_text()))]
    except (OSError, ValueError) as error:
        fail(str(error) if schedule is None else f"{schedule}: {error}", EXIT_USAGE)


def run_nodes(wanted: Sequence[NodesSettings]) -> list[NodesResult | RunFailed]:
    """Run them all, with a progress bar."""
    console = Console(stderr=True)
    outcomes: list[NodesResult | RunFailed] = []
    # No refresh thread: it might hold a lock while a process is forked.
    is_shown = console.is_terminal and len(wanted) > 1
    with Progress(console=console, transient=True, auto_refresh=False, disable=not is_shown) as bar:
        task = bar.add_task("simulating", total=len(wanted))
        for outcome in run_forked(wanted, idle=bar.refresh):
            outcomes.append(outcome)
            bar.advance(task)
    return outcomes


def has_failed(outcome: NodesResult | RunFailed) -> bool:
    """Return whether the run failed or its verdict is not valid."""
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
        "losses": list(outcome.losses),
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


def show(found: dict[str, Any], outcomes: Sequence[NodesResult | RunFailed]) -> None:
    """Print the document's figures for a person."""
    rate = found["virtual_s"] / max(found["cpu_s"], 0.01)
    data(
        f"{len(outcomes)} {'seed' if len(outcomes) == 1 else 'seeds'}, "
        f"{found['virtual_s']:.0f} virtual seconds in "
        f"{found['seconds']:.1f} s, {rate:.1f} per CPU second, "
        f"{found['operations']} operations"
    )
    if len(outcomes) == 1 and found["digest"]:
        data(f"digest {found['digest']}")
    failed = found.get("failed", [found] if found["valid"] is not True else [])
    for one in failed[:_SHOWN]:
        said = one["anomalies"]
        more = f"; and {len(said) - _FINDINGS_SHOWN} more" if len(said) > _FINDINGS_SHOWN else ""
        data(f"seed {one['seed']}: {'; '.join(said[:_FINDINGS_SHOWN])}{more}")
    if not failed:
        lossy = sum(isinstance(one, NodesResult) and bool(one.losses) for one in outcomes)
        lost = (
            "no record was lost"
            if not lossy
            else f"lost only records without a surviving copy ({lossy})"
        )
        data(f"{lost}, and no rule was broken")
    for outcome in outcomes:
        if isinstance(outcome, RunFailed):
            say(str(outcome))


def explain(
    wanted: Sequence[NodesSettings], outcomes: Sequence[NodesResult | RunFailed], asked: Asked
) -> None:
    """Print the commands that rerun and shrink the first failing seed."""
    for settings, outcome in zip(wanted, outcomes, strict=True):
        if has_failed(outcome):
            command = asked.command(settings.schedule.seed)
            say(f"again: {command}\nshrink: {command} --shrink")
            return


def _shrink_first(
    wanted: Sequence[NodesSettings], outcomes: Sequence[NodesResult | RunFailed], given: str
) -> None:
    """Write the smallest schedule of the first seed that fails."""
    for settings, outcome in zip(wanted, outcomes, strict=True):
        if isinstance(outcome, NodesResult) and has_failed(outcome):
            started_s = time.monotonic()
            path = shrunk_file(given, outcome.seed)
            smallest = shrink(settings, outcome)
            path.write_text(smallest.to_json())
            say(
                f"reduced {len(outcome.schedule.actions)} faults to {len(smallest.actions)} in "
                f"{time.monotonic() - started_s:.0f} s; replay: "
                f"quorumlog simulate nodes --schedule {path}{_besides(settings)}"
            )
            return


def _besides(settings: NodesSettings) -> str:
    """Return the options that a schedule does not hold."""
    words = settings.shape.options()
    words += [] if settings.mutant is None else ["--mutant", settings.mutant]
    if settings.partitions != PARTITIONS:
        words += ["--partitions", str(settings.partitions)]
    words += ["--any-power-loss"] if settings.any_power_loss else []
    for name, value in settings.config.items():
        words += ["--config", f"{name}={value}"]
    return "".join(f" {shlex.quote(word)}" for word in words)
