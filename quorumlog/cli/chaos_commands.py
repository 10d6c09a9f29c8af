"""`quorumlog chaos run | list | export`: break a cluster, check its history, report."""

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from quorumlog.chaos.back_ends.back_end import BackEndFailed
from quorumlog.chaos.checking.spark import SparkUnavailable
from quorumlog.chaos.drivers.registry import DriverUnavailable
from quorumlog.chaos.faults.fault import MILLION
from quorumlog.chaos.history import HistoryError
from quorumlog.chaos.history.files import JSON_LINES
from quorumlog.chaos.mutants import mutant_module
from quorumlog.chaos.network.links import NetworkKind
from quorumlog.chaos.run.figures import faults_text
from quorumlog.chaos.run.protection import own_faults
from quorumlog.chaos.run.run import RunError, run
from quorumlog.chaos.run.run_settings import RunSettings, RunSummary
from quorumlog.chaos.schedule import Option, Schedule, ScheduleError
from quorumlog.cli import chaos_options as options
from quorumlog.cli import security_options
from quorumlog.cli.chaos_list import list_command
from quorumlog.cli.options import Brokers, Controllers, Json, Racks, parse_duration_ms
from quorumlog.cli.output import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_UNKNOWN,
    EXIT_USAGE,
    data,
    document,
    fail,
    one_line_errors,
    parse_settings,
    say,
)
from quorumlog.cli.verify import (
    EXIT_STATUS,
    Engine,
    Master,
    SparkConf,
    bugs_are_no_verdict,
    check_engine,
    judge,
    print_verdict,
)
from quorumlog.cluster import ClusterError, ClusterShape, InvalidArgument
from quorumlog.cluster.shape import read_racks

if TYPE_CHECKING:
    from quorumlog.chaos.checkers import Verdict

app = typer.Typer(
    help="Break a cluster on purpose and prove what survived.",
    no_args_is_help=True,
    subcommand_metavar="COMMAND",
)

_WORKLOAD: Final = "append_read"
_DURATION: Final = "60s"
_NO_VERDICT: Final = (
    BackEndFailed,
    ClusterError,
    RunError,
    HistoryError,
    SparkUnavailable,
    OSError,
)


@app.command(name="serve")
def serve_command(
    store: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory of one run, or of many runs below it.")
    ] = Path("runs"),
    port: Annotated[
        int,
        typer.Option(
            metavar="PORT", help="Port to listen on; 0: any free port.", min=0, max=65_535
        ),
    ] = 8080,
    host: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            help="Address to listen on; not loopback: other machines can read the runs.",
        ),
    ] = "127.0.0.1",
) -> None:
    """Show runs in a browser: verdicts, reports, node logs.

    The server only reads. A page lists the runs that exist when it loads. Ctrl-C ends it.

    \b
      quorumlog chaos serve runs
      quorumlog chaos serve demo-run --port 0
    """
    with (
        one_line_errors(NotADirectoryError, status=EXIT_USAGE),
        one_line_errors(OSError, status=EXIT_FAILED),
    ):
        asyncio.run(_serve(store, host, port))


