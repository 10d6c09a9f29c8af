"""A Spark session for one check: small, quiet, on this machine unless a master is named."""

import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from quorumlog.chaos.extras import install_command
from quorumlog.chaos.interruption import Interruption
from quorumlog.chaos.spark import SparkUnavailable, jvm
from quorumlog.chaos.spark.java import find_java, make_java_home
from quorumlog.chaos.spark.masters import check_master

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GIB: Final = 1 << 30
_TOLD_CHARS_MAX: Final = 500
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


@contextmanager
def spark_session(master: str | None = None, *, is_short: bool = False) -> Iterator["SparkSession"]:
    """Yield the session that is active already (spark-submit, a notebook), or one of our own.

    `master` is any Spark master; all cores of this machine without one. `is_short`: the work takes
    seconds, and the JVM should not spend them on optimising itself. Our own session and its JVM end
    with the block, also if a signal ends it (KeyboardInterrupt). Raises SparkUnavailable, and
    ValueError for a text that names no master.
    """
    if master is not None:
        check_master(master)
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkUnavailable(f"PySpark is missing: {install_command('spark')}") from error
    if active := SparkSession.getActiveSession():
        with _failures_told():
            yield active
        return
    workspace = Path(tempfile.mkdtemp(prefix="quorumlog-spark-"))
    try:
        with Interruption(), jvm.py4j_is_quiet():
            session = _start(workspace, master or "local[*]", is_short=is_short)
            with _failures_told():
                yield session
            jvm.stop(session, workspace)
    except BaseException:
        jvm.end_at_once(workspace)
        raise
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
        raise SparkUnavailable(f"Spark did not finish: {in_short(str(error))}") from error


def in_short(text: str) -> str:
    """Return what a JVM's error says without its stack: the first line, and the last cause."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines[1:] if line.startswith("Caused by:")]
    return " ".join([*lines[:1], *causes[-1:]])[:_TOLD_CHARS_MAX]


def cores(session: "SparkSession") -> int:
    """Return how many tasks run at once."""
    return max(1, int(session.sparkContext.defaultParallelism))


def _start(workspace: Path, master: str, *, is_short: bool) -> "SparkSession":
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    log = workspace / "jvm.log"
    log.touch()
    (workspace / "log4j2.properties").write_text(_QUIET, encoding="utf-8")
    builder = SparkSession.builder.appName("quorumlog verify").master(master)
    for name, value in _settings(workspace, is_short=is_short).items():
        builder = builder.config(name, value)
    try:
        java_home = make_java_home(
            workspace / "java", find_java(), log=log, pid_file=workspace / jvm.PID_FILE
        )
        with (
            _environment(JAVA_HOME=str(java_home), PYSPARK_PYTHON=sys.executable),
            _own_ctrl_c(),
        ):
            session: SparkSession = builder.getOrCreate()
    except (PySparkRuntimeError, Py4JError, OSError) as error:
        said = in_short(log.read_text(encoding="utf-8", errors="replace"))
        reason = " ".join(filter(None, [in_short(str(error)), said]))
        hint = "--engine local needs no Spark"
        raise SparkUnavailable(f"Spark did not start: {reason} ({hint})") from error
    jvm.silence_finalizers()
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


@contextmanager
def _own_ctrl_c() -> Iterator[None]:
    """Keep our handler of SIGINT: PySpark sets one that speaks to the JVM, in whatever moment."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


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
