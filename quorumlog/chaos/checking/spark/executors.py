"""Ends a job that gets no executors, with the reason: Spark itself would wait for ever."""

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from quorumlog.chaos.checking.spark import SparkUnavailable
from quorumlog.chaos.checking.spark.masters import is_one_process

if TYPE_CHECKING:
    from pyspark import SparkContext

TIMEOUT_KEY: Final = "spark.quorumlog.executorTimeout"  # seconds
TIMEOUT_S: Final = 60.0
_LOOK_INTERVAL_S: Final = 0.5


@contextmanager
def executors_expected(context: "SparkContext") -> Iterator[None]:
    """Run the jobs of the block; end them if none of their tasks starts for `TIMEOUT_KEY` seconds.

    Then it raises SparkUnavailable with the likely reason. A local master is its own executor, and
    has no watch.
    """
    if is_one_process(str(context.master)):
        yield
        return
    watch = _Watch(context, _timeout_s(context))
    context.setJobGroup(watch.group, "quorumlog: a check of a history", True)
    watch.thread.start()
    try:
        yield
    except BaseException:
        if watch.has_given_up:
            raise SparkUnavailable(_reason(context, watch.timeout_s)) from None
        raise
    finally:
        watch.ended.set()
        watch.thread.join()


def _timeout_s(context: "SparkContext") -> float:
    """Return the setting of the context's session, if it has a session, or else its own.

    PySpark keeps the session of a context that was stopped.
    """
    from pyspark.sql import SparkSession

    session = SparkSession._instantiatedSession  # noqa: SLF001 - the public way makes a session
    if session is not None and session.sparkContext is not context:
        session = None
    settings: Any = context.getConf() if session is None else session.conf
    return float(settings.get(TIMEOUT_KEY, str(TIMEOUT_S)) or TIMEOUT_S)


class _Watch:
    """Polls the stages that run, from a thread of its own."""

    def __init__(self, context: Any, timeout_s: float) -> None:
        self.group: Final = f"quorumlog-{uuid.uuid4()}"
        self.timeout_s: Final = timeout_s
        self.ended: Final = threading.Event()
        self.has_given_up = False
        self.thread: Final = threading.Thread(target=self._run, name="executors", daemon=True)
        self._context: Final = context

    def _run(self) -> None:
        idle_s = 0.0
        while not self.ended.wait(_LOOK_INTERVAL_S):
            idle_s = idle_s + _LOOK_INTERVAL_S if self._waits() else 0.0
            if idle_s >= self.timeout_s:
                self.has_given_up = True
                self._context.cancelJobGroup(self.group)
                return

    def _waits(self) -> bool:
        """Return whether stages of ours run without any started task."""
        tracker = self._context.statusTracker()
        jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(self.group)]
        running = [
            number for job in jobs if job and job.status == "RUNNING" for number in job.stageIds
        ]
        stages = [stage for number in running if (stage := tracker.getStageInfo(number))]
        active = set(tracker.getActiveStageIds())
        is_idle = not any(stage.numActiveTasks or stage.numCompletedTasks for stage in stages)
        return is_idle and bool(active.intersection(running))


def _reason(context: Any, timeout_s: float) -> str:
    host, port = (context.getConf().get(f"spark.driver.{name}", "?") for name in ("host", "port"))
    return (
        f"{context.master} gave no executor within {timeout_s:g} s: it has no worker with free "
        f"cores and memory, or its executors cannot reach this driver at {host}:{port} "
        "(--spark-conf spark.driver.host=... names another address)"
    )
