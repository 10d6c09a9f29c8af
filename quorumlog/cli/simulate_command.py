"""`quorumlog simulate`: runs seeds through the simulator, one process per core."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from itertools import compress
from pathlib import Path
from typing import Any, Final, NamedTuple

import typer
from rich.console import Console
from rich.progress import track

from quorumlog.chaos.schedule import Schedule
from quorumlog.chaos.simulation import WORLDS, SimulationResult, replay, shrink
from quorumlog.chaos.simulation import simulate as run_seed
from quorumlog.chaos.simulation.running import DEFAULT_WORLD
from quorumlog.chaos.simulation.worlds.registry import WorldKind
from quorumlog.cli import simulate_options as options
from quorumlog.cli.options import Json, parse_duration_ms
from quorumlog.cli.output import EXIT_FAILED, EXIT_USAGE, data, document, fail, say

_SHOWN_VIOLATIONS: Final = 20
_SEEDS_PER_JOB_MAX: Final = 8
_ESTIMATE_AFTER_S: Final = 2.0
_WORTH_TELLING_S: Final = 20.0
COMMAND: Final = options.ShrinkNeedsNoFile
"""The class of the command, for main.py."""


def simulate(
    subject: options.Subject = "",
    seeds: options.Seeds = None,
    seed: options.Seed = None,
    duration: options.Duration = None,
    world: options.World = "",
    nodes: options.NodeCount = 3,
    controllers: options.Controllers = None,
    brokers: options.Brokers = None,
    racks: options.Racks = None,
    faults: options.Faults = None,
    mutant: options.Mutant = None,
    schedule: options.ScheduleFile = None,
    shrink_to: options.Shrink = None,
    workload: options.Workload = None,
    workload_option: options.WorkloadOption = None,
    partitions: options.Partitions = None,
    any_power_loss: options.AnyPowerLoss = False,
    config: options.Config = None,
    json_output: Json = False,
) -> None:
    """Run the real cores and logs, or whole nodes, through crashes and losses.

    A failing seed fails again, everywhere. Exit status 1 if an invariant broke. A CPU core runs
    60 s of a core world in a second (logs: 2 to 30 s), and 12 s of whole nodes in two.
    """
    subject = _subject(subject, world, schedule)
    if subject == options.NODES:
        from quorumlog.cli import simulate_nodes as whole

        asked = whole.Asked(
            duration=duration or options.DURATION_OF_NODES,
            shape=options.shape(nodes, controllers, brokers, racks),
            faults=faults,
            mutant=mutant,
            workload=workload,
            workload_options=tuple(workload_option or ()),
            partitions=partitions,
            any_power_loss=any_power_loss,
            config=tuple(config or ()),
        )
        wanted = _seeds(seeds or options.SEEDS_OF_NODES, seed)
        whole.simulate_nodes(wanted, asked, schedule, shrink_to=shrink_to, json_output=json_output)
        return
    roles, load = (controllers, brokers, racks), (workload, workload_option, partitions)
    for name in compress(options.OF_NODES, (*roles, *load, any_power_loss, config)):
        fail(f"{name} applies to whole nodes only: run quorumlog simulate nodes", EXIT_USAGE)
    flags = _Flags(duration or options.DURATION, faults)
    started_s, started_cpu_s = time.monotonic(), _cpu_s()
    if schedule is None:
        arguments = _arguments(subject, nodes, flags, mutant)
        results = list(_run(_seeds(seeds or options.SEEDS, seed), arguments))
    else:
        results = [_replay(schedule, seed, mutant)]
    seconds, cpu_s = time.monotonic() - started_s, _cpu_s() - started_cpu_s
    failed = [result for result in results if not result.valid]
    if shrink_to is not None and failed:
        _shrink(failed[0], options.shrunk_file(shrink_to, failed[0].seed))
    summary = _summary(results, failed, seconds, cpu_s)
    _report(summary, failed, None if schedule is not None else flags, json_output=json_output)


def _report(
    summary: dict[str, Any],
    failed: list[SimulationResult],
    flags: "_Flags | None",
    *,
    json_output: bool,
) -> None:
    if json_output:
        document(summary)
    else:
        _print(summary)
        _explain(failed, flags)
    if failed:
        raise typer.Exit(EXIT_FAILED)


def _seeds(count: int, one: int | None) -> range:
    return range(count) if one is None else range(one, one + 1)


def _cpu_s() -> float:
    """Return the CPU time of this process and of its finished children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _subject(subject: str, world: str, schedule: Path | None) -> str:
    """Return the subject of the simulation; end with a usage error if it does not exist."""
    if subject and world and subject != world:
        fail(f"{subject} --world {world}: give only one of them", EXIT_USAGE)
    chosen = subject or world or _subject_of(schedule)
    if chosen not in options.SUBJECTS:
        name = chosen if subject else f"--world {chosen}"
        fail(f"{name} does not exist; choose from {', '.join(options.SUBJECTS)}", EXIT_USAGE)
    return chosen


