"""One run: real nodes, real clients, faults, and the verdict; the seed determines all of it.

It has the phases of `chaos run`: start, faults under load, heal, final reads. Then the usual
checkers check the history. A run needs a process of its own: see forked.py.
"""

import asyncio
import gc
import hashlib
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from quorumlog import clock
from quorumlog.chaos.checkers import CheckResult, Verdict, check_history
from quorumlog.chaos.drivers.client_driver import ClientDriver
from quorumlog.chaos.drivers.driver import AnyDriver, SendFailed
from quorumlog.chaos.drivers.limits import limited
from quorumlog.chaos.drivers.security import PLAINTEXT, of_client
from quorumlog.chaos.history import NEMESIS, HistoryWriter, read_history
from quorumlog.chaos.mutants.registry import mutant_called
from quorumlog.chaos.nemesis import Nemesis
from quorumlog.chaos.node_simulation.copies import Copies, SharedLoss
from quorumlog.chaos.node_simulation.loop import START_S, NoProgress, SimulatedLoop
from quorumlog.chaos.node_simulation.machine import (
    CONTROL_PORT,
    KAFKA_PORT,
    LOG_DIR,
    PLANES,
    Machine,
    host_of,
)
from quorumlog.chaos.node_simulation.mirrors import SimulatedMirrors
from quorumlog.chaos.node_simulation.network import Network
from quorumlog.chaos.node_simulation.operator import AFTER_S, repair
from quorumlog.chaos.node_simulation.oracle import Oracle
from quorumlog.chaos.node_simulation.process import Clock, Process
from quorumlog.chaos.node_simulation.process_globals import replace_process_globals
from quorumlog.chaos.node_simulation.secured_nodes import secured, super_user
from quorumlog.chaos.node_simulation.settings import NodesResult, NodesSettings
from quorumlog.chaos.node_simulation.target import CLIENTS_HOST, SimulatedMachines
from quorumlog.chaos.rude_clients.refused_client import RefusedClient
from quorumlog.chaos.simulation.kernel.randomness import seeded
from quorumlog.chaos.simulation.oracles.exchanges import Conversation
from quorumlog.chaos.workloads.registry import find_workload
from quorumlog.chaos.workloads.workload import Clients, Setup
from quorumlog.client.security import SecuritySettings
from quorumlog.cluster.layout import FAST_DEFAULTS
from quorumlog.wire.codec.identifiers import TopicPartition

CLUSTER_ID: Final = "simulated-cluster-0000"
TOPIC: Final = "chaos"
START_TIMEOUT_S: Final = 60.0
WARM_UP_S: Final = 0.5
COOL_DOWN_S: Final = 2.0  # healed, and still producing: a loss may become visible
FINAL_READS_TIMEOUT_S: Final = 60.0
LIVENESS_S: Final = 30.0  # from the heal until all are in sync; and for a send to each partition
CORRUPT_READ: Final = "corrupt-read"
OUT_OF_RANGE: Final = "OFFSET_OUT_OF_RANGE"  # a checker's key for such an error
LOSE_MEMORY: Final = frozenset(
    {"power_loss", "power_loss_all", "fsync_error", "disk_error", "disk_full", "wipe"}
    | {"replace_voter"}
)
"""The faults with which a machine may lose records: then others must keep their copies."""
VIOLATIONS_MAX: Final = 20  # the first ones show the cause
_POLL_S: Final = 0.05
_SEVERE: Final = 2


class NotStarted(Exception):
    """The nodes did not start, although no fault was active."""


class _Ended(Exception):
    """A rule is violated: the run ends early."""


class Trace:
    """A digest of all events of a run; with a file, a line for each event."""

    def __init__(self, path: str | None) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._file = None if path is None else Path(path).open("w", encoding="utf-8")  # noqa: SIM115 - until the process ends

    def add(self, now_s: float, text: str, data: bytes = b"") -> None:
        """Add one event."""
        head = f"{now_s:.9f} {text}"
        self._hash.update(head.encode())
        self._hash.update(data)
        if self._file is not None:
            digest = hashlib.blake2b(data, digest_size=4).hexdigest() if data else ""
            self._file.write(f"{head} {len(data)} {digest}\n")

    def digest(self) -> str:
        """Return the digest of all events so far."""
        if self._file is not None:
            self._file.flush()
        return self._hash.hexdigest()


