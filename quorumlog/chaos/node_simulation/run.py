"""One run: real nodes, real clients, faults, and the judgement; all of it follows from the seed.

It goes through the phases of `chaos run`: start, faults under load, heal, final reads. Then the
history is checked as any other. A run needs a process of its own: see forked.py.
"""

import asyncio
import gc
import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from quorumlog.chaos.checkers import check_history
from quorumlog.chaos.drivers.registry import load_driver
from quorumlog.chaos.history import NEMESIS, HistoryWriter, read_history
from quorumlog.chaos.nemesis import Nemesis
from quorumlog.chaos.node_simulation.loop import START_S, NoProgress, SimulatedLoop
from quorumlog.chaos.node_simulation.machine import (
    CONTROL_PORT,
    KAFKA_PORT,
    LOG_DIR,
    Machine,
    host_of,
)
from quorumlog.chaos.node_simulation.network import Network
from quorumlog.chaos.node_simulation.process import Clock, Process
from quorumlog.chaos.node_simulation.settings import NodesResult, NodesSettings
from quorumlog.chaos.node_simulation.surroundings import replace_surroundings
from quorumlog.chaos.node_simulation.target import CLIENTS_HOST, SimulatedMachines
from quorumlog.chaos.workloads.registry import find_workload
from quorumlog.chaos.workloads.workload import Clients, Setup
from quorumlog.cluster.layout import FAST_DEFAULTS
from quorumlog.node.substitutes import Substitutes

CLUSTER_ID: Final = "simulated-cluster-0000"
TOPIC: Final = "chaos"
START_TIMEOUT_S: Final = 60.0
WARM_UP_S: Final = 0.5
COOL_DOWN_S: Final = 1.0  # healed, and still producing: what was lost may come to light
FINAL_READS_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.05
_SEVERE: Final = 2


class NotStarted(Exception):
    """The nodes did not start, although no fault was there."""


class Trace:
    """A digest of all that happens; with a file, a line for each event."""

    def __init__(self, path: str | None) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._file = None if path is None else Path(path).open("w", encoding="utf-8")  # noqa: SIM115 - until the process ends

    def add(self, now_s: float, text: str, data: bytes = b"") -> None:
        """Take one event."""
        head = f"{now_s:.9f} {text}"
        self._hash.update(head.encode())
        self._hash.update(data)
        if self._file is not None:
            digest = hashlib.blake2b(data, digest_size=4).hexdigest() if data else ""
            self._file.write(f"{head} {len(data)} {digest}\n")

    def digest(self) -> str:
        """Return the fingerprint of everything so far."""
        if self._file is not None:
            self._file.flush()
        return self._hash.hexdigest()


@dataclass(slots=True)
class _Marks:
    """What a run notes on its way."""

    start_cpu_s: float = 0.0
    violations: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    operations: int = 0