def _subject_of(schedule: Path | None) -> str:
    """Return the subject of a file's schedule: a world, else whole nodes."""
    if schedule is not None:
        with suppress(OSError, ValueError):
            workload = Schedule.from_json(schedule.read_text()).workload
            return workload if workload in WORLDS else options.NODES
    return DEFAULT_WORLD


class _Flags(NamedTuple):
    """The options of the command line that a schedule does not hold."""

    duration: str
    faults: str | None


def _explain(failed: list[SimulationResult], flags: _Flags | None) -> None:
    """Show the trace of the first failing seed, and the command that runs it again."""
    if failed:
        say("\n".join([f"trace of seed {failed[0].seed}:", *failed[0].trace]))
    if failed and flags is not None:
        command = _command(failed[0], flags)
        say(f"again: {command}\nshrink: {command} --shrink")


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


def _arguments(world: str, nodes: int, flags: _Flags, mutant: str | None) -> dict[str, Any]:
    """Return the options of every seed; end with a usage error if they are invalid."""
    kind = WORLDS[world]
    _check_mutant(kind, mutant)
    least, most = kind.nodes
    if not least <= nodes <= most:
        fail(f"--nodes {nodes}: the world {world} takes {least} to {most} nodes", EXIT_USAGE)
    known = [fault.name for fault in kind.faults]
    chosen = None if flags.faults is None else [name.strip() for name in flags.faults.split(",")]
    for name in chosen or []:
        if name not in known:
            fail(f"--faults {name} does not exist; choose from {', '.join(known)}", EXIT_USAGE)
    return {
        "world": world,
        "nodes": nodes,
        "duration_ms": parse_duration_ms(flags.duration),
        "faults": chosen,
        "mutant": mutant,
    }


def _check_mutant(kind: WorldKind, mutant: str | None) -> None:
    if mutant is not None and mutant not in kind.mutants:
        fail(f"--mutant {mutant} does not exist; choose from {', '.join(kind.mutants)}", EXIT_USAGE)


def _replay(path: Path, seed: int | None, mutant: str | None) -> SimulationResult:
    """Run the schedule of a file; end with a usage error if the file has none."""
    try:
        schedule = Schedule.from_json(path.read_text())
        if seed not in {None, schedule.seed}:
            fail(f"--seed {seed}: {path} has seed {schedule.seed}; leave out --seed", EXIT_USAGE)
        if schedule.workload in WORLDS:
            _check_mutant(WORLDS[schedule.workload], mutant)
        return replay(schedule, mutant=mutant)
    except (OSError, ValueError) as error:
        fail(f"{path} has no schedule for a simulation: {error}", EXIT_USAGE)


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
        console = Console(stderr=True)
        yield from track(
            _results(jobs, len(seeds)),
            "simulating",
            total=len(seeds),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )


@contextmanager
def _ctrl_c_waits() -> Iterator[None]:
    """Handle a Ctrl-C after the block: Python ignores it while a process is forked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextmanager
def _ended_with_us() -> Iterator[None]:
    """End the worker processes if the block is left early: by Ctrl-C, or by our own bug.

    Their jobs are not cancelled: the executor ends the jobs of ended processes.
    """
    try:
        yield
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        raise


def _end_at_ctrl_c() -> None:
    """End a worker silently on Ctrl-C: the command itself reports the interruption."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # `_ctrl_c_waits` blocked it


def _results(
    jobs: "Sequence[Future[list[SimulationResult]]]", total: int
) -> Iterator[SimulationResult]:
    """Yield every job's results, in order; print an estimate once if the run is long."""
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
    results: list[SimulationResult], failed: list[SimulationResult], seconds: float, cpu_s: float
) -> dict[str, Any]:
    """Return the document; `seed` and `digest` of one run, `failed` of several."""
    committed = sum(result.committed for result in results)
    simulated_ms = sum(result.simulated_ms for result in results)
    one = results[0] if len(results) == 1 else None
    found = [
        {"seed": result.seed, "digest": result.digest, "anomalies": [result.violation]}
        for result in failed
    ]
    return {
        "valid": not failed,
        **({"failed": found} if one is None else {"seed": one.seed}),
        "seeds": len(results),
        "virtual_s": round(simulated_ms / 1000, 3),
        "cpu_s": round(cpu_s, 3),
        "operations": committed,
        "events": sum(result.events for result in results),
        "elections": sum(result.elections for result in results),
        "committed": committed,
        "simulated_seconds": round(simulated_ms / 1000),
        "seconds": round(seconds, 2),
        "digest": None if one is None else one.digest,
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