async def _serve(store: Path, host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM."""
    from quorumlog.chaos.store.server import StoreServer

    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    server = StoreServer(store, host=host, port=port)
    try:
        data(f"{await server.start()}  shows the runs in {store}; Ctrl-C ends it")
        await stopped.wait()
    finally:
        await server.stop()


app.command(name="list")(list_command)


@app.command(name="run")
def run_command(
    workload: options.Workload = None,
    workload_option: options.WorkloadOption = None,
    fault: options.Fault = None,
    overlap: options.Overlap = True,
    duration: options.Duration = None,
    seed: options.Seed = 0,
    nodes: options.Nodes = 3,
    controllers: Controllers = None,
    brokers: Brokers = None,
    racks: Racks = None,
    network: options.Network = "proxy",
    record_responses: options.RecordResponses = False,
    driver: options.DriverName = "client",
    producer: options.Producer = None,
    bootstrap: options.Bootstrap = None,
    command_config: options.CommandConfig = None,
    control: options.Control = None,
    out: options.Out = None,
    engine: Engine = "auto",
    master: Master = None,
    spark_conf: SparkConf = None,
    rate: options.Rate = None,
    partitions: options.Partitions = 4,
    replication: options.Replication = 3,
    schedule: options.ScheduleFile = None,
    config: options.Config = None,
    mutant: options.MutantName = None,
    node_module: options.NodeModule = None,
    tls: security_options.Tls = False,
    sasl: security_options.Sasl = None,
    user: security_options.User = None,
    users: security_options.Users = None,
    acls: security_options.Acls = False,
    super_user: security_options.SuperUser = None,
    acks_in_faults: options.AcksInFaults = None,
    min_acknowledged: options.MinAcknowledged = 0.0,
    json: Json = False,
) -> None:
    """Break a cluster under load; check its history. Exit status 0: valid, 1: not, 2: unknown.

    \b
      quorumlog chaos run --bootstrap host:9092 --fault none --driver confluent
    """
    conf = check_engine(engine, master, spark_conf)
    with _honest_status(out := out or Path("runs") / time.strftime("%Y%m%dT%H%M%S")):
        given = None if schedule is None else _read_schedule(schedule)
        shape = ClusterShape(nodes, controllers, brokers, read_racks(racks))
        settings = RunSettings(
            out=out,
            **_workload(workload, workload_option or [], rate, given, fault, tls),
            **_faults(given, overlap, duration, acks_in_faults, seed),
            **_cluster(shape, partitions, replication, network, record_responses),
            **_clients(driver, producer or []),
            **_reach(bootstrap, command_config, control),
            protection=security_options.security_of(tls, sasl, user, users, acls, super_user),
            **_nodes(config or [], mutant, node_module),
        )
        found = _run_and_judge(settings, min_acknowledged, engine, master, conf)
    _show(*found, as_json=json)


def _faults(
    given: Schedule | None, overlap: bool, duration: str | None, acks: int | None, seed: int
) -> dict[str, Any]:
    """Return the settings `schedule`, `overlap`, `duration_s`, `acks_in_faults`, `seed`."""
    return {
        "schedule": given,
        "overlap": overlap,
        "duration_s": _duration_s(duration, given),
        "acks_in_faults": acks,
        "seed": seed,
    }


def _cluster(
    shape: ClusterShape, partitions: int, replicas: int, network: NetworkKind, records: bool
) -> dict[str, Any]:
    """Return the settings of the nodes and links of a new cluster, and of the topic."""
    return {
        "shape": shape,
        "partitions": partitions,
        "replication_factor": replicas,
        "network": network,
        "record_responses": records,
    }


def _clients(driver: str, producer: list[str]) -> dict[str, Any]:
    """Return the settings `driver`, `producer`."""
    return {"driver": driver, "producer": parse_settings(producer, "--producer")}


def _reach(bootstrap: str | None, file: Path | None, control: str | None) -> dict[str, Any]:
    """Return the settings `bootstrap`, `security`, `control`. Raises ValueError, OSError."""
    if file is None:
        return {"bootstrap": bootstrap, "control": control}
    from quorumlog.cli.client_properties import client_options
    from quorumlog.client.security import SecuritySettings
    from quorumlog.doctor.client_settings import read_properties

    found = client_options(read_properties(file))
    found.pop("client_id", None)
    bootstrap = bootstrap or found.get("bootstrap_servers")
    found.pop("bootstrap_servers", None)
    security = SecuritySettings(**found)
    return {"bootstrap": bootstrap, "security": security, "control": control}


def _run_and_judge(
    settings: RunSettings,
    least_percent: float,
    engine: Engine,
    master: str | None,
    conf: Mapping[str, str],
) -> tuple[RunSummary, "Verdict", Path]:
    """Carry the run out; return its summary, its verdict and the file of its report."""
    summary = _run_with_progress(settings)
    doubt = summary.load.doubt(least_percent)
    verdict, report = judge(settings.out, engine=engine, master=master, conf=conf, doubt=doubt)
    return summary, verdict, report


def _show(summary: RunSummary, verdict: "Verdict", report: Path, *, as_json: bool) -> NoReturn:
    """Print the verdict, for a person or as JSON, and end with its exit status."""
    if as_json:
        paths = {"out": str(report.parent.resolve()), "report": str(report.resolve())}
        replicas = None if summary.replicas is None else summary.replicas._asdict()
        load = {"load": summary.load.as_json(), **summary.in_faults_as_json()}
        figures = {**load, "replicas": replicas}
        document({**verdict.as_json(), **figures, **paths})
    else:
        _print(summary, verdict, report)
    raise typer.Exit(EXIT_STATUS[verdict.valid])


def _nodes(config: list[str], mutant: str | None, module: str | None) -> dict[str, Any]:
    """Return the settings `config`, `node_module`."""
    return {"config": parse_settings(config), "node_module": _node_module(mutant, module)}


def _node_module(mutant: str | None, module: str | None) -> str:
    if mutant is not None and module is not None:
        fail(
            "--mutant and --node-module both set the module of a node: give one of them", EXIT_USAGE
        )
    return mutant_module(mutant) if mutant is not None else module or "quorumlog.node"


def _fault_names(text: str | None, workload: str, tls: bool = False) -> tuple[str, ...]:
    """Return the named faults; None: those of the workload. Raises ValueError."""
    if text is None:
        return own_faults(workload, {"tls": tls})
    return () if text == options.NO_FAULTS else tuple(name.strip() for name in text.split(","))


def _read_schedule(path: Path) -> Schedule:
    """Read a schedule. Raises ScheduleError that names the file, or OSError."""
    try:
        return Schedule.from_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ScheduleError(f"{path}: {error}") from error


def _workload(
    name: str | None,
    given: list[str],
    rate: float | None,
    schedule: Schedule | None,
    fault: str | None,
    tls: bool = False,
) -> dict[str, Any]:
    """Return the settings `workload`, `options`, `faults`.

    A named workload replaces the schedule's; it has faults of its own for a run that names none.
    """
    values: dict[str, Option] = {**parse_settings(given)}
    if rate is not None:
        values["rate"] = rate
    if schedule is None or not schedule.workload or name not in (None, schedule.workload):
        chosen = name or _WORKLOAD
    else:
        chosen, values = schedule.workload, {**schedule.options, **values}
    return {"workload": chosen, "options": values, "faults": _fault_names(fault, chosen, tls)}


def _duration_s(text: str | None, schedule: Schedule | None) -> float:
    if text is None and schedule is not None and schedule.duration_us:
        return schedule.duration_us / MILLION
    return parse_duration_ms(text or _DURATION) / 1000


@contextmanager
def _honest_status(out: Path) -> Iterator[None]:
    """End with the right exit status, which is 1 only for a verdict.

    If the run is interrupted, name the directory of its history.
    """
    with (
        bugs_are_no_verdict(),
        one_line_errors(*_NO_VERDICT, status=EXIT_UNKNOWN),
        one_line_errors(ValueError, InvalidArgument, DriverUnavailable, status=EXIT_USAGE),
    ):
        try:
            yield
        except KeyboardInterrupt:
            say("quorumlog: interrupted; the processes of this run are stopped")
            if (out / JSON_LINES).exists():
                say(f"to check the history so far: quorumlog verify {out}")
            raise typer.Exit(EXIT_INTERRUPTED) from None


class _Bars:
    """One progress bar per phase, on stderr."""

    def __init__(self, progress: Progress) -> None:
        self._progress: Final = progress
        self._tasks: dict[str, TaskID] = {}

    def update(self, phase: str, fraction: float, figures: str) -> None:
        """Move the bar of a phase."""
        if phase not in self._tasks:
            self._tasks[phase] = self._progress.add_task(phase, total=1.0, figures="")
        self._progress.update(self._tasks[phase], completed=fraction, figures=figures)


def _run_with_progress(settings: RunSettings) -> RunSummary:
    columns = (
        TextColumn("{task.description:12}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    console = Console(stderr=True)
    progress = Progress(*columns, console=console, disable=not console.is_terminal)
    with _without_warnings_of_clients(), progress:
        typed = ("quorumlog", *security_options.without_secrets(sys.argv[1:]))
        return run(replace(settings, command=typed), _Bars(progress).update)


@contextmanager
def _without_warnings_of_clients() -> Iterator[None]:
    """Suppress the clients' warnings of unreachable nodes: faults cause them on purpose."""
    logger = logging.getLogger("quorumlog.client")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _print(summary: RunSummary, verdict: "Verdict", report: Path) -> None:
    faults = faults_text(summary.faults, verdict.figures.get("faults", 0))
    data(f"{summary.figures}; {faults} in {summary.seconds:.0f} s")
    if summary.not_met:
        data(f"faults without effect, for lack of time: {', '.join(summary.not_met)}")
    print_verdict(verdict)
    data(summary.load.text())
    if summary.in_faults is not None:
        acknowledged, required = summary.in_faults
        data(f"{acknowledged} acknowledgements lie among the faults; {required} are required")
    if summary.replicas is not None:
        data(summary.replicas.text)
    data(f"history  {report.parent}\nreport   {report}")


@app.command(name="export")
def export_command(
    history: Annotated[
        Path, typer.Argument(metavar="HISTORY", help="A run's directory, or a history file.")
    ],
    format_: Annotated[
        Literal["edn", "jsonl"],
        typer.Option(
            "--format",
            help="edn: Jepsen's own format. jsonl: the same operations, a JSON object a line.",
        ),
    ] = "edn",
) -> None:
    """Print a history in Jepsen's format, for other checkers."""
    from quorumlog.cli.verify import require_checkers

    require_checkers()
    from quorumlog.chaos.history import HistoryError, read_history
    from quorumlog.chaos.history.export import exported

    with one_line_errors(HistoryError, OSError, status=EXIT_UNKNOWN):
        table = read_history(history)
    for line in exported(table, format_):
        data(line)
