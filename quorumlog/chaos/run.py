"""One chaos run: cluster, workload, nemesis, final reads, and the history saved before any check.

Phases: start, warm up, faults, heal, final reads; then the history is on disk and the run is over:
checking it (`chaos.verify`) is another step, which can be repeated.
"""

import asyncio
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Final

from quorumlog.chaos.back_ends import local_processes
from quorumlog.chaos.back_ends.local_processes import LocalProcesses
from quorumlog.chaos.drawn_schedule import draw_schedule
from quorumlog.chaos.drivers import Driver, load_driver
from quorumlog.chaos.faults.registry import process_fault
from quorumlog.chaos.history import NEMESIS, HistoryWriter, Message, write_meta
from quorumlog.chaos.history.files import JSON_LINES, META, PARQUET
from quorumlog.chaos.interruption import Interruption
from quorumlog.chaos.nemesis import Nemesis, check_schedule
from quorumlog.chaos.run_meta import meta_at_end, meta_at_start, topic_settings
from quorumlog.chaos.schedule import Schedule
from quorumlog.chaos.workloads import WORKLOADS, AppendRead, AppendReadSettings
from quorumlog.cluster import ClusterError, LocalCluster

WARM_UP_S: Final = 2.0
COOL_DOWN_S: Final = 1.0  # healed, and still producing: what was lost may come to light
FINAL_READS_TIMEOUT_S: Final = 60.0
BROKEN_READS_TIMEOUT_S: Final = 5.0  # when the cluster could not be made whole
SCHEDULE_FILE: Final = "schedule.json"
REPORT_FILE: Final = "report.html"
VERDICT_FILE: Final = "verdict.json"
CLUSTER_DIRECTORY: Final = "cluster"
_RUN_FILES: Final = {
    *(JSON_LINES, PARQUET, f"{PARQUET}.part", META),
    *(SCHEDULE_FILE, REPORT_FILE, VERDICT_FILE, CLUSTER_DIRECTORY),
}
_TICK_S: Final = 0.2

Progress = Callable[[str, float, str], None]
"""Called with (phase, fraction of it done 0..1, figures so far)."""


