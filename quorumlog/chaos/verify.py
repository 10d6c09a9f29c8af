"""Judges a history on disk, by either engine."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from quorumlog.chaos.checkers import Verdict, check_history
from quorumlog.chaos.checkers.registry import CHECKERS, DEFAULT_MODEL
from quorumlog.chaos.engines import EngineChoice, choose_engine, machine_memory
from quorumlog.chaos.history import HistoryError, read_history, read_meta
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

    Both engines give the same verdict. "auto" takes this process for a history that fits into its
    memory, and Spark for a larger one, for a path with a scheme (hdfs://...), or if a Spark
    `master` is named, also by `spark_conf` (Spark's own settings). `model` names the checker;
    None: the one that `meta.json` beside the history names. Raises history.HistoryError,
    spark.session.SparkUnavailable, and ValueError for a `model` that there is not.
    """
    started = time.perf_counter()
    if engine == "auto":
        engine = choose_engine(
            path, master=master or spark_conf.get("spark.master"), memory_bytes=machine_memory()
        )
    model = model or _model_of(path)
    if engine == "spark":
        from quorumlog.chaos.spark.engine import check_on_spark

        verdict = check_on_spark(
            path, model=model, master=master, conf=spark_conf, progress=progress
        )
    else:
        progress("checking")
        verdict = check_history(read_history(local_path(path)), model)
    return replace(verdict, engine=engine, seconds=time.perf_counter() - started)


def _model_of(path: str | Path) -> str:
    if is_remote(path):
        return DEFAULT_MODEL
    model = read_meta(local_path(path)).get("model", DEFAULT_MODEL)
    if not isinstance(model, str) or model not in CHECKERS:
        raise HistoryError(f"{path}: its model is {model!r}; there are {', '.join(CHECKERS)}")
    return model
