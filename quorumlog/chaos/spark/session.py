"""A Spark session for one check: small, quiet, on this machine unless a master is named."""

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from quorumlog.chaos.spark.java import JavaNotFound, find_java, make_java_home

if TYPE_CHECKING:
    from py4j.clientserver import FinalizerWorker
    from pyspark.sql import SparkSession

_GIB: Final = 1 << 30
# No second compiler, no parallel collector: 40 % less CPU for 1e5 operations, 25 % for 1e6.
_SHORT_LIVED: Final = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
_QUIET: Final = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d %p %c: %m%n%ex
"""


class SparkUnavailable(Exception):
    """Spark cannot be started here, or did not finish; the message says why, and what to do."""


@contextmanager
def spark_session(master: str | None = None, *, is_short: bool = False) -> Iterator["SparkSession"]:
    """Yield the session that is active already (spark-submit, a notebook), or one of our own.

    `master` is any Spark master; all cores of this machine without one. `is_short`: the work takes
    seconds, and the JVM should not spend them on optimising itself. Our own session ends with the
    block. Raises SparkUnavailable.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkUnavailable("PySpark is missing: pip install 'quorumlog[spark]'") from error
    if active := SparkSession.getActiveSession():
        with _failures_told():
            yield active
        return
    workspace = Path(tempfile.mkdtemp(prefix="quorumlog-spark-"))
    try:
        session = _start(workspace, master or "local[*]", is_short=is_short)
        try:
            with _failures_told():
                yield session
        finally:
            _stop(session)
    finally:
        shutil.rmtree(workspace, ignore_errors=True)


@contextmanager
def _failures_told() -> Iterator[None]:
    """Turn a job that failed (a worker out of memory, a JVM that ended) into SparkUnavailable."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise SparkUnavailable(f"Spark did not finish: {str(error).strip()[-2000:]}") from error


def cores(session: "SparkSession") -> int:
    """Return how many tasks run at once."""
    return max(1, int(session.sparkContext.defaultParallelism))


def _start(workspace: Path, master: str, *, is_short: bool) -> "SparkSession":
    from py4j.clientserver import SHUTDOWN_FINALIZER_WORKER
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    log = workspace / "jvm.log"
    log.touch()
    (workspace / "log4j2.properties").write_text(_QUIET, encoding="utf-8")
    builder = SparkSession.builder.appName("quorumlog verify").master(master)
    for name, value in _settings(workspace, is_short=is_short).items():
        builder = builder.config(name, value)
    try:
        java_home = make_java_home(workspace / "java", find_java(), log)
        with _environment(JAVA_HOME=str(java_home), PYSPARK_PYTHON=sys.executable):
            session: SparkSession = builder.getOrCreate()
    except JavaNotFound as error:
        raise SparkUnavailable(str(error)) from error
    except (PySparkRuntimeError, OSError) as error:
        said = log.read_text(encoding="utf-8", errors="replace").strip()[-2000:]
        hint = "--engine local needs no Spark"
        raise SparkUnavailable(f"Spark did not start: {error}\n{said}\n({hint})") from error
    for worker in _finalizers():
        worker.deque.appendleft(SHUTDOWN_FINALIZER_WORKER)
    if not master.startswith("local"):
        # The executors run the same functions; numpy and pyarrow they must have themselves.
        package = Path(__file__).parents[2]
        archive = shutil.make_archive(
            str(workspace / "quorumlog"), "zip", package.parent, package.name
        )
        session.sparkContext.addPyFile(archive)
    return session


def _settings(workspace: Path, *, is_short: bool) -> dict[str, str]:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    options = [f"-Dlog4j2.configurationFile=file:{workspace}/log4j2.properties"]
    options += _SHORT_LIVED * is_short
    gigabytes = min(8, max(1, int(memory_bytes * 0.3 / _GIB)))
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",  # it would garble stdout
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": f"{gigabytes}g",
        "spark.driver.extraJavaOptions": " ".join(options),
        "spark.local.dir": str(workspace / "local"),
        "spark.sql.warehouse.dir": str(workspace / "warehouse"),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
    }


def _stop(session: "SparkSession") -> None:
    """Stop Spark and its JVM: the next session may want other settings, which a JVM keeps."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # noqa: SLF001 - PySpark has no public way to end its JVM
    session.stop()
    if gateway is None:
        return
    for worker in _finalizers():
        worker.join()
    gateway.shutdown()
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.stdin.close()  # the JVM ends with its standard input
        process.wait()
    SparkContext._gateway = None  # noqa: SLF001 - as above
    SparkContext._jvm = None  # noqa: SLF001 - as above


def _finalizers() -> "list[FinalizerWorker]":
    """Return the threads that tell our JVM of each Java object which Python has forgotten.

    If the JVM ends under one that waits for its answer, py4j may log a traceback to stderr. The JVM
    lives for one check and need not be told: they are ended when it has started.
    """
    from py4j.clientserver import FinalizerWorker
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # noqa: SLF001 - as in _stop
    client = getattr(gateway, "_gateway_client", None)
    queue = getattr(client, "finalizer_deque", None)  # not there with PYSPARK_PIN_THREAD=false
    return [
        thread
        for thread in threading.enumerate()
        if isinstance(thread, FinalizerWorker) and thread.deque is queue
    ]


@contextmanager
def _environment(**names: str) -> Iterator[None]:
    """Set variables of the environment while the JVM is started, which inherits them."""
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