class SimulatedRun:
    """One run, in a process of its own. `directory`: where to write the history."""

    def __init__(self, settings: NodesSettings, directory: Path) -> None:
        self._settings: Final = settings
        self._seed: Final = settings.schedule.seed
        self._directory: Final = directory
        self._trace: Final = Trace(settings.trace)
        self._loop: Final = SimulatedLoop(self._seed)
        self._network: Final = Network(self._loop, self._seed, self._trace.add, PLANES)
        self._loop.sockets = self._network
        self._start_cpu_s = 0.0
        self._violations: Final[list[str]] = []
        self._faults: list[str] = []
        self._operations = 0
        self._machines: Final[dict[int, Machine]] = {}
        self._copies: Final = _copies(settings, self._machines)
        self._oracle: Final = Oracle(
            self._machines, settings.voter_ids, self._violated, copies=self._copies
        )
        mutant = mutant_called(settings.mutant)
        parts = mutant.dependencies
        parts = replace(parts, partition_rules=self._oracle.watching(parts.partition_rules))
        for node_id in settings.roles:
            self._machines[node_id] = Machine(
                node_id,
                self._seed,
                loop=self._loop,
                network=self._network,
                settings=_node_settings(node_id, settings),
                dependencies=parts,
                seen_disk=mutant.disk,
                happened=self._happened,
            )
            self._machines[node_id].copies_changed = partial(self._oracle.copies_changed, node_id)
        self._mirrors: Final = SimulatedMirrors(
            self._loop,
            self._network,
            host=CLIENTS_HOST,
            dependencies=mutant.mirror,
            happened=self._happened,
        )
        self._loop.after_turn = self._look if settings.until_violated else self._oracle.look
        self._network.overhear = self._conversation
        self._target: Final = SimulatedMachines(
            self._loop,
            self._network,
            self._machines,
            topic=TOPIC,
            protection=of_client(self._security),
            told=self._oracle.voters.told,
            may_lose_memory=bool(
                LOSE_MEMORY & {action.fault.name for action in settings.schedule.actions}
            ),
            any_power_loss=settings.any_power_loss,
            losses_are_judged=settings.losses_are_judged,
            acks_after_flush=settings.config.get("log.flush.acks") == "true",
        )

    def _conversation(
        self, client: tuple[str, int], broker: tuple[str, int]
    ) -> Conversation | None:
        """Return the reader of a client's new connection to a broker."""
        if client[0] != CLIENTS_HOST or broker[1] != KAFKA_PORT:
            return None
        node_id = next(one for one in self._machines if host_of(one) == broker[0])
        return self._oracle.coordination.conversation(node_id)

    def run(self) -> NodesResult:
        """Run all phases, then check the history. Raises NotStarted."""
        started_s = time.process_time()
        gc.disable()  # the loop collects at virtual times
        logging.basicConfig(level=self._settings.log_level.upper(), format=_LOG_FORMAT)
        if self._copies is not None:
            self._copies.listen()
        replace_process_globals(self._loop, self._seed)
        asyncio.set_event_loop(self._loop)
        clients = Process("clients", CLIENTS_HOST, Clock())
        main = self._loop.spawn(clients, lambda: self._phases(started_s))
        try:
            self._loop.run_until_complete(main)
        except _Ended:
            return self._result(started_s, self._unchecked())
        except NoProgress as error:
            self._violated(f"progress: {error}")
        return self._result(started_s, check_history(read_history(self._directory), self._model))

    @property
    def _security(self) -> SecuritySettings:
        """The protection of the clients: of a secured cluster, the login of its super user."""
        required = find_workload(self._settings.schedule.workload).security
        return PLAINTEXT if required is None else super_user(required)

    def _driver(self, security: SecuritySettings) -> AnyDriver:
        return limited(ClientDriver(_racks(self._settings)).secured(security))

    @property
    def _model(self) -> str:
        return find_workload(self._settings.schedule.workload).model

    def _look(self) -> None:
        self._oracle.look()
        if self._violations:
            raise _Ended

    def _unchecked(self) -> Verdict:
        """Return the verdict on a history that ends in the middle of its operations."""
        return Verdict(
            valid="unknown",
            operations=0,
            results=[],
            unknown_because=["the run ended at its first violated rule"],
            figures={},
            model=self._model,
            text="",
        )

    def _result(self, started_s: float, verdict: Verdict) -> NodesResult:
        settings = self._settings
        for node_id, machine in self._machines.items():
            if machine.violation:
                self._violated(f"invariant: node {node_id}: {machine.violation}")
            for path, content in machine.disk.files():
                self._trace.add(self._loop.now_s, f"disk {node_id} {path}", content)
        losses = self._losses
        if self._copies is not None and (untold := self._copies.untold()):
            self._violated(f"loss-told: {untold}")
        found = [one for one in verdict.results if one.severity == _SEVERE and one.count]
        anomalies = tuple(one.name for one in found if not _is_of(one, losses))
        is_excused = bool(found) and not anomalies
        violations = tuple(self._violations)
        return NodesResult(
            seed=self._seed,
            digest=self._trace.digest(),
            valid=False if violations else is_excused or verdict.valid,
            verdict=verdict.as_json(),
            anomalies=anomalies,
            violations=violations,
            virtual_s=round(self._loop.now_s - START_S, 3),
            cpu_s=round(time.process_time() - started_s, 3),
            start_cpu_s=round(self._start_cpu_s, 3),
            operations=self._operations,
            faults=tuple(self._faults),
            schedule=settings.schedule,
            mutant=settings.mutant,
            losses=tuple(f"{name}: {loss}" for name in losses for loss in losses[name]),
        )

    @property
    def _losses(self) -> Mapping[str, Sequence[SharedLoss]]:
        """By partition: the committed records that all its copies have lost."""
        return {} if self._copies is None else self._copies.losses

    def _happened(self, what: str) -> None:
        self._trace.add(self._loop.now_s, what)

    def _violated(self, what: str) -> None:
        seen = self._violations
        if what not in seen and len(seen) < VIOLATIONS_MAX:
            seen.append(what)
            self._trace.add(self._loop.now_s, what)

    # --- the phases ---

    async def _phases(self, started_s: float) -> None:
        await self._start()
        self._start_cpu_s = time.process_time() - started_s
        schedule, loop = self._settings.schedule, self._loop
        workload, broker_ids = find_workload(schedule.workload), self._settings.broker_ids
        with HistoryWriter(
            self._directory,
            meta={"workload": schedule.workload},
            now_ns=lambda: int(loop.now_s * 1e9),
            wall_ns=clock.wall_ns,
        ) as history:
            setup = Setup(
                driver=self._driver(self._security),
                bootstrap=",".join(f"{host_of(n)}:{KAFKA_PORT}" for n in broker_ids),
                topic=TOPIC,
                partitions=self._settings.partitions,
                replication_factor=min(3, len(broker_ids)),
                seed=self._seed,
                options=workload.read_options(schedule.options),
                history=history,
                security=self._security,
                secured=self._driver,
                start_mirror=self._mirrors.start,
            )
            for topic in workload.topics(setup):
                await setup.driver.create_topic(
                    setup.bootstrap,
                    topic.name,
                    partitions=topic.partitions,
                    replication_factor=min(topic.replication_factor, len(broker_ids)),
                    config=topic.config,
                )
            nemesis = Nemesis(self._target, schedule, topic=TOPIC, record=_recorder(history))
            clients = workload.clients(setup)
            await self._break_under_load(clients, nemesis)
            if not await clients.final_reads(FINAL_READS_TIMEOUT_S):
                self._violated("not live: the final reads did not end")
            await self._send_everywhere(setup)
            await nemesis.note_ended()
            self._faults += nemesis.done
            self._operations = sum(history.messages.values())

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
            refused = self._refused_client()
            refusing = None if refused is None else tasks.create_task(refused.run())
            end_s = self._loop.now_s + self._settings.schedule.duration_us / 1e6
            await nemesis.run()
            await asyncio.sleep(max(0.0, end_s - self._loop.now_s))
            if not await nemesis.heal() and not self._losses:  # else an operator may be needed
                self._violated("not live: not every node came back")
            await self._target.restore()
            await self._until_whole()
            await asyncio.sleep(COOL_DOWN_S)
            if refusing is not None:
                refusing.cancel()
            working.clear()

    def _refused_client(self) -> RefusedClient | None:
        """Return a client whose requests are refused; None: without groups and transactions."""
        requires = find_workload(self._settings.schedule.workload).requires
        if not requires & {"groups", "transactions"}:
            return None

        def address_of(at: TopicPartition) -> tuple[str, int] | None:
            leader = self._oracle.leader_of(at)
            return None if leader not in self._machines else (host_of(leader), KAFKA_PORT)

        rng = seeded("rude client", self._seed)
        draw = self._oracle.coordination.rude.draw
        return RefusedClient(rng, draw, address_of, lambda: int(self._loop.now_s * 1e9))

    async def _until_whole(self) -> None:
        """Wait until all nodes are ready and all replicas in sync; a timeout is a violation."""
        deadline_s = self._loop.now_s + LIVENESS_S
        operator_s = self._loop.now_s + AFTER_S
        while missing := self._target.not_whole() or self._oracle.voters.not_settled():
            image = self._target.newest_image()
            if self._losses and image is not None and self._loop.now_s > operator_s:
                administrator = self._target.administrator
                await repair(self._machines, administrator, image, self._losses)
                operator_s = self._loop.now_s + AFTER_S
            if self._loop.now_s > deadline_s:
                self._violated(f"not live: after {LIVENESS_S:g} calm seconds, {missing}")
                return
            await asyncio.sleep(_POLL_S)

    async def _send_everywhere(self, setup: Setup[Any]) -> None:
        """Send a record to each partition, after the clients' final reads."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LIVENESS_S):
                producer = await setup.driver.producer(setup.bootstrap, "live")
                image = self._target.newest_image()
                topic = None if image is None else image.topics.get(setup.topic)
                there_are = setup.partitions if topic is None else len(topic.partitions)
                for partition in range(there_are):
                    try:
                        await (await producer.send(setup.topic, partition, b"-1", key=b"live"))
                    except SendFailed as error:
                        self._violated(f"not live: {setup.topic}-{partition}: {error}")
                await producer.close()
                return
        self._violated(f"not live: a send to each partition took {LIVENESS_S:g} s")


def _copies(settings: NodesSettings, machines: Mapping[int, Machine]) -> Copies | None:
    """Return the checker of copies, if losses are judged; else None."""
    if not settings.losses_are_judged:
        return None
    log_dirs = settings.config.get("log.dirs", LOG_DIR).split(",")
    keeps_members = settings.config.get("min.insync.replicas", "1") != "1"
    return Copies(machines, log_dirs, keeps_members=keeps_members)


def _is_of(result: CheckResult, losses: Collection[str]) -> bool:
    """Return whether all witnesses of an anomaly are partitions whose copies share a loss.

    An out-of-range read names no partition, and is excused as well. The read of a damaged record
    is never excused.
    """
    if result.name == CORRUPT_READ or not losses:
        return False
    keys = {witness["key"] for witness in result.witnesses}
    return all(key in losses or key == OUT_OF_RANGE for key in keys)


_LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def _recorder(history: HistoryWriter) -> Callable[[str, str, str], object]:
    def record(f: str, node: str, details: str) -> None:
        history.append(NEMESIS, "info", f, node=node, details=details)

    return record


def _racks(settings: NodesSettings) -> list[str]:
    """Return a rack for each node, if consumers read from the nearest replica; else none."""
    reads_near = "replica.selector.class" in settings.config
    return [f"rack-{n}" for n in settings.roles] if reads_near else []


def _node_settings(node_id: int, settings: NodesSettings) -> dict[str, str]:
    """Return the settings of a node, as in its properties file."""
    voters = (f"{n}@{host_of(n)}:{CONTROL_PORT}" for n in settings.voter_ids)
    replicas = str(min(3, len(settings.broker_ids)))
    racks = _racks(settings)
    security = find_workload(settings.schedule.workload).security
    return {
        **FAST_DEFAULTS,
        **({"broker.rack": racks[node_id - 1]} if racks else {}),
        "default.replication.factor": replicas,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "controller.quorum.auto.join.enable": "true",
        "log.dirs": LOG_DIR,
        **({} if security is None else secured(security)),
        **settings.config,
        "node.id": str(node_id),
        "cluster.id": CLUSTER_ID,
        "process.roles": ",".join(settings.roles[node_id]),
        "listeners": (
            f"{'PLAINTEXT' if security is None else 'SASL_PLAINTEXT'}"
            f"://{host_of(node_id)}:{KAFKA_PORT}"
        ),
        "control.listener": f"{host_of(node_id)}:{CONTROL_PORT}",
        "controller.quorum.voters": ",".join(voters),
    }