class SimulatedRun:
    """One run, in a process of its own. `directory` takes the history."""

    def __init__(self, settings: NodesSettings, directory: Path) -> None:
        self._settings: Final = settings
        self._seed: Final = settings.schedule.seed
        self._directory: Final = directory
        self._trace: Final = Trace(settings.trace)
        self._loop: Final = SimulatedLoop(self._seed)
        self._network: Final = Network(self._loop, self._seed, self._trace.add)
        self._loop.sockets = self._network
        self._marks: Final = _Marks()
        self._machines: Final = {
            node_id: Machine(
                node_id,
                self._seed,
                loop=self._loop,
                network=self._network,
                settings=_node_settings(node_id, settings),
                substitutes=Substitutes(),
                happened=self._happened,
            )
            for node_id in range(1, settings.nodes + 1)
        }
        self._target: Final = SimulatedMachines(self._loop, self._network, self._machines)

    def run(self) -> NodesResult:
        """Carry it out. Raises NotStarted."""
        started_s = time.process_time()
        gc.disable()  # the loop collects at virtual times
        logging.basicConfig(level=self._settings.log_level.upper(), format=_LOG_FORMAT)
        replace_surroundings(self._loop, self._seed)
        asyncio.set_event_loop(self._loop)
        clients = Process("clients", CLIENTS_HOST, Clock())
        main = self._loop.spawn(clients, lambda: self._phases(started_s))
        try:
            self._loop.run_until_complete(main)
        except NoProgress as error:
            self._violated(f"progress: {error}")
        return self._result(started_s)

    def _result(self, started_s: float) -> NodesResult:
        settings = self._settings
        for node_id, machine in self._machines.items():
            if machine.violation:
                self._violated(f"invariant: node {node_id}: {machine.violation}")
            for path, content in machine.disk.files():
                self._trace.add(self._loop.now_s, f"disk {node_id} {path}", content)
        model = find_workload(settings.schedule.workload).model
        verdict = check_history(read_history(self._directory), model)
        anomalies = tuple(r.name for r in verdict.results if r.severity == _SEVERE and r.count)
        violations = tuple(self._marks.violations)
        return NodesResult(
            seed=self._seed,
            digest=self._trace.digest(),
            valid=False if violations else verdict.valid,
            verdict=verdict.as_json(),
            anomalies=anomalies,
            violations=violations,
            virtual_s=round(self._loop.now_s - START_S, 3),
            cpu_s=round(time.process_time() - started_s, 3),
            start_cpu_s=round(self._marks.start_cpu_s, 3),
            operations=self._marks.operations,
            faults=tuple(self._marks.faults),
            schedule=settings.schedule,
            mutant=settings.mutant,
        )

    def _happened(self, what: str) -> None:
        self._trace.add(self._loop.now_s, what)

    def _violated(self, what: str) -> None:
        if what not in self._marks.violations:
            self._marks.violations.append(what)

    # --- the phases ---

    async def _phases(self, started_s: float) -> None:
        await self._start()
        self._marks.start_cpu_s = time.process_time() - started_s
        schedule, loop = self._settings.schedule, self._loop
        workload = find_workload(schedule.workload)
        with HistoryWriter(self._directory, now_ns=lambda: int(loop.now_s * 1e9)) as history:
            setup = Setup(
                driver=load_driver("client"),
                bootstrap=",".join(f"{host_of(n)}:{KAFKA_PORT}" for n in self._machines),
                topic=TOPIC,
                partitions=self._settings.partitions,
                replication_factor=min(3, len(self._machines)),
                seed=self._seed,
                options=workload.read_options(schedule.options),
                history=history,
            )
            for topic in workload.topics(setup):
                await setup.driver.create_topic(
                    setup.bootstrap,
                    topic.name,
                    partitions=topic.partitions,
                    replication_factor=min(topic.replication_factor, len(self._machines)),
                    config=topic.config,
                )
            nemesis = Nemesis(self._target, schedule, topic=TOPIC, record=_recorder(history))
            clients = workload.clients(setup)
            await self._break_under_load(clients, nemesis)
            if not await clients.final_reads(FINAL_READS_TIMEOUT_S):
                self._violated("not live: the final reads did not end")
            await nemesis.note_ended()
            self._marks.faults += nemesis.done
            self._marks.operations = sum(history.messages.values())

    async def _start(self) -> None:
        for machine in self._machines.values():
            machine.start()
        deadline_s = self._loop.now_s + START_TIMEOUT_S
        while not all(machine.is_ready for machine in self._machines.values()):
            if self._loop.now_s > deadline_s:
                why = "; ".join(machine.failure for machine in self._machines.values())
                raise NotStarted(f"the nodes are not ready within {START_TIMEOUT_S:g} s: {why}")
            await asyncio.sleep(_POLL_S)

    async def _break_under_load(self, clients: Clients, nemesis: Nemesis) -> None:
        working = asyncio.Event()
        working.set()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(clients.work(working))
            await asyncio.sleep(WARM_UP_S)
            end_s = self._loop.now_s + self._settings.schedule.duration_us / 1e6
            await nemesis.run()
            await asyncio.sleep(max(0.0, end_s - self._loop.now_s))
            if not await nemesis.heal():
                self._violated("not live: not every node came back")
            await asyncio.sleep(COOL_DOWN_S)
            working.clear()


_LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def _recorder(history: HistoryWriter) -> Callable[[str, str, str], object]:
    def record(f: str, node: str, details: str) -> None:
        history.append(NEMESIS, "info", f, node=node, details=details)

    return record


def _node_settings(node_id: int, settings: NodesSettings) -> dict[str, str]:
    """Return what a node's properties file says."""
    node_ids = range(1, settings.nodes + 1)
    replicas = str(min(3, settings.nodes))
    return {
        **FAST_DEFAULTS,
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        **settings.config,
        "node.id": str(node_id),
        "cluster.id": CLUSTER_ID,
        "process.roles": "broker,controller",
        "listeners": f"PLAINTEXT://{host_of(node_id)}:{KAFKA_PORT}",
        "control.listener": f"{host_of(node_id)}:{CONTROL_PORT}",
        "controller.quorum.voters": ",".join(f"{n}@{host_of(n)}:{CONTROL_PORT}" for n in node_ids),
        "log.dirs": LOG_DIR,
    }
