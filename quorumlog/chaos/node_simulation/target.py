"""The back end of simulated machines: it performs a nemesis's operations in virtual time."""

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any, Final

from quorumlog.broker.partitions.core.roles import Leader
from quorumlog.chaos.back_ends.administrator import WITH_DIRECTORIES, Administrator
from quorumlog.chaos.back_ends.back_end import (
    GROUPS_TOPIC,
    BackEndFailed,
    NodeUnavailable,
    Tallies,
    holders_of,
)
from quorumlog.chaos.back_ends.voter_changer import OPERATIONS as OF_VOTERS
from quorumlog.chaos.back_ends.voter_changer import Told
from quorumlog.chaos.drivers.security import NO_PROTECTION
from quorumlog.chaos.faults.links import CLIENTS, EFFECTS, LinkRule, Reset
from quorumlog.chaos.faults.links import Link as FaultyLink
from quorumlog.chaos.faults.node_groups import NO_RACKS, Racks
from quorumlog.chaos.node_simulation.disk_faults import HEALTHY
from quorumlog.chaos.node_simulation.loop import SimulatedLoop
from quorumlog.chaos.node_simulation.machine import KAFKA_PORT, PLANES, Machine, host_of
from quorumlog.chaos.node_simulation.network import Link, Network
from quorumlog.chaos.node_simulation.voters import SimulatedVoters
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.node.node import Node

START_TIMEOUT_S: Final = 20.0
STOP_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.01
OF_FILES: Final = frozenset({"damage", "put_back", "put_back_one"})  # need a stopped process

AT_ONCE: Final[Mapping[str, Callable[[Machine, int], None]]] = {
    "kill": lambda machine, _: machine.kill(),
    "pause": lambda machine, _: machine.pause(),
    "resume": lambda machine, _: machine.resume(),
    "fail_fsync": lambda machine, _: machine.disk_faults.fail_next_fsync(),
    "fail_flush": lambda machine, _: machine.disk_faults.fail_next_flush(),
    "damage": lambda machine, kind: machine.damage(kind),
    "copy_directories": lambda machine, name: machine.copy_directories(name),
    "put_back": lambda machine, name: machine.put_back(name),
    "put_back_one": lambda machine, name: machine.put_back(name, only_last=True),
    "slow_fsync": lambda machine, longest_us: machine.disk_faults.slow(longest_us),
    "mend_fsync": lambda machine, _: machine.disk_faults.slow(HEALTHY.spread_us),
    "fill_disk": lambda machine, left_bytes: machine.disk_faults.fill(left_bytes),
    "free_disk": lambda machine, _: machine.disk_faults.free(),
    "fail_disk": lambda machine, calls: machine.disk_faults.fail(calls),
    "mend_disk": lambda machine, _: machine.disk_faults.fail(0),
    "drift_clock": lambda machine, rate_ppm: machine.set_clock_rate(rate_ppm / 1e6),
    "steady_clock": lambda machine, _: machine.set_clock_rate(1.0),
    "step_clock": lambda machine, step_ms: machine.step_clock(step_ms),
    "reset_clock": lambda machine, _: machine.reset_clock(),
    "lose_power": lambda machine, _: machine.lose_power(),
    "starve": lambda machine, share_percent: machine.starve(share_percent),
    "feed": lambda machine, _: machine.feed(),
    "wipe": lambda machine, _: machine.wipe(),
    "start": lambda machine, _: machine.start(),
    "stop": lambda machine, _: machine.stop(),
}
"""Operation -> its call, which acts at one instant."""


async def _until_ready(machine: Machine) -> None:
    loop = asyncio.get_running_loop()
    process, deadline_s = machine.process, loop.time() + START_TIMEOUT_S
    while machine.process is process and not machine.is_ready:
        if loop.time() > deadline_s:
            raise NodeUnavailable(f"node {machine.node_id} is not ready in {START_TIMEOUT_S:g} s")
        await asyncio.sleep(_POLL_S)
    if machine.process is not process:
        raise NodeUnavailable(f"node {machine.node_id} has ended: {machine.failure}")


async def _until_ended(machine: Machine) -> None:
    """Wait until the process has ended; kill it after a timeout, as an operator would."""
    loop = asyncio.get_running_loop()
    process, deadline_s = machine.process, loop.time() + STOP_TIMEOUT_S
    while machine.process is process and process is not None:
        if loop.time() > deadline_s:
            machine.kill()
        await asyncio.sleep(_POLL_S)


LATER: Final = {"start": _until_ready, "stop": _until_ended}
"""Operation -> the wait for its end."""


def why_unsettled(machine: Machine) -> str:
    """Return the pending work of a node, or ""."""
    if machine.process is not None and not machine.process.runs:
        return "is paused"
    if machine.node is None:
        return ""
    if _has_uncommitted(machine.node):
        return "holds metadata that is not committed"
    if _proposes_an_isr(machine.node):
        return "proposes another ISR"
    return ""


