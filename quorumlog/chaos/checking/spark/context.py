"""A Spark context for one check: small, quiet, on this machine unless a master is named.

A SparkSession is left out. Its constructor costs the JVM as much CPU time as the context does (5 s
each), and the jobs of a check are RDDs, which need none.
"""

import atexit
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from quorumlog.chaos.checking.spark import SparkUnavailable, jvm
from quorumlog.chaos.checking.spark.java import find_java, make_java_home
from quorumlog.chaos.checking.spark.masters import (
    check_master,
    driver_host,
    is_here,
    is_one_process,
)
from quorumlog.chaos.run.interruption import Interruption
from quorumlog.extras import install_command

if TYPE_CHECKING:
    from pyspark import SparkContext

MASTER_KEY: Final = "spark.master"
_GIB: Final = 1 << 30
_TOLD_CHARS_MAX: Final = 500
_PYTHON_STACK: Final = "Traceback (most recent call last):\n"
# No second compiler, no parallel collector: 40 % less CPU for 1e5 operations, 25 % for 1e6. No full
# collection whenever the classes have outgrown a first 21 MB: a start takes 7.8 s instead of 9.1 s.
_SHORT_LIVED: Final = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:MetaspaceSize=128m"]
_DAEMON: Final = "quorumlog.chaos.checking.spark.daemon"
_QUIET: Final = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d %p %c: %m%n%ex
"""


@contextmanager
def spark_context(
    master: str | None = None,
    *,
    conf: Mapping[str, str] = MappingProxyType({}),
    is_short: bool = False,
) -> Iterator["SparkContext"]:
    """Yield the existing context (spark-submit, a notebook), or our own.

    `master` is any Spark master; without one, that of `conf`, and else all cores of this machine.
    `conf`: Spark's own settings, which win over ours. An existing context keeps its master and its
    settings, and stays when the block ends; SQL settings in `conf` apply to its session, too.
    `is_short`: the work takes seconds, and the JVM should not spend them on optimising itself. Our
    own context and its JVM end with the block, also if a signal ends it (KeyboardInterrupt). Raises
    SparkUnavailable, and ValueError for a text that names no master.
    """
    if named := master or conf.get(MASTER_KEY):
        check_master(named)
    try:
        import pyspark  # noqa: F401 - whether it is there
    except ImportError as error:
        raise SparkUnavailable(f"PySpark is missing: {install_command('spark')}") from error
    if is_given():
        with _failures_told():
            yield _given(named, conf)
        return
    workspace = Path(tempfile.mkdtemp(prefix="quorumlog-spark-"))
    try:
        with Interruption(), jvm.py4j_is_quiet(), _ended_at_once(workspace):
            context = _start(workspace, named or "local[*]", conf, is_short=is_short)
            with _failures_told():
                yield context
            jvm.stop(context, workspace)
    finally:
        shutil.rmtree(workspace, ignore_errors=True)


def is_given() -> bool:
    """Return whether spark-submit or a notebook provides a Spark. Starts and imports nothing."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started this process
        return True
    if "pyspark.sql" not in sys.modules:
        return False
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None  # noqa: SLF001 - no public look at it


