"""One chaos run: cluster, workload, nemesis, final reads, and the history saved before any check.

Phases: start, warm up, faults, heal, final reads; then the nodes of a cluster of the run stop, and
their replicas are compared. Then the history is on disk and the run is over:
the check (`chaos.verify`) is another step, which can be repeated. Workloads, faults, drivers and
back ends are found by name: this module composes them and depends on none.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from quorumlog.chaos.back_ends.back_end import BackEnd, check_schedule
from quorumlog.chaos.back_ends.registry import open_back_end
from quorumlog.chaos.drawn_schedule import draw_schedule
from quorumlog.chaos.drivers.driver import Driver
from quorumlog.chaos.drivers.registry import check_capable, load_driver
from quorumlog.chaos.drivers.security import PLAINTEXT, of_client
from quorumlog.chaos.faults.fault import MILLION
from quorumlog.chaos.faults.registry import fault_and_role
from quorumlog.chaos.faults.rows import PHASE, PHASE_OVER, PhaseTerms, phase_details
from quorumlog.chaos.history import NEMESIS, HistoryWriter, write_meta
from quorumlog.chaos.mutants import mutant_of
from quorumlog.chaos.nemesis import Nemesis
from quorumlog.chaos.network.error_responses import RESPONSES_FILE
from quorumlog.chaos.pace import Extension, at_once
from quorumlog.chaos.run import cluster_states, node_metrics
from quorumlog.chaos.run.clusters import RunClusters, check_clusters, clusters_of
from quorumlog.chaos.run.extension import EXTENDS_TO, AcksInFaults
from quorumlog.chaos.run.figures import LoadMeter, figures, silent_after_ms
from quorumlog.chaos.run.interruption import Interruption
from quorumlog.chaos.run.mirror_process import MirrorLauncher
from quorumlog.chaos.run.run_directory import SCHEDULE_FILE, make_room
from quorumlog.chaos.run.run_settings import (
    Progress,
    RunSettings,
    RunSummary,
    meta_at_end,
    meta_at_start,
    topic_settings,
)
from quorumlog.chaos.run.stopped_replicas import in_all, stop_and_compare
from quorumlog.chaos.schedule import Action, Schedule
from quorumlog.chaos.workloads.registry import find_workload
from quorumlog.chaos.workloads.workload import Clients, Setup, Topic
from quorumlog.cluster.control_connections import operator_context

WARM_UP_S: Final = 2.0
COOL_DOWN_S: Final = 1.0  # healed, and still producing: losses may show up
FINAL_READS_TIMEOUT_S: Final = 60.0
BROKEN_READS_TIMEOUT_S: Final = 5.0  # when the cluster could not be made whole
_TICK_S: Final = 0.2


class RunError(Exception):
    """The run could not be carried out; the message has the reason. It has no verdict."""


def run(settings: RunSettings, progress: Progress) -> RunSummary:
    """Carry out one run; when it returns, the history is complete in `settings.out`.

    The files of an earlier run there are removed, once the settings are valid. Raises RunError,
    BackEndFailed, ClusterError (InvalidArgument), OSError, DriverUnavailable or ValueError, each
    with one line to act on. Raises KeyboardInterrupt if a signal ended it; then the history ends at
    that moment, and no process is left.
    """
    driver = load_driver(settings.driver, settings.security, settings.producer)
    check_capable(settings.driver, find_workload(settings.workload))
    if settings.bootstrap is not None:  # there, an earlier run may have left its topic
        settings = replace(settings, topic=f"{settings.topic}-{secrets.token_hex(4)}")
    _check_reach(settings)
    outside = None
    if settings.bootstrap is not None and settings.control is not None:
        protection = of_client(settings.security)
        outside = open_back_end(settings.control, settings.bootstrap, protection)
    schedule, more = _schedule(settings, _voters_or_brokers(settings, outside))
    if settings.bootstrap is None:
        check_clusters(settings, schedule)
    elif outside is not None:
        check_schedule(schedule, outside)
    make_room(settings.out)
    settings.out.mkdir(parents=True, exist_ok=True)
    (settings.out / SCHEDULE_FILE).write_text(schedule.to_json(), encoding="utf-8")
    with ExitStack() as stack:
        interruption = stack.enter_context(Interruption())
        clusters = stack.enter_context(clusters_of(settings, schedule, outside, progress))
        if (security := clusters.super_user) is not None:
            settings = replace(settings, security=security)
            driver = load_driver(settings.driver, settings.security, settings.producer)
        meta = meta_at_start(settings, schedule)
        history = stack.enter_context(HistoryWriter(settings.out, meta=meta))
        _record_responses(clusters, history)
        phases = _Phases(
            settings=settings,
            driver=driver,
            clusters=clusters,
            schedule=schedule,
            more=more,
            history=history,
            progress=progress,
        )
        try:
            summary = asyncio.run(phases.run(interruption))
            if clusters.own:
                progress("replicas", 0.0, summary.figures)
                compared = [stop_and_compare(one.cluster, history) for one in clusters.own]
                summary = replace(summary, replicas=in_all(compared))
            write_meta(settings.out, meta_at_end(history.meta, summary))
            return summary
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        except BaseExceptionGroup as group:  # of the lanes: the first one ended the others
            raise _first_of(group) from group


def _record_responses(clusters: RunClusters, history: HistoryWriter) -> None:
    """Record responses with errors beside the history, if the run has forwarders."""
    if clusters.own:
        started_ns = time.monotonic_ns() - history.elapsed_ns()
        clusters.own[0].record_responses(history.directory / RESPONSES_FILE, started_ns)


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first


def _check_reach(settings: RunSettings) -> None:
    """Raise ValueError for faults or a protection that the lab cannot bring to a cluster."""
    if find_workload(settings.workload).is_mirrored and settings.network != "proxy":
        raise ValueError(f"--network {settings.network}: two clusters need --network proxy")
    if settings.bootstrap is None:
        _check_own(settings)
    else:
        _check_outside(settings)


def _check_own(settings: RunSettings) -> None:
    """Raise ValueError for settings that the run's own clusters cannot have."""
    if settings.security != PLAINTEXT:
        raise ValueError("--command-config is for a cluster that runs already: --bootstrap")
    if settings.control is not None:
        raise ValueError("--control is for a cluster that runs already: give its --bootstrap")
    if settings.record_responses and settings.protection.get("tls"):
        raise ValueError(
            "--record-responses: forwarders cannot read responses under --tls; use --sasl alone"
        )


