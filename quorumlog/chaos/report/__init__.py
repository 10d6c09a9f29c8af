"""One self-contained HTML file per run: verdict, witnesses, and plots with the faults in them.

No script, no font and no image is fetched: the file can be mailed, and opened in ten years. Its
size is bounded for every history: plots show aggregates and samples, with a note.
"""

from pathlib import Path

from quorumlog.chaos.checkers import Verdict
from quorumlog.chaos.history import HistoryError, HistorySource
from quorumlog.chaos.report.page import render
from quorumlog.chaos.report.series import run_series
from quorumlog.chaos.run.cluster_states import read_states
from quorumlog.chaos.run.node_metrics import read_metrics

__all__ = ["write_report"]


def write_report(history: str | Path | HistorySource, verdict: Verdict, target: str | Path) -> Path:
    """Write the report of the history (a run's directory or a file) to `target`; return it.

    Raises HistoryError if the history cannot be read.
    """
    target = Path(target)
    source = history if isinstance(history, HistorySource) else HistorySource(history)
    try:
        states = read_states(source.directory)
        metrics = read_metrics(source.directory)
    except ValueError as error:
        raise HistoryError(str(error)) from error
    page = render(
        verdict, run_series(source.table), source.meta, states, metrics, name=source.local_path.name
    )
    target.write_text(page, encoding="utf-8")
    return target
