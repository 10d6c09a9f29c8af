"""Judges a history on disk, by either engine."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from quorumlog.chaos.checkers import Verdict, check_history
from quorumlog.chaos.checkers.guess import guess_model
from quorumlog.chaos.checkers.registry import CHECKERS, DEFAULT_MODEL, find_checker
from quorumlog.chaos.engines import EngineChoice, choose_engine, machine_memory
from quorumlog.chaos.history import HistoryError, read_history, read_meta
from quorumlog.chaos.history.files import is_foreign, locate_history, named_model


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
    None: the one that the history or `meta.json` beside it names, or for a file of another tool the
    only one that has its operations. Raises history.HistoryError, spark.session.SparkUnavailable,
    and ValueError for a `model` that there is not.
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
    """Return the model that the history, or meta.json beside it, names; or the only one that fits.

    Raises HistoryError.
    """
    model = read_meta(path).get("model")
    if model is None:
        file = locate_history(path)
        if is_foreign(file):
            try:
                return guess_model(read_history(file))
            except HistoryError as error:
                said = str(error)
                raise HistoryError(
                    said if said.startswith(str(file)) else f"{file}: {said}"
                ) from error
        model = named_model(file) or DEFAULT_MODEL
    if not isinstance(model, str):
        raise HistoryError(f"{path}: its model is {model!r}; there are {', '.join(CHECKERS)}")
    try:
        find_checker(model)
    except ValueError as error:
        raise HistoryError(f"{path}: {error}") from error
    return model
