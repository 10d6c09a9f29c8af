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
from quorumlog.chaos.history import HistoryError, HistorySource


def verify_history(
    path: str | Path | HistorySource,
    *,
    model: str | None = None,
    engine: EngineChoice = "auto",
    master: str | None = None,
    spark_conf: Mapping[str, str] = MappingProxyType({}),
    progress: Callable[[str], None] = lambda _: None,
) -> Verdict:
    """Check the history at `path`: a run's directory or a file; a source can be used again.

    Both engines give the same verdict. "auto" selects Spark, if it is installed, for a history of
    many messages, for a path with a scheme (hdfs://...), or if a Spark `master` is named, also by
    `spark_conf` (Spark's own settings). `model` names the checker; None: the model named by the
    history or `meta.json` beside it, or for a file of another tool the only model that has its
    operations. Raises history.HistoryError, spark.session.SparkUnavailable, and ValueError for an
    unknown `model`.
    """
    started = time.perf_counter()
    source = path if isinstance(path, HistorySource) else HistorySource(path)
    if engine == "auto":
        engine = choose_engine(
            source, master=master or spark_conf.get("spark.master"), cores=os.cpu_count() or 1
        )
    model = model or _model_of(source)
    try:
        if engine == "spark":
            from quorumlog.chaos.spark.engine import check_on_spark

            verdict = check_on_spark(
                source, model=model, master=master, conf=spark_conf, progress=progress
            )
        else:
            verdict = _check_here(source, model, progress)
    except HistoryError as error:
        if str(error).startswith((str(source.path), str(source.local_path))):
            raise
        raise HistoryError(
            f"{source.path}: {error}"
        ) from error  # found by a check, not by a reader
    return replace(verdict, engine=engine, seconds=time.perf_counter() - started)


def _check_here(source: HistorySource, model: str, progress: Callable[[str], None]) -> Verdict:
    """Check in this process: the whole table, or in parts if it is large."""
    if not is_one_table(source.messages, machine_memory()):
        from quorumlog.chaos.parts.local import check_in_parts
        from quorumlog.chaos.parts.sources import find_row_groups

        if (groups := find_row_groups(source)) is not None:
            return check_in_parts(groups, find_checker(model), progress=progress)
    progress("checking")
    return check_history(source.table, model)


def _model_of(source: HistorySource) -> str:
    """Return the model named by the history, or meta.json beside it, or the only one that fits.

    Raises HistoryError.
    """
    if source.is_remote:
        return DEFAULT_MODEL
    model, path = source.meta.get("model"), source.local_path
    if model is None and source.is_foreign:
        try:
            return guess_model(source.table)
        except HistoryError as error:
            said = str(error)
            is_named = said.startswith(str(source.file))
            raise HistoryError(said if is_named else f"{source.file}: {said}") from error
    if model is None:
        model = source.named_model or DEFAULT_MODEL
    if not isinstance(model, str):
        raise HistoryError(f"{path}: its model is {model!r}; there are {', '.join(CHECKERS)}")
    try:
        find_checker(model)
    except ValueError as error:
        raise HistoryError(f"{path}: {error}") from error
    return model