def _check_outside(settings: RunSettings) -> None:
    """Raise ValueError for settings that a cluster of `--bootstrap` cannot have."""
    if settings.control is None and (settings.faults or settings.schedule):
        raise ValueError(
            "the lab cannot kill or pause a cluster of --bootstrap: use --fault none, or give its"
            " back end by --control"
        )
    if settings.network != "proxy":
        raise ValueError(f"--network {settings.network}: a cluster of --bootstrap has its own")
    if any(settings.protection.values()):
        raise ValueError(
            "--tls, --sasl, --user, --users, --acls and --super-user protect a cluster that the run"
            " starts: leave them out, and give the login at --bootstrap by --command-config"
        )
    workload = find_workload(settings.workload)
    if workload.security is not None and settings.security == PLAINTEXT:
        raise ValueError(
            f"workload {workload.name} creates users and ACLs: give the login of a super user"
            " by --command-config"
        )
    if workload.is_mirrored and settings.security.sasl_token is not None:
        raise ValueError(
            f"workload {workload.name} passes its login to the processes of mirrors: OAUTHBEARER"
            " has no login that can be passed"
        )


def _voters_or_brokers(settings: RunSettings, outside: BackEnd | None) -> int:
    """Return the number of voters or brokers, whichever is smaller: a minority of it may fail."""
    if settings.bootstrap is None:
        return min(len(settings.shape.broker_ids), len(settings.shape.voter_ids))
    return 1 if outside is None else len(outside.node_ids)


def _schedule(settings: RunSettings, nodes: int) -> tuple[Schedule, Sequence[Action]]:
    """Return the schedule to carry out, with its workload, and actions that may extend it."""
    if settings.schedule is not None:
        given = replace(settings.schedule, workload=settings.workload, options=settings.all_options)
        return given, ()
    short, long = (
        draw_schedule(
            settings.seed,
            faults=settings.faults,
            duration_ms=round(times * settings.duration_s * 1000),
            overlap=settings.overlap,
            nodes=nodes,
            workload=settings.workload,
            options=settings.all_options,
        )
        for times in (1, EXTENDS_TO)
    )
    if settings.faults and not short.actions:
        raise ValueError(
            f"{settings.duration_s:g} s has no room for a fault: use a longer --duration, "
            "or --fault none"
        )
    return short, long.actions[len(short.actions) :]


