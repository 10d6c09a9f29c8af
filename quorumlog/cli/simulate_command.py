"""`quorumlog simulate`: seeds through the simulator, in as many processes as there are cores."""

import json
import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import track

from quorumlog.chaos.simulation import FAULTS, MUTANTS, SimulationResult, check_schedule, shrink
from quorumlog.chaos.simulation import simulate as run_seed
from quorumlog.cli.output import EXIT_FAILED, EXIT_USAGE, data, document, fail, say

_SHOWN_VIOLATIONS: Final = 20


def simulate(
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0 on.", min=1)] = 200,
    seed: Annotated[int | None, typer.Option(help="Run this one seed only.")] = None,
    duration: Annotated[str, typer.Option(help="Simulated time of each seed: 60s, 2m.")] = "60s",
    nodes: Annotated[int, typer.Option(help="Voters.", min=1, max=9)] = 3,
    faults: Annotated[
        str | None, typer.Option(help=f"Comma-separated, of: {', '.join(FAULTS)} (all).")
    ] = None,
    mutant: Annotated[
        str | None, typer.Option(help=f"Break one rule: {', '.join(MUTANTS)}.")
    ] = None,
    schedule: Annotated[
        Path | None, typer.Option(help="Replay the faults of this file (needs --seed).")
    ] = None,
    shrink_to: Annotated[
        Path | None, typer.Option("--shrink", help="Write the smallest failing schedule here.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Run the quorum's own code through crashes, lost messages and lost disk writes.

    Everything follows from the seed: a failing seed fails again, everywhere. Exit status 0 if no
    invariant broke, 1 if one did.
    """
    if mutant is not None and mutant not in MUTANTS:
        fail(f"--mutant {mutant}: there are {', '.join(MUTANTS)}", EXIT_USAGE)
    chosen = None if faults is None else [name.strip() for name in faults.split(",")]
    for name in chosen or []:
        if name not in FAULTS:
            fail(f"--faults {name}: there are {', '.join(FAULTS)}", EXIT_USAGE)
    if schedule is not None and seed is None:
        fail("--schedule needs the --seed that it was made with", EXIT_USAGE)
    arguments: dict[str, Any] = {
        "nodes": nodes,
        "duration_ms": parse_duration_ms(duration),
        "faults": chosen,
        "mutant": mutant,
        "schedule": None if schedule is None else _read_schedule(schedule),
    }
    started_s = time.monotonic()
    wanted = range(seeds) if seed is None else range(seed, seed + 1)
    results = list(_run(wanted, arguments))
    failed = [result for result in results if not result.valid]
    summary = _summary(results, failed, time.monotonic() - started_s)
    if shrink_to is not None and failed:
        smallest = shrink(failed[0])
        shrink_to.write_text(json.dumps(smallest, indent=2) + "\n")
        again = f"--seed {failed[0].seed} --schedule {shrink_to}"
        say(f"wrote {shrink_to}; replay: {again}{'' if mutant is None else f' --mutant {mutant}'}")
    if json_output:
        document(summary)
    else:
        _print(summary)
        if failed:
            say("\n".join([f"how seed {failed[0].seed} came to it:", *failed[0].trace]))
    if failed:
        raise typer.Exit(EXIT_FAILED)


def parse_duration_ms(text: str) -> int:
    """Read `500ms`, `30s`, `2m` or a bare number of seconds; end with a usage error otherwise."""
    units = {"ms": 1, "s": 1000, "m": 60_000, "": 1000}
    number = text.rstrip("ms")
    unit = text.removeprefix(number)
    try:
        duration_ms = float(number) * units[unit]
    except (ValueError, KeyError):
        fail(f"{text!r} is not a duration; write 30s, 500ms or 2m", EXIT_USAGE)
    if duration_ms <= 0:
        fail(f"{text!r} is not a duration: it must be positive", EXIT_USAGE)
    return int(duration_ms)


def _read_schedule(path: Path) -> Any:
    try:
        return check_schedule(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        fail(f"{path} is not a schedule: {error}", EXIT_USAGE)


def _run_one(job: tuple[int, dict[str, Any]]) -> SimulationResult:
    seed, arguments = job
    return run_seed(seed, **arguments)


def _run(seeds: Iterable[int], arguments: dict[str, Any]) -> Iterator[SimulationResult]:
    jobs = [(seed, arguments) for seed in seeds]
    if len(jobs) == 1:
        yield _run_one(jobs[0])
        return
    workers = min(len(jobs), os.cpu_count() or 1)
    with ProcessPoolExecutor(workers) as pool:
        results = pool.map(_run_one, jobs, chunksize=max(1, min(16, len(jobs) // workers)))
        yield from track(
            results, "simulating", total=len(jobs), console=Console(stderr=True), transient=True
        )


def _summary(
    results: list[SimulationResult], failed: list[SimulationResult], seconds: float
) -> dict[str, Any]:
    return {
        "valid": not failed,
        "seeds": len(results),
        "events": sum(result.events for result in results),
        "elections": sum(result.elections for result in results),
        "committed": sum(result.committed for result in results),
        "simulated_seconds": round(sum(result.simulated_ms for result in results) / 1000),
        "seconds": round(seconds, 2),
        "digest": results[0].digest if len(results) == 1 else None,
        "violations": [
            {"seed": result.seed, "violation": result.violation, "trace": result.trace}
            for result in failed
        ],
    }


def _print(summary: dict[str, Any]) -> None:
    rate = summary["simulated_seconds"] / max(summary["seconds"], 0.01)
    data(
        f"{summary['seeds']} seeds, {summary['simulated_seconds']} simulated seconds in "
        f"{summary['seconds']} s ({rate:.0f}x), {summary['events']} events, "
        f"{summary['elections']} elections, {summary['committed']} records committed"
    )
    if summary["digest"] is not None:
        data(f"digest {summary['digest']}")
    for violation in summary["violations"][:_SHOWN_VIOLATIONS]:
        data(f"seed {violation['seed']}: {violation['violation']}")
    if not summary["violations"]:
        data("no invariant broke")
