"""`quorumlog verify`: judge a history, on Spark or here."""

import json as json_module
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from quorumlog.cli.output import (
    EXIT_FAILED,
    EXIT_UNKNOWN,
    EXIT_USAGE,
    EXIT_VALID,
    data,
    document,
    fail,
)

if TYPE_CHECKING:
    from quorumlog.chaos.checkers import Valid, Verdict

EXIT_STATUS: Final[Mapping["Valid", int]] = {
    True: EXIT_VALID,
    False: EXIT_FAILED,
    "unknown": EXIT_UNKNOWN,
}
_ENGINES: Final = ("spark", "local")
_WORDS: Final[Mapping["Valid", str]] = {True: "VALID", False: "INVALID", "unknown": "UNKNOWN"}


def verify(
    history: Annotated[Path, typer.Argument(help="A run's directory, or a history file.")],
    engine: Annotated[str, typer.Option(help="Who checks: spark or local.")] = "spark",
    master: Annotated[str | None, typer.Option(help="A Spark master (local cores).")] = None,
    report: Annotated[Path | None, typer.Option(help="Write the report to this file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Check a history for loss, duplicates, order and linearizability.

    Exit status 0: valid. 1: invalid. 2: unknown, which is never printed as valid.
    """
    from quorumlog.chaos.history import HistoryError
    from quorumlog.chaos.spark.session import SparkUnavailable

    require_checkers()
    if not history.exists():
        fail(f"{history}: no such file or directory", EXIT_USAGE)
    with bugs_are_no_verdict():
        try:
            verdict = _judge(history, engine=engine, master=master)
            if report is not None:
                _write_report(history, verdict, report)
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
    directory: Path, *, engine: str, master: str | None, report: bool
) -> "tuple[Verdict, Path | None]":
    """Check a run, and leave the verdict (and the report, if asked for) beside its history.

    Returns the verdict and where the report is. Ends the command if there is no such engine. Raises
    HistoryError and SparkUnavailable: the history stays, and can be checked again.
    """
    from quorumlog.chaos.run import REPORT_FILE, VERDICT_FILE

    verdict = _judge(directory, engine=engine, master=master)
    text = json_module.dumps(verdict.as_json(), indent=2) + "\n"
    (directory / VERDICT_FILE).write_text(text, encoding="utf-8")
    if not report:
        return verdict, None
    path = directory / REPORT_FILE
    _write_report(directory, verdict, path)
    return verdict, path


@contextmanager
def bugs_are_no_verdict() -> Iterator[None]:
    """End with the status for "unknown" if we fail ourselves: Python's own would say "invalid"."""
    try:
        yield
    except typer.Exit:
        raise
    except Exception:  # noqa: BLE001 - the command's outermost frame
        traceback.print_exc()
        raise typer.Exit(EXIT_UNKNOWN) from None


def print_verdict(verdict: "Verdict") -> None:
    """Print a verdict for a person: what, how often, and the first witness of each anomaly."""
    figures = verdict.figures
    data(
        f"{_WORDS[verdict.valid]}: {verdict.operations} operations, "
        f"{figures.get('acknowledged', 0)} records acknowledged, {figures.get('polled', 0)} read, "
        f"checked in {verdict.seconds:.1f} s ({verdict.engine})"
    )
    for reason in verdict.unknown_because:
        data(f"  unknown: {reason}")
    for result in verdict.results:
        explained = f", {result.explained} of them follow from the above" * bool(result.explained)
        data(f"  {result.name}: {result.count} ({result.severity.name.lower()}{explained})")
        for witness in result.witnesses[:1]:
            data(f"    e.g. {witness['key']}: {witness['note']}")
            for op in witness["ops"]:
                data(f"      {_operation(op)}")


def require_checkers() -> None:
    """End the command, before it costs time, if histories cannot be checked here."""
    for name in ("numpy", "pyarrow"):
        if find_spec(name) is None:
            fail(f"histories and checks need {name}: pip install 'quorumlog[spark]'", EXIT_UNKNOWN)


def _judge(history: Path, *, engine: str, master: str | None) -> "Verdict":
    from quorumlog.chaos.verify import verify_history

    if engine not in _ENGINES:
        fail(f"--engine {engine}: there are {' and '.join(_ENGINES)}", EXIT_USAGE)
    with _progress() as status:
        return verify_history(
            history,
            engine="spark" if engine == "spark" else "local",
            master=master,
            progress=status,
        )


def _write_report(history: Path, verdict: "Verdict", path: Path) -> None:
    from quorumlog.chaos.report import write_report

    write_report(history, verdict, path)


@contextmanager
def _progress() -> Iterator[Any]:
    """Yield a function that says what is going on: a spinner on a terminal, else nothing."""
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
    return (
        f"{op['role']}: {op['f']} {op['type']} value {op['value']} offset {op['offset']} "
        f"by process {op['process']}, index {op['index']}, "
        f"{op['invoked_ns'] / 1e9:.3f} s to {until}{faults}"
    )


def _unreadable(reason: str, engine: str) -> dict[str, Any]:
    """Return the document for a history that cannot be read: unknown, like every non-answer."""
    return {
        "valid": "unknown",
        "operations": 0,
        "engine": engine,
        "seconds": 0.0,
        "anomalies": {},
        "unknown_because": [reason],
        "figures": {},
    }