def faults_asked_for(settings: RunSettings) -> list[str]:
    """Return the names of the faults that a run should carry out, from its schedule, if given."""
    if settings.schedule is not None:
        return [*dict.fromkeys(action.fault.name for action in settings.schedule.actions)]
    return [fault_and_role(name)[0].name for name in settings.faults]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Phases:
    """The phases of one run, on one event loop."""

    settings: RunSettings
    driver: Driver
    clusters: RunClusters
    schedule: Schedule
    more: Sequence[Action]  # that may extend the schedule
    history: HistoryWriter
    progress: Progress

    @property
    def back_end(self) -> BackEnd | None:
        """The back end that breaks the clusters; None: they cannot be broken."""
        return self.clusters.back_end

    @property
    def client(self) -> dict[str, Any]:
        """The arguments of quorumlog's clients for the cluster."""
        return {"bootstrap_servers": self.clusters.bootstrap, **of_client(self.settings.security)}

    async def run(self, interruption: Interruption) -> RunSummary:
        """Run the phases. Raises RunError if a topic cannot be made."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        if task is not None:
            interruption.cancel = partial(loop.call_soon_threadsafe, task.cancel)
        try:
            return await self._all_phases()
        finally:
            if self.back_end is not None:
                await self.back_end.restore()
            interruption.cancel = None

    async def _all_phases(self) -> RunSummary:
        started_s, settings = time.monotonic(), self.settings
        workload = find_workload(settings.workload)
        setup = Setup(
            driver=self.driver,
            bootstrap=self.clusters.bootstrap,
            topic=settings.topic,
            partitions=settings.partitions,
            replication_factor=settings.replication_factor,
            seed=settings.seed,
            options=workload.read_options(settings.options),
            history=self.history,
            security=settings.security,
            secured=partial(load_driver, settings.driver, producer=settings.producer),
            target=self.clusters.target,
            target_security=self.clusters.target_super_user or PLAINTEXT,
            start_mirror=MirrorLauncher(settings.out, mutant_of(settings.node_module)).start,
        )
        for topic in workload.topics(setup):
            await self._create(topic)
        settings_in_force = await topic_settings(self.client, settings.topic)
        in_faults = AcksInFaults(settings.required_in_faults)
        nemesis = self._nemesis(in_faults)
        clients = workload.clients(setup)
        async with self._watched([topic.name for topic in workload.topics(setup)]):
            meter = LoadMeter(setup.options.rate, time.monotonic())
            observe = partial(self._observe, meter, nemesis, in_faults)
            is_whole = await self._break_under_load(clients, nemesis, observe)
            observe()
            self.progress("final reads", 0.0, self._figures())
            complete = await clients.final_reads(
                FINAL_READS_TIMEOUT_S if is_whole else BROKEN_READS_TIMEOUT_S
            )
        if nemesis is not None:
            await nemesis.note_ended()  # nodes that ended after the healing
            self._keep_extended(nemesis)
        self.progress("final reads", 1.0, self._figures())
        done, messages = [] if nemesis is None else nemesis.done, self.history.messages
        return RunSummary(
            figures=figures(messages),
            sends_ok=messages["ok", "send"],
            faults=len(done),
            not_met=tuple(name for name in faults_asked_for(self.settings) if name not in done),
            reads_complete=complete,
            seconds=time.monotonic() - started_s,
            load=meter.load(),
            in_faults=(in_faults.count, in_faults.required) if self._is_extensible else None,
            topic_settings=settings_in_force,
        )

    @asynccontextmanager
    async def _watched(self, topics: Sequence[str]) -> AsyncIterator[None]:
        """Record the leaders of the topics, and the metrics of the run's own nodes, meanwhile."""
        watch = cluster_states.watch(
            self.client, topics, self.settings.out, self.history.elapsed_ns
        )
        async with asyncio.TaskGroup() as tasks:
            watching = [tasks.create_task(watch)]
            if self.clusters.own:
                listeners = {
                    node.id: (one.cluster.spec.control_address(node), tls)
                    for one in self.clusters.own
                    for tls in [operator_context(one.cluster.directory)]
                    for node in one.cluster.nodes
                }
                scrapes = node_metrics.watch(listeners, self.settings.out, self.history.elapsed_ns)
                watching.append(tasks.create_task(scrapes))
            yield
            for task in watching:
                task.cancel()

    async def _create(self, topic: Topic) -> None:
        replicas = topic.replication_factor
        if self.settings.bootstrap is None:
            replicas = min(replicas, self.settings.shape.broker_count)
        try:
            await self.driver.create_topic(
                self.clusters.bootstrap,
                topic.name,
                partitions=topic.partitions,
                replication_factor=replicas,
                config=topic.config,
            )
        except ConnectionError as error:
            raise RunError(f"topic {topic.name} cannot be created: {error}") from error

    @property
    def _is_extensible(self) -> bool:
        return self.schedule.paced and bool(self.schedule.actions)

    def _keep_extended(self, nemesis: Nemesis) -> None:
        """Write the schedule that was carried out, if it has become longer."""
        if not nemesis.extended:
            return
        actions = (*self.schedule.actions, *nemesis.extended)
        longer = replace(
            self.schedule, actions=actions, duration_us=max(one.end_us for one in actions)
        )
        (self.settings.out / SCHEDULE_FILE).write_text(longer.to_json(), encoding="utf-8")

    def _nemesis(self, in_faults: AcksInFaults) -> Nemesis | None:
        if self.back_end is None:
            return None

        def record(f: str, node: str, details: str) -> None:
            self.history.append(NEMESIS, "info", f, node=node, details=details)

        extension = Extension(
            actions=self.more,
            goes_on=lambda: in_faults.are_too_few,
            at_once=at_once(_voters_or_brokers(self.settings, self.back_end)),
            latest_us=round(EXTENDS_TO * self.settings.duration_s * MILLION),
        )
        return Nemesis(
            self.back_end,
            self.schedule,
            topic=self.settings.topic,
            record=record,
            extension=extension,
        )

    async def _break_under_load(
        self, clients: Clients, nemesis: Nemesis | None, observe: Callable[[], None]
    ) -> bool:
        """Run the clients during the faults; return whether the cluster is whole."""
        working = asyncio.Event()
        working.set()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(clients.work(working))
            measuring = tasks.create_task(self._measure(observe))
            try:
                await self._lasting("warm up", WARM_UP_S)
                is_whole = await self._faults(nemesis)
                await self._lasting("heal", COOL_DOWN_S)
            finally:
                working.clear()
                measuring.cancel()
        return is_whole

    async def _measure(self, observe: Callable[[], None]) -> None:
        """Observe the load at intervals, until cancelled."""
        while True:
            await asyncio.sleep(_TICK_S)
            observe()

    def _observe(self, meter: LoadMeter, nemesis: Nemesis | None, in_faults: AcksInFaults) -> None:
        acknowledged = self._acknowledged()
        meter.observe(time.monotonic(), acknowledged)
        is_breaking = nemesis is not None and nemesis.is_breaking
        in_faults.observe(acknowledged, is_breaking=is_breaking)

    def _acknowledged(self) -> int:
        """Return how many of the offered operations have succeeded."""
        messages, operations = self.history.messages, self.history.operations
        offers = find_workload(self.settings.workload).offers
        return sum(messages["ok", f] if f == "send" else operations["ok", f] for f in offers)

    async def _lasting(self, phase: str, seconds: float) -> None:
        """Let the workload run for a while, and report the progress."""
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        while (passed_s := loop.time() - started_s) < seconds:
            self.progress(phase, passed_s / seconds, self._figures())
            await asyncio.sleep(min(_TICK_S, seconds - passed_s))
        self.progress(phase, 1.0, self._figures())

    async def _faults(self, nemesis: Nemesis | None) -> bool:
        """Perform the schedule; return whether the cluster is whole again."""
        self._mark_phase(PHASE)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._lasting("faults", self.settings.duration_s))
            if nemesis is not None:
                tasks.create_task(nemesis.run())
        self._mark_phase(PHASE_OVER)
        self.progress("heal", 0.0, self._figures())
        return nemesis is None or await nemesis.heal()

    def _mark_phase(self, row: str) -> None:
        """Write the row at the begin or the end of the faults, if there are any."""
        settings, back_end = self.settings, self.back_end
        if back_end is None or not self.schedule.actions:
            return
        voters = brokers = tuple(back_end.node_ids)
        if settings.bootstrap is None:
            voters, brokers = settings.shape.voter_ids, settings.shape.broker_ids
        terms = PhaseTerms(
            acks=tuple(sorted(find_workload(settings.workload).offers)),
            voters=voters,
            brokers=brokers,
            gap_ms=silent_after_ms(settings.rate),
        )
        nodes = ",".join(map(str, back_end.node_ids))
        details = phase_details(terms) if row == PHASE else ""
        self.history.append(NEMESIS, "info", row, node=nodes, details=details)

    def _figures(self) -> str:
        return figures(self.history.messages)
