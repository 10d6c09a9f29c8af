"""Runs the scenarios on a cluster: topics, the order of the runs, kills and starts.

The load runs in a process of its own (`worker`). Only scenario 5 touches the nodes, so it needs a
cluster that this process has started.
"""

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

from quorumlog.bench.claims import KillRun, Results
from quorumlog.bench.load import Driver, LatencyLoad, Mode, ProduceLoad
from quorumlog.bench.produce import Client
from quorumlog.bench.scenarios import (
    BROKERS,
    KILL_CASES,
    KILLS,
    LATENCY,
    ONE_BY_ONE_SHARE,
    RUNS,
    THROUGHPUTS,
    Cell,
    KillCase,
    Planned,
    cells_of,
    runs_of,
)
from quorumlog.bench.worker import LoadFailed, Worker
from quorumlog.client import Admin, KafkaError, NewTopic
from quorumlog.cluster import ClusterError, LocalCluster

_T = TypeVar("_T")

PARTITIONS: Final = 12
MIN_ISR: Final = 2
DOWN_S: Final = 10.0
"""From the kill of three brokers to their start."""
WARM_UP_S: Final = 0.5
FIRST_WARM_UP_S: Final = 2.0
LATENCY_RATE_PER_S: Final = 200.0
_LATENCY_SHARE: Final = 5
_KILL_SHARE: Final = 4  # a quarter of the messages is acknowledged before the kill
_LINGER_MS: Final = 5.0
_SETTLED_WITHIN_S: Final = 60.0
_ONE_BY_ONE_MIN: Final = 50


class BenchFailed(Exception):
    """The scenarios cannot be run; the message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The scenarios to run. messages: of a run in the mode `pipelined`. down_s: see DOWN_S."""

    only: Collection[int]
    messages: int
    modes: Sequence[Mode]
    driver: Driver = "client"
    seed: int = 0
    runs: int = RUNS
    down_s: float = DOWN_S

    @property
    def throughputs(self) -> list[Planned]:
        """The runs of scenarios 1 to 4. The seed draws their order: drift is no effect then."""
        runs = runs_of(self.only, self.modes, self.runs)
        random.Random(f"runs of {self.seed}").shuffle(runs)  # noqa: S311 - reproducible
        return runs

    @property
    def kills(self) -> list[KillCase]:
        """The runs of scenario 5, in their order."""
        cases = (
            [case for case in KILL_CASES for _ in range(self.runs)] if KILLS in self.only else []
        )
        random.Random(f"kills of {self.seed}").shuffle(cases)  # noqa: S311 - reproducible
        return cases

    @property
    def steps(self) -> int:
        """The number of runs that the progress counts."""
        return len(self.throughputs) + len(self.kills) + (LATENCY in self.only)


@dataclass(slots=True, kw_only=True)
class Run:
    """The results, and the reasons why scenarios or cells were left out."""

    plan: Plan
    results: Results = field(default_factory=Results)
    left_out: dict[str, str] = field(default_factory=dict)
    brokers: int = BROKERS
    is_own: bool = True
    seconds: float = 0.0
    load_average: Sequence[float] = ()


Done = Callable[[int, str], object]
"""Receives the number of finished steps, and the next step in words."""


def run_scenarios(plan: Plan, client: Client | None, done: Done) -> Run:
    """Run the plan on the cluster of `client`; None: on four brokers and a controller of its own.

    Raises BenchFailed.
    """
    run = Run(plan=plan, is_own=client is None)
    began_s, before = time.monotonic(), os.getloadavg()[0]
    try:
        if client is not None:
            _measure(run, client, None, done)
        else:
            done(0, "the start of the cluster")
            # Votes are apart from the brokers, as in 2017: three dead brokers leave a controller.
            with LocalCluster(controllers=1, brokers=BROKERS) as cluster:
                _measure(run, cluster.own_client(), cluster, done)
    except (KafkaError, ClusterError, LoadFailed, OSError) as error:
        raise BenchFailed(str(error)) from error
    run.seconds = time.monotonic() - began_s
    run.load_average = (before, os.getloadavg()[0])
    return run


def _measure(run: Run, client: Client, cluster: LocalCluster | None, done: Done) -> None:
    with Worker(client, run.plan.driver) as worker:
        measuring = _Measuring(run, client, cluster, worker, done)
        measuring.throughputs()
        if KILLS in run.plan.only:
            measuring.kills()
        if LATENCY in run.plan.only:
            measuring.latency()


