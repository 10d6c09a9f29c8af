"""Checks a history on disk, by either engine."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from quorumlog.chaos.checkers import Verdict, check_history
from quorumlog.chaos.checkers.guess import guess_model
from quorumlog.chaos.checkers.registry import CHECKERS, DEFAULT_MODEL, find_checker
from quorumlog.chaos.engines import EngineChoice, choose_engine, is_one_table, machine_memory
from quorumlog.chaos.history import HistoryError, read_history, read_meta
from quorumlog.chaos.history.files import is_foreign, locate_history, named_model
from quorumlog.chaos.spark.paths import is_remote, local_path


def verify_history(
    path: str | Path,
    *,
    model: str | None = None,
    engine: EngineChoice = "auto",
    master: str | None = None,
    spark_conf: Mapping[str, str] = MappingProxyType({}),
    progress: Callable[[str], None] = lambda _: None,
) -> Verdict:
    """Check the history at `path`: a run's directory or a file.

    Both engines give the same verdict. "auto" selects Spark, if it is installed, for a history of
    many messages, for a path with a scheme (hdfs://...), or if a Spark `master` is named, also by
    `spark_conf` (Spark's own settings). `model` names the checker; None: the model named by the
    history or `meta.json` beside it, or for a file of another tool the only model that has its
    operations. Raises history.HistoryError, spark.session.SparkUnavailable, and ValueError for an
    unknown `model`.
    """
    started = time.perf_counter()
    if engine == "auto":
        engine = choose_engine(
            path, master=master or spark_conf.get("spark.master"), cores=os.cpu_count() or 1
        )
    model = model or _model_of(path)
    try:
        if engine == "spark":
            from quorumlog.chaos.spark.engine import check_on_spark

            verdict = check_on_spark(
                path, model=model, master=master, conf=spark_conf, progress=progress
            )
        else:
            verdict = _check_here(locate_history(local_path(path)), model, progress)
    except HistoryError as error:
        if str(error).startswith((str(path), str(local_path(path)))):
            raise
        raise HistoryError(f"{path}: {error}") from error  # found by a check, not by a reader
    return replace(verdict, engine=engine, seconds=time.perf_counter() - started)


def _check_here(file: Path, model: str, progress: Callable[[str], None]) -> Verdict:
    """Check in this process: the whole table, or in parts if it is large."""
    if not is_one_table(file, machine_memory()):
        from quorumlog.chaos.parts.local import check_in_parts
        from quorumlog.chaos.parts.sources import find_row_groups

        if (groups := find_row_groups(file)) is not None:
            return check_in_parts(groups, find_checker(model), progress=progress)
    progress("checking")
    return check_history(read_history(file), model)


def _model_of(path: str | Path) -> str:
    """Return the model named by the history, or meta.json beside it, or the only one that fits.

    Raises HistoryError.
    """
    if is_remote(path):
        return DEFAULT_MODEL
    path = local_path(path)
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
        raise HistoryError(f"{path}: unknown model {model!r}; choose from {', '.join(CHECKERS)}")
    try:
        find_checker(model)
    except ValueError as error:
        raise HistoryError(f"{path}: {error}") from error
    return model
