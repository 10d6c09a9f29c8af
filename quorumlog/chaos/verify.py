"""Judges a history on disk, by either engine."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from quorumlog.chaos.checkers import Verdict, check_history
from quorumlog.chaos.checkers.registry import CHECKERS, DEFAULT_MODEL
from quorumlog.chaos.engines import EngineChoice, choose_engine, machine_memory
from quorumlog.chaos.history import HistoryError, read_history, read_meta


def verify_history(
    path: str | Path,
    *,
    model: str | None = None,
    engine: EngineChoice = "auto",
    master: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Verdict:
    """Check the history at `path`: a run's directory or a file.

    Both engines give the same verdict. "auto" takes this process for a history that fits into its
    memory, and Spark for a larger one or if a Spark `master` is named. `model` names the checker;
    None: the one that `meta.json` beside the history names. Raises history.HistoryError,
    spark.session.SparkUnavailable, and ValueError for a `model` that there is not.
    """
    started = time.perf_counter()
    if engine == "auto":
        engine = choose_engine(path, master=master, memory_bytes=machine_memory())
    model = model or _model_of(path)
    try:
        if engine == "spark":
            from quorumlog.chaos.spark.engine import check_on_spark

            verdict = check_on_spark(path, model=model, master=master, progress=progress)
        else:
            progress("checking")
            verdict = check_history(read_history(path), model)
    except HistoryError as error:
        if str(error).startswith(str(path)):
            raise
        raise HistoryError(f"{path}: {error}") from error  # found by a check, not by a reader
    return replace(verdict, engine=engine, seconds=time.perf_counter() - started)


def _model_of(path: str | Path) -> str:
    model = read_meta(path).get("model", DEFAULT_MODEL)
    if not isinstance(model, str) or model not in CHECKERS:
        raise HistoryError(f"{path}: its model is {model!r}; there are {', '.join(CHECKERS)}")
    return model
