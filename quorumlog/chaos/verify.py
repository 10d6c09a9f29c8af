"""Checks a history on disk: in this process, whole or in parts, or on Spark.

All ways call the same functions, so the choice changes the time and never the verdict. Spark costs
a JVM and seconds before it begins; then it uses all cores
(docs/decisions/0054-checker-engines.md).
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from quorumlog.chaos.checkers import Verdict
from quorumlog.chaos.checkers.registry import CHECKERS, DEFAULT_MODEL, find_checker, guess_model
from quorumlog.chaos.checking.library_doubts import with_responses
from quorumlog.chaos.checking.local import check_here
from quorumlog.chaos.checking.spark.context import is_given
from quorumlog.chaos.history import HistoryError, HistorySource
from quorumlog.chaos.network.error_responses import ErrorResponse, read_responses

Engine = Literal["spark", "local"]
EngineChoice = Literal["auto", "spark", "local"]

MESSAGES_FOR_SPARK: Final = 20_000_000  # below, its cores save less than the start of a JVM costs
CORES_FOR_SPARK: Final = 4  # it needs twice the CPU time: on two cores it is not faster


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
    operations. Raises history.HistoryError, spark.SparkUnavailable, and ValueError for an
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
            from quorumlog.chaos.checking.spark.engine import check_on_spark

            verdict = check_on_spark(
                source, model=model, master=master, conf=spark_conf, progress=progress
            )
        else:
            verdict = check_here(source, model, progress=progress)
    except HistoryError as error:
        if str(error).startswith((str(source.path), str(source.local_path))):
            raise
        raise HistoryError(
            f"{source.path}: {error}"
        ) from error  # found by a check, not by a reader
    if responses := _responses_of(source):
        verdict = with_responses(verdict, source.table, responses)
    return replace(verdict, engine=engine, seconds=time.perf_counter() - started)


def _responses_of(source: HistorySource) -> list[ErrorResponse]:
    """Return the responses beside a history. Raises HistoryError if they cannot be read."""
    if source.is_remote:
        return []
    try:
        return read_responses(source.directory)
    except (OSError, ValueError) as error:
        raise HistoryError(f"{source.directory}: {error}") from error


def choose_engine(source: HistorySource, *, master: str | None, cores: int) -> Engine:
    """Return the engine for a history on a machine with so many cores.

    Spark for a history of many messages, if Spark is installed and there are enough cores. A named
    Spark master, an active Spark session, or a path that only Spark can read also selects Spark.
    This process reads JSON lines in any case. Raises HistoryError if there is no history, or its
    Parquet file cannot be read.
    """
    if master is not None or is_given() or source.is_remote:
        return "spark"
    worth_it = source.messages >= MESSAGES_FOR_SPARK and cores >= CORES_FOR_SPARK
    return "spark" if worth_it and find_spec("pyspark") is not None else "local"


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
        raise HistoryError(f"{path}: unknown model {model!r}; choose from {', '.join(CHECKERS)}")
    try:
        find_checker(model)
    except ValueError as error:
        raise HistoryError(f"{path}: {error}") from error
    return model
