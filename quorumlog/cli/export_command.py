"""`quorumlog chaos export`: a history in Jepsen's formats."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from quorumlog.cli.output import EXIT_UNKNOWN, data, one_line_errors


def export(
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