def why_unsafe(machine: Machine) -> str:
    """Return why a node may soon lose data, or ""."""
    if machine.disk_faults.is_broken:
        return "may give up for its disk"
    if machine.disk_faults.has_lost_pages:
        return "will find less on its disk than it wrote"
    return ""


def view(node: Node) -> tuple[int, int, int]:
    """Return a node's quorum leader id, leader epoch and metadata log end offset."""
    quorum = node.quorum._quorum  # noqa: SLF001 - a simulator reads private state
    log = node.quorum._log  # noqa: SLF001 - as above
    return quorum.state.leader_id, quorum.state.leader_epoch, log.end_offset


def _has_uncommitted(node: Node) -> bool:
    log = node.quorum._log  # noqa: SLF001 - as above
    return log.end_offset > node.quorum.image.end_offset


def _proposes_an_isr(node: Node) -> bool:
    drivers = () if node.broker is None else node.broker.replicas.drivers.values()
    roles = [driver.partition.state.role for driver in drivers]
    return any(isinstance(role, Leader) and role.pending is not None for role in roles)


CLIENTS_HOST: Final = "10.0.9.1"
NOT_NEEDED_TIMEOUT_S: Final = 10.0
_ENDS: Final = frozenset({"kill", "stop", "fail_disk"})  # operations that may end the process