class RunError(Exception):
    """The run could not be carried out; the message says why. No verdict follows from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What to run, against what, and where to put what was seen."""

    out: Path
    workload: str = "append_read"
    faults: tuple[str, ...] = ("kill",)
    duration_s: float = 60.0
    seed: int = 0
    nodes: int = 3
    driver: str = "client"
    bootstrap: str | None = None  # somebody else's cluster: then there is no nemesis
    schedule: Schedule | None = None  # instead of drawing one from the seed
    config: Mapping[str, str] = field(default_factory=dict)
    node_module: str = "quorumlog.node"
    topic: str = "chaos"
    partitions: int = 3
    replication_factor: int = 3
    rate_per_s: float = 600.0
    command: tuple[str, ...] = ()  # as it was typed; kept beside the history

    def __post_init__(self) -> None:
        """Raise ValueError for what no run can have: before anything is started or removed."""
        if self.workload not in WORKLOADS:
            known = ", ".join(WORKLOADS)
            raise ValueError(f"no workload is called {self.workload!r}; there are {known}")
        if not 0 < self.rate_per_s < inf:
            raise ValueError(f"--rate {self.rate_per_s:g}: it must be above 0")
        if not 0 < self.duration_s < inf:
            raise ValueError(f"--duration {self.duration_s:g} s: it must be above 0")
        for name in self.faults:
            process_fault(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What happened, before anybody judges it."""

    sends_ok: int
    sends_info: int
    sends_fail: int
    records_read: int
    faults: int  # carried out
    not_met: tuple[str, ...]  # faults that were asked for, and never had their turn
    reads_complete: bool
    seconds: float
    topic_settings: Mapping[str, str]  # in force, as the cluster says


class HistoryRecorder:
    """The workload's and the nemesis's pen."""

    def __init__(self, writer: HistoryWriter) -> None:
        self._writer: Final = writer

    def invoke(self, process: int, f: str, messages: Sequence[tuple[str, int, int]] = ()) -> None:
        """Write an invocation."""
        self._writer.append(process, "invoke", f, [Message(*message) for message in messages])

    def complete(
        self,
        process: int,
        outcome: str,
        f: str,
        messages: Sequence[tuple[str, int, int]] = (),
        error: str = "",
    ) -> None:
        """Write the completion of the process's last invocation: ok, fail or info."""
        rows = [Message(*message) for message in messages]
        self._writer.append(process, outcome, f, rows, error=error)

    def nemesis(self, f: str, node: str, details: str) -> None:
        """Write what was done to the cluster."""
        self._writer.append(NEMESIS, "info", f, node=node, details=details)


def run(settings: RunSettings, progress: Progress) -> RunSummary:
    """Carry out one run; when it returns, the history is complete in `settings.out`.

    What an earlier run left there is removed, once the settings are known to make sense. Raises
    RunError, ClusterError (InvalidArgument), OSError, DriverUnavailable or ValueError, each with
    one line to act on; KeyboardInterrupt if a signal ended it, and then the history is what was
    seen until then, and no process is left.
    """
    driver = load_driver(settings.driver)
    if settings.bootstrap is not None:  # there, an earlier run may have left its topic
        settings = replace(settings, topic=f"{settings.topic}-{secrets.token_hex(4)}")
    schedule = _schedule(settings)
    _check_cluster(settings, schedule)
    make_way(settings.out)
    settings.out.mkdir(parents=True, exist_ok=True)
    (settings.out / SCHEDULE_FILE).write_text(schedule.to_json(), encoding="utf-8")
    with ExitStack() as stack:
        interruption = stack.enter_context(Interruption())
        cluster = None
        if settings.bootstrap is None:
            progress("start", 0.0, f"{settings.nodes} nodes")
            cluster = stack.enter_context(_cluster(settings))
            progress("start", 1.0, cluster.bootstrap)
        meta = meta_at_start(settings)
        writer = stack.enter_context(HistoryWriter(settings.out, meta=meta))
        drive = _Drive(
            settings,
            driver=driver,
            cluster=cluster,
            schedule=schedule,
            recorder=HistoryRecorder(writer),
            progress=progress,
        )
        try:
            summary = asyncio.run(drive.run(interruption))
            write_meta(settings.out, meta_at_end(meta, summary))
            return summary
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        except BaseExceptionGroup as group:  # of the lanes: the first one ended the others
            raise _first_of(group) from group


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first


def make_way(out: Path) -> None:
    """Remove what an earlier run left in `out`.

    Raises ValueError, and removes nothing, if something else is there, or if its nodes still run.
    """
    if not out.exists():
        return
    strangers = sorted({path.name for path in out.iterdir()} - _RUN_FILES)
    if strangers:
        raise ValueError(f"{out} holds {strangers[0]}, which is not a run's; choose another --out")
    with suppress(ClusterError):  # no cluster, or one so damaged that it cannot run
        cluster = LocalCluster.open(out / CLUSTER_DIRECTORY)
        if any(cluster.pid(node.id) is not None for node in cluster.nodes):
            raise ValueError(
                f"nodes of an earlier run still run: "
                f"quorumlog down --dir {out / CLUSTER_DIRECTORY}, then try again"
            )
    shutil.rmtree(out)


def _schedule(settings: RunSettings) -> Schedule:
    if settings.bootstrap is not None and (settings.faults or settings.schedule):
        raise ValueError(
            "a cluster given by --bootstrap cannot be killed or paused from here: use --fault none"
        )
    if settings.schedule is not None:
        return settings.schedule
    schedule = draw_schedule(
        settings.seed, faults=settings.faults, duration_ms=round(settings.duration_s * 1000)
    )
    if settings.faults and not schedule.actions:
        raise ValueError(
            f"{settings.duration_s:g} s has no room for a fault: use a longer --duration, "
            "or --fault none"
        )
    return schedule


def _check_cluster(settings: RunSettings, schedule: Schedule) -> None:
    """Raise InvalidArgument or ValueError for what cannot be, before an earlier run is removed."""
    if settings.bootstrap is None:
        cluster = LocalCluster(nodes=settings.nodes, config=settings.config)
        cluster.check()
        check_schedule(
            schedule,
            back_end=local_processes.NAME,
            operations=local_processes.OPERATIONS,
            node_ids=[node.id for node in cluster.nodes],
        )


def _cluster(settings: RunSettings) -> LocalCluster:
    directory = settings.out / CLUSTER_DIRECTORY
    return LocalCluster(
        directory, nodes=settings.nodes, config=settings.config, node_module=settings.node_module
    )


class _Drive:
    """The phases of one run, on one event loop."""

    def __init__(
        self,
        settings: RunSettings,
        *,
        driver: Driver,
        cluster: LocalCluster | None,
        schedule: Schedule,
        recorder: HistoryRecorder,
        progress: Progress,
    ) -> None:
        self._settings: Final = settings
        self._driver: Final = driver
        self._cluster: Final = cluster
        self._progress: Final = progress
        self._bootstrap: Final = settings.bootstrap or (cluster.bootstrap if cluster else "")
        workload_settings = AppendReadSettings(
            topic=settings.topic, partitions=settings.partitions, rate_per_s=settings.rate_per_s
        )
        self._workload: Final = AppendRead(
            driver, self._bootstrap, workload_settings, recorder, seed=settings.seed
        )
        self._producing, self._consuming = asyncio.Event(), asyncio.Event()
        self._nemesis = (
            None
            if cluster is None
            else Nemesis(
                LocalProcesses(cluster), schedule, topic=settings.topic, record=recorder.nemesis
            )
        )

    async def run(self, interruption: Interruption) -> RunSummary:
        """Go through the phases. Raises RunError if the topic cannot be made."""
        started_s, loop, task = time.monotonic(), asyncio.get_running_loop(), asyncio.current_task()
        if task is not None:
            interruption.cancel = partial(loop.call_soon_threadsafe, task.cancel)
        try:
            return await self._phases(started_s)
        finally:
            interruption.cancel = None

    async def _phases(self, started_s: float) -> RunSummary:
        await self._create_topic()
        settings_in_force = await topic_settings(self._bootstrap, self._settings.topic)
        self._producing.set()
        self._consuming.set()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(
                self._workload.run(producing=self._producing, consuming=self._consuming)
            )
            try:
                await self._lasting("warm up", WARM_UP_S)
                is_whole = await self._faults()
                await self._lasting("heal", COOL_DOWN_S)
            finally:
                self._producing.clear()
                self._consuming.clear()
        self._progress("final reads", 0.0, self._figures())
        complete = await self._workload.final_reads(
            FINAL_READS_TIMEOUT_S if is_whole else BROKEN_READS_TIMEOUT_S
        )
        if self._nemesis is not None:
            await self._nemesis.note_ended()  # since it was healed
        self._progress("final reads", 1.0, self._figures())
        workload, faults = self._workload, [] if self._nemesis is None else self._nemesis.done
        return RunSummary(
            sends_ok=workload.sends_ok,
            sends_info=workload.sends_info,
            sends_fail=workload.sends_fail,
            records_read=workload.records_read,
            faults=len(faults),
            not_met=tuple(
                name
                for name in (process_fault(given).name for given in self._settings.faults)
                if name not in faults
            ),
            reads_complete=complete,
            seconds=time.monotonic() - started_s,
            topic_settings=settings_in_force,
        )

    async def _create_topic(self) -> None:
        settings, replicas = self._settings, self._settings.replication_factor
        if self._cluster is not None:
            replicas = min(replicas, settings.nodes)
        try:
            await self._driver.create_topic(
                self._bootstrap,
                settings.topic,
                partitions=settings.partitions,
                replication_factor=replicas,
            )
        except ConnectionError as error:
            raise RunError(f"topic {settings.topic} cannot be created: {error}") from error

    async def _lasting(self, phase: str, seconds: float) -> None:
        """Let the workload go on for a while and show it."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        while (passed_s := loop.time() - started_s) < seconds:
            self._progress(phase, passed_s / seconds, self._figures())
            await asyncio.sleep(min(_TICK_S, seconds - passed_s))
        self._progress(phase, 1.0, self._figures())

    async def _faults(self) -> bool:
        """Perform the schedule, if we have a cluster; return whether it is whole again."""
        show = asyncio.create_task(self._lasting("faults", self._settings.duration_s))
        try:
            if self._nemesis is not None:
                await self._nemesis.run()
            await show
            self._progress("heal", 0.0, self._figures())
            return self._nemesis is None or await self._nemesis.heal()
        finally:
            show.cancel()

    def _figures(self) -> str:
        workload = self._workload
        return (
            f"{workload.sends_ok} acknowledged, {workload.sends_info} unknown, "
            f"{workload.records_read} read"
        )