class _Measuring:
    """The scenarios on one cluster, one run after the other."""

    def __init__(
        self, run: Run, client: Client, cluster: LocalCluster | None, worker: Worker, done: Done
    ) -> None:
        self._run: Final = run
        self._plan: Final = run.plan
        self._client: Final = client
        self._cluster: Final = cluster
        self._worker: Final = worker
        self._done: Final = done
        self._step = 0
        self._prefix: Final = f"bench-{os.urandom(4).hex()}"
        self._topics = 0
        run.brokers = len(self._by_admin(lambda admin: admin.describe_cluster()).nodes)

    def throughputs(self) -> None:
        """Scenarios 1 to 4."""
        warm_up_s = FIRST_WARM_UP_S
        for planned in self._plan.throughputs:
            cell = planned.cell
            self._begin(f"{cell.name}, {planned.mode}")
            if cell.replicas > self._run.brokers:
                self._leave_out(f"cells with {cell.replicas} replicas", cell.replicas)
                continue
            one_by_one = planned.mode == "one-by-one"
            few = max(self._plan.messages // ONE_BY_ONE_SHARE, _ONE_BY_ONE_MIN)
            with self._topic(cell.partitions, cell.replicas, cell.min_isr) as topic:
                load = ProduceLoad(
                    topic=topic,
                    messages=few if one_by_one else self._plan.messages,
                    acks=cell.acks,
                    mode=planned.mode,
                    linger_ms=0 if one_by_one else _LINGER_MS,
                    warm_up_s=warm_up_s,
                    counts_stored=True,
                )
                produced = self._worker.produce(load)
            warm_up_s = WARM_UP_S
            found = self._run.results.throughput.setdefault((cell, planned.mode), [])
            found.append(produced)

    def kills(self) -> None:
        """Scenario 5."""
        if self._cluster is None:
            self._run.left_out["scenario 5"] = (
                "it kills brokers, so it needs a cluster of its own: leave out --bootstrap"
            )
            return
        chance = random.Random(f"victims of {self._plan.seed}")  # noqa: S311 - reproducible
        for case in self._plan.kills:
            self._begin(f"scenario {case.name}")
            self._run.results.kills.append(self._kill(self._cluster, case, chance))

    def _kill(self, cluster: LocalCluster, case: KillCase, chance: random.Random) -> KillRun:
        brokers = [node.id for node in cluster.spec.nodes if node.is_broker]
        nemesis = _Nemesis(
            cluster,
            sorted(chance.sample(brokers, case.kills)),
            kill_at=self._plan.messages // _KILL_SHARE,
            down_s=self._plan.down_s if case.starts_again else None,
        )
        with self._topic(PARTITIONS, BROKERS, MIN_ISR) as topic:
            load = ProduceLoad(
                topic=topic,
                messages=self._plan.messages,
                retries=case.retries,
                idempotent=case.idempotent,
                linger_ms=_LINGER_MS,
                warm_up_s=WARM_UP_S,
                keeps_outcomes=True,
                hold_at=self._plan.messages // 2,
            )
            produced = self._worker.produce(load, nemesis.act)
            nemesis.restore()
            kept = self._worker.read_back(topic)
        started_s = nemesis.started_s
        return KillRun(
            case=case,
            produced=produced,
            kept=kept,
            killed_s=nemesis.killed_s - produced.began_s,
            started_s=None if started_s is None else started_s - produced.began_s,
            killed=nemesis.victims,
        )

    def latency(self) -> None:
        """Scenario 6."""
        self._begin("scenario 6")
        if self._run.brokers < BROKERS:
            self._leave_out("scenario 6", BROKERS)
            return
        with self._topic(PARTITIONS, BROKERS, MIN_ISR) as topic:
            self._run.results.latency = self._worker.latency(
                LatencyLoad(
                    topic=topic,
                    messages=max(self._plan.messages // _LATENCY_SHARE, 100),
                    rate_per_s=LATENCY_RATE_PER_S,
                    warm_up_s=FIRST_WARM_UP_S,
                )
            )

    def _begin(self, text: str) -> None:
        self._done(self._step, text)
        self._step += 1

    def _leave_out(self, name: str, replicas: int) -> None:
        self._run.left_out[name] = f"it needs {replicas} brokers, there are {self._run.brokers}"

    @contextmanager
    def _topic(self, partitions: int, replicas: int, min_isr: int) -> Iterator[str]:
        """Use a new topic, and delete it: no run meets the records of another."""
        self._topics += 1
        name = f"{self._prefix}-{self._topics}"
        settings = {"min.insync.replicas": min_isr}
        topic = NewTopic(name, partitions, replicas, configs=settings)
        self._by_admin(lambda admin: admin.create_topics([topic]))
        try:
            yield name
        finally:
            self._by_admin(lambda admin: admin.delete_topics([name]))

    def _by_admin(self, call: Callable[[Admin], Awaitable[_T]]) -> _T:
        async def called() -> _T:
            async with Admin(**self._client) as admin:
                return await call(admin)

        return asyncio.run(called())


class _Nemesis:
    """Kills brokers once, and starts them again. `act` is the progress of a load."""

    def __init__(
        self, cluster: LocalCluster, victims: Sequence[int], *, kill_at: int, down_s: float | None
    ) -> None:
        self._cluster: Final = cluster
        self.victims: Final = victims
        self._kill_at: Final = kill_at
        self._down_s: Final = down_s
        self.killed_s = 0.0
        self.started_s: float | None = None

    def act(self, acknowledged: int) -> bool:
        """Kill, or start, if it is time; return True when the load may send the rest."""
        if not self.killed_s:
            if acknowledged < self._kill_at:
                return False
            self._cluster.kill(*self.victims)
            self.killed_s = time.monotonic()
            return True
        is_due = self._down_s is not None and time.monotonic() - self.killed_s >= self._down_s
        if is_due and self.started_s is None:
            self.started_s = time.monotonic()
            self._start(wait=False)
        return False

    def restore(self) -> None:
        """Start all brokers that do not run, and wait until all replicas are in sync."""
        self._start(wait=True)
        self._cluster.settled(timeout_s=_SETTLED_WITHIN_S)

    def _start(self, *, wait: bool) -> None:
        running = self._cluster.running()
        for node_id in self.victims:
            if node_id not in running:
                self._cluster.start_node(node_id, wait=wait)


def cells_with(results: Results, scenario: int) -> Sequence[Cell]:
    """Return the cells of a scenario that were measured."""
    if scenario not in THROUGHPUTS:
        return ()
    measured = {cell for cell, _ in results.throughput}
    return [cell for cell in cells_of(scenario) if cell in measured]
