"""Spark's JVM: finds its process, and ends it after every check, also a failed one."""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from py4j.clientserver import FinalizerWorker
    from pyspark import SparkContext

PID_FILE: Final = "jvm.pid"  # the wrapper writes it before it becomes the JVM
END_TIMEOUT_S: Final = 20.0


def stop(context: "SparkContext", workspace: Path) -> None:
    """Stop a context that has finished, and its JVM: the next one may need other settings."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # noqa: SLF001 - PySpark has no public way to end its JVM
    context.stop()
    if gateway is None:
        return
    for worker in _finalizers():
        worker.join()
    gateway.shutdown()
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.stdin.close()  # the JVM ends with its standard input
        try:
            process.wait(END_TIMEOUT_S)
        except TimeoutExpired:
            _kill(workspace)
    _forget()


def end_at_once(workspace: Path) -> None:
    """Kill the JVM that was started from `workspace`; wait until it has ended.

    For a check that failed or was interrupted: such a context cannot be stopped, because that needs
    a response of its JVM, which may be waiting for us. The JVM writes no data that is needed
    afterwards.
    """
    from pyspark import SparkContext

    _kill(workspace)
    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - as in stop
    if process is not None:
        process.stdin.close()
        process.wait(END_TIMEOUT_S)
    _forget()


def _forget() -> None:
    """Let PySpark start a new JVM next time."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkSession._instantiatedSession = None  # noqa: SLF001 - there is no public way
    SparkSession._activeSession = None  # noqa: SLF001 - there is no public way
    SparkContext._active_spark_context = None  # noqa: SLF001 - there is no public way
    SparkContext._gateway = None  # noqa: SLF001 - there is no public way
    SparkContext._jvm = None  # noqa: SLF001 - there is no public way


def _kill(workspace: Path) -> None:
    try:
        pid = int((workspace / PID_FILE).read_text(encoding="ascii"))
    except (OSError, ValueError):  # it never started
        return
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextlib.contextmanager
def py4j_is_quiet() -> Iterator[None]:
    """Keep py4j from logging a traceback for each call that an ending JVM leaves unanswered.

    It logs them to the root logger. The following exception reports the cause.
    """
    root = logging.getLogger()
    root.addFilter(_is_not_py4j)
    try:
        yield
    finally:
        root.removeFilter(_is_not_py4j)


def _is_not_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in Path(record.pathname).parts


def silence_finalizers() -> None:
    """End the threads that report each garbage-collected Java object to the JVM.

    If the JVM ends while one waits for its response, py4j may log a traceback to stderr. The JVM
    lives for one check and does not need the reports.
    """
    from py4j.clientserver import SHUTDOWN_FINALIZER_WORKER

    for worker in _finalizers():
        worker.deque.appendleft(SHUTDOWN_FINALIZER_WORKER)


def silence_accumulators(context: "SparkContext") -> None:
    """Keep PySpark from writing a traceback to stderr if the JVM ends while it is connected.

    Over that connection the JVM sends the tasks' updates of accumulators. Our tasks have none.
    """
    server = context._accumulatorServer  # noqa: SLF001 - there is no public way
    server.handle_error = _say_nothing  # type: ignore[assignment, method-assign]


def _say_nothing(*_: object) -> None:
    """Ignore an error of a connection; it replaces the handler that prints the error."""


def _finalizers() -> "list[FinalizerWorker]":
    from py4j.clientserver import FinalizerWorker
    from pyspark import SparkContext

    gateway = SparkContext._gateway  # noqa: SLF001 - as in stop
    client = getattr(gateway, "_gateway_client", None)
    queue = getattr(client, "finalizer_deque", None)  # absent with PYSPARK_PIN_THREAD=false
    return [
        thread
        for thread in threading.enumerate()
        if isinstance(thread, FinalizerWorker) and thread.deque is queue
    ]