class SimulatedMachines:
    """A back end on machines in this process. The node with the newest metadata defines roles.

    Power is lost, and an fsync fails, only while every node is ready and every replica in sync:
    acknowledged records survive the loss of one memory, not of two. Until all replicas are in sync
    again, a node that lost nothing keeps running. No restarted node replaces it: a restarted node
    is out of the ISR, so the node that lost its memory could end up alone in the ISR. With
    `log.flush.acks`, power is lost at any time, also on all nodes at once.
    """

    name = "simulated machines"
    operations: Final[frozenset[str]] = frozenset(AT_ONCE) | WITH_DIRECTORIES | OF_VOTERS
    effects: Final = EFFECTS

    def __init__(
        self,
        loop: SimulatedLoop,
        network: Network,
        machines: Mapping[int, Machine],
        *,
        topic: str = "chaos",
        racks: Racks = NO_RACKS,
        protection: Mapping[str, Any] = NO_PROTECTION,
        told: Told = lambda _, __: None,
        may_lose_memory: bool = True,
        any_power_loss: bool = False,
        losses_are_judged: bool = False,
        acks_after_flush: bool = False,
    ) -> None:
        """`topic`: of the workload. `racks`: of the nodes. `protection`: of administrators.

        `told` is called with each completed change of the voters.

        `may_lose_memory`: faults may destroy data that is not on a disk.

        `any_power_loss`: even where it may lose acknowledged records.

        `losses_are_judged`: an oracle tracks the records that all copies together still hold, so
        copies and memories may be lost at any time.

        `acks_after_flush`: nodes acknowledge only records on the disk, so memory does not count.
        """
        self.machines: Final = machines
        self.racks: Final = racks
        self.any_power_loss = any_power_loss
        self._memory_counts: Final = not (any_power_loss or acks_after_flush or losses_are_judged)
        for machine in machines.values():
            machine.may_lose_memory = partial(self._may_lose_memory, machine)
            machine.disk_faults.evicts_pages = losses_are_judged
        self._loop: Final = loop
        self._network: Final = network
        brokers = [node_id for node_id, machine in machines.items() if machine.is_broker]
        bootstrap = ",".join(f"{host_of(node_id)}:{KAFKA_PORT}" for node_id in brokers)
        self._voters: Final = SimulatedVoters(machines, bootstrap, protection, loop=loop, told=told)
        self.administrator: Final = Administrator(
            bootstrap,
            protection,
            topic=topic,
            brokers=len(brokers),
            fewer=0 if self._memory_counts and may_lose_memory else 1,
            why_not_move=self._why_not_move,
            now_s=lambda: loop.now_s,
        )

    @property
    def node_ids(self) -> tuple[int, ...]:
        """The ids of all nodes, running or not."""
        return tuple(self.machines)

    def why_not(self, fault: str) -> str:
        """Return "": every fault is possible on simulated machines."""
        del fault
        return ""

    async def running(self) -> tuple[int, ...]:
        """Return the nodes with a process, paused processes included."""
        return tuple(n for n, machine in self.machines.items() if machine.process is not None)

    async def perform(self, operation: str, node_ids: Sequence[int], amount: int = 0) -> str | None:
        """Perform the operation on all `node_ids` at this instant. Raises NodeUnavailable."""
        machines = [self.machines[node_id] for node_id in node_ids]
        if operation not in self.operations:
            raise BackEndFailed(f"{self.name} have no operation {operation!r}")
        self._voters.look()
        if operation in WITH_DIRECTORIES:
            return await self.administrator.perform(operation, amount)
        if operation in OF_VOTERS:
            await self._voters.changer.perform(operation, node_ids)
            return None
        await self._require(operation, machines)
        for machine in machines:
            AT_ONCE[operation](machine, amount)
        if operation in LATER:
            for machine in machines:
                await LATER[operation](machine)
        return None

    async def _require(self, operation: str, machines: Sequence[Machine]) -> None:
        """Wait until the operation is allowed. Raises NodeUnavailable."""
        if operation in OF_FILES:
            running = [machine.node_id for machine in machines if machine.process is not None]
            if running:
                raise NodeUnavailable(f"nodes {running} run: their files are left alone")
        if operation in _ENDS:
            self._require_a_witness(machines)
        if operation == "wipe":
            await self._until_not_needed(machines)
            self._voters.wiped(machines)
        if operation == "lose_power":
            self._require_memory_does_not_count(machines)

    def _require_a_witness(self, machines: Sequence[Machine]) -> None:
        if not self._leaves_a_witness([machine.node_id for machine in machines]):
            raise NodeUnavailable("a machine that lost its memory needs the others now")
        if any(one.may_lack_records for one in self.machines.values()):
            for machine in machines:  # the new process is out of the ISR until it has caught up
                machine.may_lack_records = True

    def _require_memory_does_not_count(self, machines: Sequence[Machine]) -> None:
        for machine in machines:
            if why := self._why_memory_counts(machine, alone=len(machines) == 1):
                raise NodeUnavailable(f"its memory must not be lost now: {why}")

    def _may_lose_memory(self, machine: Machine) -> bool:
        return not self._why_memory_counts(machine)

    def _why_memory_counts(self, losing: Machine, *, alone: bool = True) -> str:
        """Return why the loss of this memory may lose acknowledged records, or "".

        Uncommitted changes count: a proposal of an ISR with a single member may be in flight, or
        wait at a paused node, and be committed after that member has lost its memory.
        """
        if not self._memory_counts:
            return ""
        if not alone:
            return "acknowledged records may be in memory only"
        if self.administrator.is_moving:
            return "replicas are moving"
        for node_id, machine in self.machines.items():
            if why := why_unsettled(machine):
                return f"node {node_id} {why}"
            if machine is not losing and (why := why_unsafe(machine)):
                return f"node {node_id} {why}"
        return self.not_whole()

    async def _until_not_needed(self, machines: Sequence[Machine]) -> None:
        """Wait until the other machines hold all data of these. Raises NodeUnavailable.

        docs/decisions/0002-durable-votes.md: an emptied voter must not
        fetch from a replaced leader, so the other nodes must follow one leader.
        """
        deadline_s = self._loop.now_s + NOT_NEEDED_TIMEOUT_S
        without = {machine.node_id for machine in machines}
        while why := self._why_needed(without):
            if self._loop.now_s > deadline_s:
                raise NodeUnavailable(f"not wiped: the cluster needs its records: {why}")
            await asyncio.sleep(_POLL_S)

    def _why_needed(self, without: Set[int]) -> str:
        """Return why these nodes may hold the only copy of some data, or ""."""
        if self.any_power_loss:
            return ""
        if self.administrator.is_moving:
            return "replicas are moving"
        others = [one for one in self.machines.values() if one.node_id not in without]
        views = set()
        for machine in others:
            if why := why_unsettled(machine):
                return f"node {machine.node_id} {why}"
            if why := why_unsafe(machine):
                return f"node {machine.node_id} {why}"
            if machine.node is not None:
                views.add(view(machine.node))
        leader_ids = {leader_id for leader_id, _, _ in views}
        if len(views) != 1 or not leader_ids <= {machine.node_id for machine in others}:
            return "the others do not follow one leader of the metadata quorum"
        return self._voters.why_needed(without) or self.not_whole(without)

    def _leaves_a_witness(self, node_ids: Sequence[int]) -> bool:
        """Return whether a node remains that kept running since another lost its memory.

        docs/decisions/0011-eligible-leader-replicas.md
        """
        if not self._some_lack_records():
            return True
        # A pure controller has no copy of a partition, and its votes are durable.
        witnesses = {
            machine.node_id
            for machine in self.machines.values()
            if machine.is_broker and machine.is_ready and not machine.may_lack_records
        }
        witnesses.difference_update(node_ids)
        image = self.newest_image()
        copies = [
            {*partition.replicas} - {*partition.adding_replicas}
            for topic in ({} if image is None else image.topics).values()
            for partition in topic.partitions
        ]
        return bool(witnesses) and all(witnesses & replicas for replicas in copies)

    def _some_lack_records(self) -> bool:
        """Return whether a machine lost its memory, and not all replicas were in sync since."""
        machines = self.machines.values()
        if not self._memory_counts or not any(machine.may_lack_records for machine in machines):
            return False
        has_lost_pages = any(machine.disk_faults.has_lost_pages for machine in machines)
        if has_lost_pages or self.not_whole():
            return True
        for machine in machines:
            machine.may_lack_records = False
        return False

    def _why_not_move(self) -> str:
        """Return why no partition may lose a copy now, or ""."""
        return "a machine that lost its memory needs all" if self._some_lack_records() else ""

    def times_met(self, operation: str, node_ids: Sequence[int]) -> int | None:
        """Return the number of an administrator's changes; None for any other operation."""
        del node_ids
        if operation == "remove_voter":
            return self._voters.changer.changes
        return self.administrator.changes if operation == "churn" else None

    # --- links ---

    def has_links(self, links: Sequence[FaultyLink]) -> bool:
        """Return whether one of these links carries traffic; clients connect to brokers only."""
        apart = {str(one.node_id) for one in self.machines.values() if not one.is_broker}
        return any(
            CLIENTS not in ends or not ends & apart
            for ends in ({link.source, link.destination} for link in links)
        )

    async def impose(self, rule: LinkRule) -> None:
        """Impose a rule on its links, in addition to their other rules."""
        concerned = {
            (_host(link.source), _host(link.destination), port)
            for link in rule.links
            for port, plane in PLANES.items()
            if link.plane in {"all", plane}
        }

        def concerns(link: Link) -> bool:
            return (link.source, link.target, link.port) in concerned

        self._network.impose(rule, concerns)
        if isinstance(rule.effect, Reset):
            self._reset(rule.id, concerns, rule.effect.every_us)

    def _reset(self, rule_id: str, concerns: Callable[[Link], bool], every_us: int) -> None:
        if self._network.holds(rule_id):
            self._network.reset(concerns)
            if every_us:
                self._loop.in_kernel(every_us / 1e6, self._reset, rule_id, concerns, every_us)

    async def tallies(self) -> Tallies:
        """Return the counts of the rules that answer or observe requests."""
        return self._network.book.tallies()

    async def lift(self, rule_id: str) -> None:
        """Lift a rule. Other rules stay in force."""
        self._network.lift(rule_id)

    # --- the state of the nodes ---

    async def holders(self, role: str, topic: str) -> Sequence[int]:
        """Return the nodes that hold the role, by the newest metadata of a running node."""
        image = self.newest_image()
        if image is None:
            return []
        if role == "metadata-leader":
            return [image.controller_id]
        if role == "group-coordinator":
            role, topic = "partition-leader", GROUPS_TOPIC
        found = image.topics.get(topic)
        partitions = () if found is None else found.partitions
        return holders_of(role, ((one.leader_id, one.isr) for one in partitions))

    async def behind(self, topic: str) -> Sequence[int]:
        """Return the nodes with a replica outside its ISR, by the newest metadata."""
        del topic
        image = self.newest_image()
        partitions = (
            one
            for known in ({} if image is None else image.topics).values()
            for one in known.partitions
        )
        return sorted(set().union(*({*one.replicas} - {*one.isr} for one in partitions)))

    def newest_image(self) -> ClusterImage | None:
        """Return the newest committed image of a running node, or None."""
        nodes = [machine.node for machine in self.machines.values() if machine.node is not None]
        images = [node.quorum.image for node in nodes]
        return max(images, key=lambda image: image.end_offset, default=None)

    def not_whole(self, without: Set[int] = frozenset()) -> str:
        """Return the first node that is not ready or replica that is not in sync, or "".

        `without`: nodes that do not run.
        """
        for node_id, machine in self.machines.items():
            if node_id not in without and not machine.is_ready:
                return f"node {node_id} is not ready"
        image = self.newest_image()
        for name, topic in sorted({} if image is None else image.topics.items()):
            for index, partition in enumerate(topic.partitions):
                if {*partition.isr} != {*partition.replicas} - without:
                    return f"the ISR of {name}-{index} is {sorted(partition.isr)}"
                if partition.leader_id not in self.machines:
                    return f"{name}-{index} has no leader"
        return ""

    def last_words(self, node_id: int) -> str:
        """Return how the node's last process ended by itself, or ""."""
        machine = self.machines[node_id]
        return f"ended with status {machine.status}: {machine.failure}" if machine.failure else ""

    async def restore(self) -> None:
        """Undo the administrator's changes; the machines end with the run."""
        await self.administrator.settle()


def _host(party: str) -> str:
    return CLIENTS_HOST if party == CLIENTS else host_of(int(party))
