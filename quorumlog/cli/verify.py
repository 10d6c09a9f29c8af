"""`quorumlog verify`: check a history, on Spark or in this process."""

import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from rich.console import Console

from quorumlog.chaos.network.error_responses import shown_response
from quorumlog.cli.output import (
    EXIT_FAILED,
    EXIT_UNKNOWN,
    EXIT_USAGE,
    EXIT_VALID,
    data,
    document,
    fail,
    one_line_errors,
    parse_settings,
)

if TYPE_CHECKING:
    from quorumlog.chaos.checkers import Valid, Verdict
    from quorumlog.chaos.history import HistorySource
    from quorumlog.chaos.verify import EngineChoice

EXIT_STATUS: Final[Mapping["Valid", int]] = {
    True: EXIT_VALID,
    False: EXIT_FAILED,
    "unknown": EXIT_UNKNOWN,
}
_WORDS: Final[Mapping["Valid", str]] = {True: "VALID", False: "INVALID", "unknown": "UNKNOWN"}
_DOUBTS_PRINTED_MAX: Final = 3

Engine = Annotated[
    Literal["auto", "spark", "local"],
    typer.Option(
        help="local: in this process. spark: on Spark. auto: local, but spark for "
        "20 million messages and more on 4 cores, or with --master."
    ),
]
Master = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Spark master, as spark://host:port. Default: local cores."),
]
SparkConf = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="Setting of Spark. Repeatable.")
]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Checker of the history: a name of chaos list, also with a parameter "
        "(cas-register=0, list-append=strict-serializable), or package.module:NAME; default: the "
        "checker that the history names, or the only one that fits.",
    ),
]
Pairs = Annotated[
    Literal["keys", "values"] | None,
    typer.Option(
        help="Of another tool's history: whether [a b] is a key with its value, as "
        "jepsen.independent prints it, or a value. Default: by its structure."
    ),
]


