"""From a history on disk to a verdict, by either engine."""

import time
from collections.abc import Callable
from pathlib import Path

from quorumlog.chaos.checkers import Verdict, check_history
from quorumlog.chaos.engines import EngineChoice, choose_engine, machine_memory
from quorumlog.chaos.history import read_history


def verify_history(
    path: str | Path,
    *,
    engine: EngineChoice = "auto",
    master: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Verdict:
    """Check the history at `path`: a run's directory or a file.

    Both engines give the same verdict. "auto" takes this process for a history that fits into its
    memory, and Spark for a larger one or if a Spark `master` is named. Raises
    history.HistoryError, and spark.session.SparkUnavailable.
    """
    started = time.perf_counter()
    if engine == "auto":
        engine = choose_engine(path, master=master, memory_bytes=machine_memory())
    if engine == "spark":
        from quorumlog.chaos.spark.engine import check_on_spark

        verdict = check_on_spark(path, master=master, progress=progress)
    else:
        progress("checking")
        verdict = check_history(read_history(path))
    verdict.engine = engine
    verdict.seconds = time.perf_counter() - started
    return verdict
