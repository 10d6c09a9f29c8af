"""From a history on disk to a verdict, by either engine."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from quorumlog.chaos.checkers import Verdict, check_history
from quorumlog.chaos.history import read_history

Engine = Literal["spark", "local"]


def verify_history(
    path: str | Path,
    *,
    engine: Engine = "spark",
    master: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Verdict:
    """Check the history at `path`: a run's directory or a file.

    Both engines give the same verdict; `local` needs no Java and starts at once. `master` is a
    Spark master. Raises history.HistoryError, and spark.session.SparkUnavailable.
    """
    started = time.perf_counter()
    if engine == "spark":
        from quorumlog.chaos.spark.engine import check_on_spark

        verdict = check_on_spark(path, master=master, progress=progress)
    else:
        progress("checking")
        verdict = check_history(read_history(path))
    verdict.engine = engine
    verdict.seconds = time.perf_counter() - started
    return verdict