def verify(
    history: Annotated[
        str, typer.Argument(metavar="HISTORY", help="A run's directory, or a history file.")
    ],
    model: Model = None,
    pairs: Pairs = None,
    engine: Engine = "auto",
    master: Master = None,
    spark_conf: SparkConf = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a report to this file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Check a history against Kafka's model: loss, duplicates, wrong order.

    Exit status 0: valid. 1: invalid. 2: unknown, never reported as valid.
    """
    from quorumlog.chaos.checking.spark import SparkUnavailable
    from quorumlog.chaos.history import HistoryError, HistorySource

    conf = check_engine(engine, master, spark_conf)
    _check_model(model)
    source = HistorySource(history, pairs=pairs)
    _check_path(source, engine, report)
    with bugs_are_no_verdict():
        try:
            if pairs is not None and (source.is_remote or not source.is_foreign):
                fail(f"{history}: --pairs applies to histories of other tools only", EXIT_USAGE)
            verdict = _judge(source, model=model, engine=engine, master=master, conf=conf)
            if report is not None:
                _write_report(source, verdict, report)
        except (HistoryError, OSError, SparkUnavailable) as error:
            if json:
                document(_unreadable(str(error), engine))
            fail(str(error), EXIT_UNKNOWN)
    if json:
        document(verdict.as_json())
    else:
        print_verdict(verdict)
    raise typer.Exit(EXIT_STATUS[verdict.valid])


def judge(
    directory: Path,
    *,
    engine: "EngineChoice",
    master: str | None,
    conf: Mapping[str, str] = MappingProxyType({}),
    doubt: str = "",
) -> "tuple[Verdict, Path]":
    """Check a run, and write the verdict and a report beside its history.

    `doubt`: why the run proves too little for "valid", if it does. Returns the verdict and the
    report's path. Raises HistoryError and SparkUnavailable: the history stays, for another check.
    """
    from quorumlog.chaos.history import HistorySource
    from quorumlog.chaos.run.run_directory import REPORT_FILE, keep_verdict

    source = HistorySource(directory)
    verdict = _judge(source, model=None, engine=engine, master=master, conf=conf)
    if doubt:
        verdict = verdict.doubted(doubt)
    keep_verdict(directory, verdict)
    path = directory / REPORT_FILE
    _write_report(source, verdict, path)
    return verdict, path


@contextmanager
def bugs_are_no_verdict() -> Iterator[None]:
    """End with the status of "unknown" if this program fails.

    Python's own status for an exception is 1, which means "invalid" here.
    """
    try:
        yield
    except typer.Exit:
        raise
    except Exception:  # noqa: BLE001 - the command's outermost frame
        traceback.print_exc()
        raise typer.Exit(EXIT_UNKNOWN) from None


def print_verdict(verdict: "Verdict") -> None:
    """Print a verdict for a person: each anomaly with its count and its first witness."""
    figures, records = verdict.figures, ""
    if "acknowledged" in figures:
        records = f"{figures['acknowledged']} records acknowledged, {figures['polled']} read, "
    data(
        f"{_WORDS[verdict.valid]}: {verdict.operations} operations, {records}"
        f"checked in {verdict.seconds:.1f} s ({verdict.engine})"
    )
    if verdict.fault_phase is not None:
        data(f"  {verdict.fault_phase.text}")
    for reason in verdict.unknown_because:
        data(f"  unknown: {reason}")
    for result in verdict.results:
        explained = f", {result.explained_part} follow from the above" * bool(result.explained)
        data(f"  {result.name}: {result.count} ({result.severity.name.lower()}{explained})")
        for witness in result.witnesses[:1]:
            about = ": ".join(part for part in (witness["key"], witness["note"]) if part)
            data(f"    e.g. {about}")
            for op in witness["ops"]:
                data(f"      {_operation(op)}")
            for response in witness.get("responses", ()):
                data(f"      {shown_response(response)}")
            for doubt in witness.get("library_doubts", ()):
                data(f"    the library may be at fault: {doubt}")
    for doubt in _other_doubts(verdict):
        data(f"  the library may be at fault: {doubt}")


def _other_doubts(verdict: "Verdict") -> list[str]:
    """Return the first doubts about the library that stand beside no printed witness."""
    shown = {
        doubt
        for result in verdict.results
        for witness in result.witnesses[:1]
        for doubt in witness.get("library_doubts", ())
    }
    others = [doubt for doubt in verdict.library_doubts if doubt not in shown]
    return others[:_DOUBTS_PRINTED_MAX]


def require_checkers() -> None:
    """End the command early if this machine cannot check histories."""
    from quorumlog.extras import why_no_checks

    if reason := why_no_checks():
        fail(reason, EXIT_UNKNOWN)


def check_engine(
    engine: "EngineChoice", master: str | None, spark_conf: list[str] | None = None
) -> dict[str, str]:
    """End the command early if the options of the check cannot work.

    Returns Spark's settings.
    """
    from quorumlog.chaos.checking.spark import SparkUnavailable
    from quorumlog.chaos.checking.spark.java import find_java
    from quorumlog.chaos.checking.spark.masters import check_master

    require_checkers()
    if engine == "local" and master is not None:
        fail("--master applies to Spark only: leave it out, or --engine local", EXIT_USAGE)
    conf = _parse_spark_conf(spark_conf or [], engine)
    if engine == "local" or (engine == "auto" and master is None):
        return conf
    if find_spec("pyspark") is None:
        from quorumlog.extras import install_command

        fail(f"--engine spark needs PySpark: {install_command('spark')}", EXIT_UNKNOWN)
    with (
        one_line_errors(SparkUnavailable, status=EXIT_UNKNOWN),
        one_line_errors(ValueError, status=EXIT_USAGE),
    ):
        find_java()
        if master is not None:
            check_master(master)
    return conf


def _check_model(model: str | None) -> None:
    from quorumlog.chaos.checkers.registry import find_checker

    if model is not None:
        with one_line_errors(ValueError, status=EXIT_USAGE):
            find_checker(model)


def _check_path(source: "HistorySource", engine: "EngineChoice", report: Path | None) -> None:
    if source.is_remote:
        if engine == "local":
            fail(
                f"{source.path}: only Spark reads this address: leave out --engine local",
                EXIT_USAGE,
            )
        if report is not None:
            fail(f"{source.path}: --report needs a history file on this machine", EXIT_USAGE)
    elif not source.local_path.exists():
        fail(f"{source.path}: no such file or directory", EXIT_USAGE)


def _parse_spark_conf(settings: list[str], engine: "EngineChoice") -> dict[str, str]:
    """Read `spark.NAME=VALUE` arguments; end with a usage error for anything else."""
    conf = parse_settings(settings, "--spark-conf")
    if conf and engine == "local":
        fail("--spark-conf applies to Spark only: leave it out, or --engine local", EXIT_USAGE)
    for name in conf:
        if not name.startswith("spark."):
            fail(f"--spark-conf {name}: a setting of Spark begins with spark.", EXIT_USAGE)
    return conf


def _judge(
    source: "HistorySource",
    *,
    model: str | None,
    engine: "EngineChoice",
    master: str | None,
    conf: Mapping[str, str],
) -> "Verdict":
    from quorumlog.chaos.verify import verify_history

    with _progress() as status:
        return verify_history(
            source, model=model, engine=engine, master=master, spark_conf=conf, progress=status
        )


def _write_report(source: "HistorySource", verdict: "Verdict", path: Path) -> None:
    from quorumlog.chaos.report import write_report

    write_report(source, verdict, path)


@contextmanager
def _progress() -> Iterator[Any]:
    """Yield a function that shows progress: a spinner on a terminal, else no output."""
    console = Console(stderr=True)
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with console.status("checking") as status:
        yield status.update


def _operation(op: dict[str, Any]) -> str:
    end_ns = op["completed_ns"]
    until = "never" if end_ns is None else f"{end_ns / 1e9:.3f} s"
    faults = f", during {', '.join(op['faults'])}" if op.get("faults") else ""
    offset = f" offset {op['offset']}" if "offset" in op else ""
    return (
        f"{op['role']}: {op['f']} {op['type']} value {op['value']}{offset} "
        f"by process {op['process']}, index {op['index']}, "
        f"{op['invoked_ns'] / 1e9:.3f} s to {until}{faults}"
    )


def _unreadable(reason: str, engine: str) -> dict[str, Any]:
    """Return the document for an unreadable history: its verdict is unknown."""
    return {
        "valid": "unknown",
        "operations": 0,
        "engine": engine,
        "seconds": 0.0,
        "anomalies": {},
        "unknown_because": [reason],
        "figures": {},
    }