def _given(master: str | None, conf: Mapping[str, str]) -> "SparkContext":
    """Return the existing context; under spark-submit, make it from the submitted settings."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is None:  # noqa: SLF001 - as in is_given
        context = _context_of({**conf, **({} if master is None else {MASTER_KEY: master})})
    else:
        context = SparkContext.getOrCreate()
        if conf:
            SparkSession.builder.config(map=dict(conf)).getOrCreate()
    runs_on = context.master
    if master is not None and master != runs_on:
        raise SparkUnavailable(f"a Spark context is active on {runs_on}: leave {master} out")
    _ship_package(context, _directory_until_exit(context.applicationId))
    return context


def _context_of(settings: Mapping[str, str]) -> "SparkContext":
    """Make a context, whose errors PySpark raises as it does with a session."""
    from pyspark import SparkConf, SparkContext
    from pyspark.errors.exceptions.captured import install_exception_handler

    context = SparkContext(conf=SparkConf().setAll([*settings.items()]))
    install_exception_handler()
    return context


@contextmanager
def _ended_at_once(workspace: Path) -> Iterator[None]:
    """End the JVM of a block that fails; py4j must be quiet until then."""
    try:
        yield
    except BaseException:
        jvm.end_at_once(workspace)
        raise


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
    """Return a JVM's error without its stack: the first line, and the last cause.

    Lines before the exception that ended a JVM (a download, warnings) are left out. The cause of an
    error in Python is the line after its stack, which Spark indents if the workers' parent fails.
    """
    before, _, stack = text.partition(_PYTHON_STACK)
    margin = before[len(before.rstrip(" ")) :]
    told = [line.removeprefix(margin) for line in stack.splitlines()]
    raised = next((line for line in told if line and not line[0].isspace()), None)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = [place for place, line in enumerate(lines) if line.startswith("Exception in thread")]
    lines = lines[last[0] if last else 0 :]
    causes = [line for line in lines[1:] if line.startswith("Caused by:")]
    causes += [raised] if raised is not None else []
    return " ".join([*lines[:1], *causes[-1:]])[:_TOLD_CHARS_MAX]


def cores(context: "SparkContext") -> int:
    """Return how many tasks run at once."""
    return max(1, int(context.defaultParallelism))


def _start(
    workspace: Path, master: str, conf: Mapping[str, str], *, is_short: bool
) -> "SparkContext":
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkRuntimeError

    log = workspace / "jvm.log"
    log.touch()
    (workspace / "log4j2.properties").write_text(_QUIET, encoding="utf-8")
    settings = {**_settings(workspace, master, is_short=is_short), **conf, MASTER_KEY: master}
    try:
        java_home = make_java_home(
            workspace / "java", find_java(), log=log, pid_file=workspace / jvm.PID_FILE
        )
        with _environment(JAVA_HOME=str(java_home), **_python_of(master, conf)), _own_ctrl_c():
            context = _context_of(settings)
    except (PySparkRuntimeError, Py4JError, OSError) as error:
        said = in_short(log.read_text(encoding="utf-8", errors="replace"))
        reason = " ".join(filter(None, [in_short(str(error)), said]))
        hint = "--engine local needs no Spark"
        raise SparkUnavailable(f"Spark did not start: {reason} ({hint})") from error
    jvm.silence_finalizers()
    jvm.silence_accumulators(context)
    _ship_package(context, workspace)
    return context


def _python_of(master: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Return the variable that names the executors' Python: on this machine, ours.

    On other machines `spark.pyspark.python` names it, or PYSPARK_PYTHON, or else it is python3.
    """
    if named := conf.get("spark.pyspark.python"):
        return {"PYSPARK_PYTHON": named}
    return {"PYSPARK_PYTHON": sys.executable} if is_here(master) else {}


def _ship_package(context: "SparkContext", directory: Path) -> None:
    """Ship this package to executors in other processes. They must have numpy and pyarrow."""
    package = Path(__file__).parents[3]
    if is_one_process(str(context.master)) or not package.is_dir():  # it came by --py-files
        return
    archive = directory / f"{package.name}.zip"
    if not archive.exists():
        made = shutil.make_archive(
            str(archive.with_suffix("")), "zip", package.parent, package.name
        )
        context.addPyFile(made)


@cache
def _directory_until_exit(application_id: str) -> Path:
    """Return a directory for files that another owner's context serves to its executors."""
    directory = Path(tempfile.mkdtemp(prefix=f"quorumlog-{application_id}-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _settings(workspace: Path, master: str, *, is_short: bool) -> dict[str, str]:
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    options = [f"-Dlog4j2.configurationFile=file:{workspace}/log4j2.properties"]
    options += _SHORT_LIVED * is_short
    gigabytes = min(3, max(1, int(memory_bytes * 0.2 / _GIB)))  # it moves blocks, one by one
    host = driver_host(master)
    return {
        "spark.app.name": "quorumlog verify",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",  # it would garble stdout
        **({} if host is None else {"spark.driver.host": host}),
        **({"spark.python.daemon.module": _DAEMON} if is_one_process(master) else {}),
        "spark.driver.memory": f"{gigabytes}g",
        "spark.driver.extraJavaOptions": " ".join(options),
        "spark.shuffle.compress": "false",  # the blocks are compressed already
        "spark.local.dir": str(workspace / "local"),
        "spark.sql.warehouse.dir": str(workspace / "warehouse"),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
    }


@contextmanager
def _own_ctrl_c() -> Iterator[None]:
    """Keep our handler of SIGINT: PySpark sets one that calls the JVM, at any moment."""
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
