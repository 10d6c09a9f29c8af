"""`quorumlog simulate`: runs seeds through the simulator, one process per core."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer
from rich.console import Console
from rich.progress import track

from quorumlog.chaos.schedule import Schedule
from quorumlog.chaos.simulation import WORLDS, SimulationResult, replay, shrink
from quorumlog.chaos.simulation import simulate as run_seed
from quorumlog.chaos.simulation.running import DEFAULT_WORLD
from quorumlog.chaos.simulation.worlds.registry import WorldKind
from quorumlog.cli.duration import parse_duration_ms
from quorumlog.cli.output import EXIT_FAILED, EXIT_USAGE, data, document, fail, say

_SHOWN_VIOLATIONS: Final = 20
_SEEDS_PER_JOB_MAX: Final = 8
_ESTIMATE_AFTER_S: Final = 2.0
_WORTH_TELLING_S: Final = 20.0
_NODES: Final = "nodes"
_SUBJECTS: Final = {kind.name: kind.text for kind in WORLDS.values()} | {
    _NODES: "whole nodes and the real client, by what clients see"
}
_SUBJECT_HELP: Final = "What is simulated: " + "; ".join(
    f"{name}, {text}" for name, text in _SUBJECTS.items()
)
_SEEDS: Final = 200
_DURATION: Final = "60s"
_NODES_SEEDS: Final = 20
_NODES_DURATION: Final = "12s"


_Subject = Annotated[
    str,
    typer.Argument(help=_SUBJECT_HELP, autocompletion=lambda: list(_SUBJECTS)),
]
_Seeds = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help=f"How many seeds, from 0 on ({_SEEDS}; {_NODES_SEEDS} of whole nodes).",
        min=1,
    ),
]
_Seed = Annotated[int | None, typer.Option(metavar="N", help="Run this one seed only.")]
_Duration = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help=f"Simulated time of each seed ({_DURATION}; {_NODES_DURATION} of whole nodes).",
    ),
]
_World = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="The same as the argument.",
        autocompletion=lambda: list(_SUBJECTS),
    ),
]
_NodeCount = Annotated[int, typer.Option(metavar="N", help="Voters, or brokers.", min=1, max=9)]
_Faults = Annotated[
    str | None,
    typer.Option(metavar="FAULT[,FAULT]", help="Only these; a wrong name shows them all."),
]
_Mutant = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Break one rule of the world, to see it found; a wrong name shows them all.",
        autocompletion=lambda: [name for kind in WORLDS.values() for name in kind.mutants],
    ),
]
_ScheduleFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Replay this file: its world, seed, options, faults."),
]
_ShrinkTo = Annotated[
    Path | None,
    typer.Option("--shrink", metavar="FILE", help="Write the smallest failing schedule here."),
]
_Config = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="A setting of the nodes; only for whole nodes."),
]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def simulate(
    subject: _Subject = "",
    seeds: _Seeds = None,
    seed: _Seed = None,
    duration: _Duration = None,
    world: _World = "",
    nodes: _NodeCount = 3,
    faults: _Faults = None,
    mutant: _Mutant = None,
    schedule: _ScheduleFile = None,
    shrink_to: _ShrinkTo = None,
    config: _Config = None,
    json_output: _Json = False,
) -> None:
    """Run the real cores and logs, or whole nodes, through crashes and losses.

    Everything follows from the seed: a failing seed fails again, everywhere. Exit status 0 if no
    invariant broke, 1 if one did. A core runs two to five seeds of 60 s of a core world in a
    second, and a seed of 12 s of whole nodes in about two.
    """
    started_s = time.monotonic()
    subject = _subject(subject, world, schedule)
    if subject == _NODES:
        _simulate_nodes(
            range(seeds or _NODES_SEEDS) if seed is None else range(seed, seed + 1),
            schedule=schedule,
            duration=duration or _NODES_DURATION,
            nodes=nodes,
            faults=faults,
            mutant=mutant,
            config=config or [],
            shrink_to=shrink_to,
            json_output=json_output,
        )
        return
    duration = duration or _DURATION
    if config:
        fail("--config is for whole nodes: quorumlog simulate nodes", EXIT_USAGE)
    if schedule is None:
        arguments = _arguments(subject, nodes, duration, faults, mutant)
        wanted = range(seeds or _SEEDS) if seed is None else range(seed, seed + 1)
        results = list(_run(wanted, arguments))
    else:
        results = [_replay(schedule, seed, mutant)]
    failed = [result for result in results if not result.valid]
    summary = _summary(results, failed, time.monotonic() - started_s)
    if shrink_to is not None and failed:
        _shrink(failed[0], shrink_to)
    if json_output:
        document(summary)
    else:
        _print(summary)
        _explain(failed, None if schedule is not None else _Flags(duration, faults))
    if failed:
        raise typer.Exit(EXIT_FAILED)


def _subject(subject: str, world: str, schedule: Path | None) -> str:
    """Return what is to be simulated; end with a usage error if there is no such thing."""
    if subject and world and subject != world:
        fail(f"{subject} --world {world}: name one of them", EXIT_USAGE)
    chosen = subject or world or _subject_of(schedule)
    if chosen not in _SUBJECTS:
        name = chosen if subject else f"--world {chosen}"
        fail(f"{name}: there are {', '.join(_SUBJECTS)}", EXIT_USAGE)
    return chosen


def _subject_of(schedule: Path | None) -> str:
    """Return what the schedule of a file is for: a workload that is no world is of whole nodes."""
    if schedule is not None:
        with suppress(OSError, ValueError):
            workload = Schedule.from_json(schedule.read_text()).workload
            return workload if workload in WORLDS else _NODES
    return DEFAULT_WORLD


def _simulate_nodes(
    seeds: Sequence[int],
    *,
    schedule: Path | None,
    duration: str,
    nodes: int,
    faults: str | None,
    mutant: str | None,
    config: list[str],
    shrink_to: Path | None,
    json_output: bool,
) -> None:
    from quorumlog.cli import simulate_nodes as whole

    started_s = time.monotonic()
    wanted = whole.node_settings(
        seeds,
        schedule=schedule,
        duration_ms=parse_duration_ms(duration),
        nodes=nodes,
        faults=faults,
        mutant=mutant,
        config=config,
    )
    outcomes = whole.run_nodes(wanted)
    found = whole.summary(wanted, outcomes, time.monotonic() - started_s)
    if json_output:
        document(found)
    else:
        whole.show(found, outcomes)
        if schedule is None:
            whole.explain(wanted, outcomes, whole.again(duration, nodes, faults, mutant, config))
    if shrink_to is not None:
        whole.shrink_first(wanted, outcomes, shrink_to)
    if status := whole.status_of(outcomes):
        raise typer.Exit(status)


class _Flags(NamedTuple):
    """The options of the command line that a schedule does not hold."""

    duration: str
    faults: str | None


def _explain(failed: list[SimulationResult], flags: _Flags | None) -> None:
    """Show how the first seed came to fail, and the command that runs it again."""
    if failed:
        say("\n".join([f"how seed {failed[0].seed} came to it:", *failed[0].trace]))
    if failed and flags is not None:
        say(f"again: {_command(failed[0], flags)}")


def _shrink(result: SimulationResult, path: Path) -> None:
    path.write_text(shrink(result).to_json())
    mutant = "" if result.mutant is None else f" --mutant {result.mutant}"
    say(f"wrote {path}; replay: quorumlog simulate --schedule {path}{mutant}")


def _command(result: SimulationResult, flags: _Flags) -> str:
    """Return the command that runs a seed again, exactly."""
    schedule = result.schedule
    command = f"quorumlog simulate --world {schedule.workload} --seed {result.seed}"
    command += f" --duration {flags.duration} --nodes {schedule.options['nodes']}"
    command += "" if flags.faults is None else f" --faults {flags.faults}"
    return command + ("" if result.mutant is None else f" --mutant {result.mutant}")


def _arguments(
    world: str, nodes: int, duration: str, faults: str | None, mutant: str | None
) -> dict[str, Any]:
    """Return what every seed is run with; end with a usage error if it makes no sense."""
    kind = WORLDS[world]
    _check_mutant(kind, mutant)
    least, most = kind.nodes
    if not least <= nodes <= most:
        fail(f"--nodes {nodes}: the world {world} has {least} to {most}", EXIT_USAGE)
    known = [fault.name for fault in kind.faults]
    chosen = None if faults is None else [name.strip() for name in faults.split(",")]
    for name in chosen or []:
        if name not in known:
            fail(f"--faults {name}: there are {', '.join(known)}", EXIT_USAGE)
    return {
        "world": world,
        "nodes": nodes,
        "duration_ms": parse_duration_ms(duration),
        "faults": chosen,
        "mutant": mutant,
    }


def _check_mutant(kind: WorldKind, mutant: str | None) -> None:
    if mutant is not None and mutant not in kind.mutants:
        fail(f"--mutant {mutant}: there are {', '.join(kind.mutants)}", EXIT_USAGE)


def _replay(path: Path, seed: int | None, mutant: str | None) -> SimulationResult:
    """Run the schedule of a file; end with a usage error if it is none."""
    try:
        schedule = Schedule.from_json(path.read_text())
        if seed not in {None, schedule.seed}:
            fail(f"--seed {seed}: {path} is of seed {schedule.seed}", EXIT_USAGE)
        if schedule.workload in WORLDS:
            _check_mutant(WORLDS[schedule.workload], mutant)
        return replay(schedule, mutant=mutant)
    except (OSError, ValueError) as error:
        fail(f"{path} is not a schedule that can be simulated: {error}", EXIT_USAGE)


def _run_some(seeds: Sequence[int], arguments: dict[str, Any]) -> list[SimulationResult]:
    return [run_seed(seed, **arguments) for seed in seeds]


def _run(seeds: Sequence[int], arguments: dict[str, Any]) -> Iterator[SimulationResult]:
    """Yield the results in the order of the seeds."""
    if len(seeds) == 1:
        yield from _run_some(seeds, arguments)
        return
    workers = min(len(seeds), os.cpu_count() or 1)
    some = max(1, min(_SEEDS_PER_JOB_MAX, len(seeds) // workers))
    with ProcessPoolExecutor(workers, initializer=_end_at_ctrl_c) as pool, _ended_with_us():
        with _ctrl_c_waits():
            jobs = [
                pool.submit(_run_some, seeds[place : place + some], arguments)
                for place in range(0, len(seeds), some)
            ]
        yield from track(
            _results(jobs, len(seeds)),
            "simulating",
            total=len(seeds),
            console=Console(stderr=True),
            transient=True,
        )


@contextmanager
def _ctrl_c_waits() -> Iterator[None]:
    """Take a Ctrl-C after the block: Python ignores one that comes while a process is forked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextmanager
def _ended_with_us() -> Iterator[None]:
    """End the worker processes if the block is left early: by Ctrl-C, or by our own bug.

    Their jobs are not cancelled: the executor itself ends those that have lost their processes.
    """
    try:
        yield
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        raise


def _end_at_ctrl_c() -> None:
    """Let Ctrl-C end a worker silently: the command itself reports the interruption."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # `_ctrl_c_waits` blocked it


def _results(
    jobs: "Sequence[Future[list[SimulationResult]]]", total: int
) -> Iterator[SimulationResult]:
    """Yield every job's results, in order; say once how long it will take, if that is long."""
    started_s, told = time.monotonic(), False
    for job in jobs:
        yield from job.result()
        passed_s = time.monotonic() - started_s
        if not told and passed_s > _ESTIMATE_AFTER_S:
            told = True
            done = sum(other.done() for other in jobs) / len(jobs)
            left_s = passed_s / done - passed_s
            if left_s > _WORTH_TELLING_S:
                say(f"{total} seeds: about {left_s / 60:.1f} min to go; Ctrl-C ends it")


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
