"""The back end of simulated machines: what a nemesis does to them, in virtual time."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from quorumlog.broker.partitions.core.roles import Leader
from quorumlog.chaos.back_ends.back_end import (
    GROUPS_TOPIC,
    BackEndFailed,
    NodeUnavailable,
    holders_of,
)
from quorumlog.chaos.faults.links import (
    CLIENTS,
    Cut,
    Delay,
    Effect,
    LinkRule,
    Rate,
    Refuse,
    Reset,
)
from quorumlog.chaos.node_simulation.links import Link, LinkState
from quorumlog.chaos.node_simulation.loop import SimulatedLoop
from quorumlog.chaos.node_simulation.machine import (
    CONTROL_PORT,
    HEALTHY_DISK,
    KAFKA_PORT,
    Machine,
    host_of,
)
from quorumlog.chaos.node_simulation.network import Network
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.node.node import Node

CLIENTS_HOST: Final = "10.0.9.1"
START_TIMEOUT_S: Final = 20.0
STOP_TIMEOUT_S: Final = 10.0
_POLL_S: Final = 0.01
_ENDS: Final = frozenset({"kill", "stop"})
_PORTS: Final = {"kafka": (KAFKA_PORT,), "control": (CONTROL_PORT,)}

_AT_ONCE: Final[Mapping[str, Callable[[Machine, int], None]]] = {
    "kill": lambda machine, _: machine.kill(),
    "pause": lambda machine, _: machine.pause(),
    "resume": lambda machine, _: machine.resume(),
    "fail_fsync": lambda machine, _: machine.fail_next_fsync(),
    "slow_fsync": lambda machine, longest_us: machine.slow_fsyncs(longest_us),
    "mend_fsync": lambda machine, _: machine.slow_fsyncs(HEALTHY_DISK.spread_us),
    "drift_clock": lambda machine, rate_ppm: machine.set_clock_rate(rate_ppm / 1e6),
    "steady_clock": lambda machine, _: machine.set_clock_rate(1.0),
    "step_clock": lambda machine, step_ms: machine.step_clock(step_ms),
    "reset_clock": lambda machine, _: machine.reset_clock(),
    "lose_power": lambda machine, _: machine.lose_power(),
    "start": lambda machine, _: machine.start(),
    "stop": lambda machine, _: machine.stop(),
}
"""What is done at one instant."""


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
    """Wait until the process is gone; end it if it takes too long, as an operator would."""
    loop = asyncio.get_running_loop()
    process, deadline_s = machine.process, loop.time() + STOP_TIMEOUT_S
    while machine.process is process and process is not None:
        if loop.time() > deadline_s:
            machine.kill()
        await asyncio.sleep(_POLL_S)


_LATER: Final = {"start": _until_ready, "stop": _until_ended}
"""What is waited for."""


class SimulatedMachines:
    """A back end on machines in this process. The best-informed node says who holds a role.

    Power is lost, and an fsync fails, only while every node is ready and every replica in sync:
    what is acknowledged survives the loss of one memory, not of two. Until all is in sync again,
    one node that lost nothing stays, and no other takes its place: one that starts again is out of
    the ISR, which in the end may hold none but the node that lost its memory.
    """

    name = "simulated machines"
    operations: Final[frozenset[str]] = frozenset(_AT_ONCE)
    effects: Final[frozenset[type[Effect]]] = frozenset({Cut, Delay, Rate, Reset, Refuse})

    def __init__(
        self,
        loop: SimulatedLoop,
        network: Network,
        machines: Mapping[int, Machine],
        *,
        any_power_loss: bool = False,
    ) -> None:
        """`any_power_loss`: also where it may lose what was acknowledged."""
        self.machines: Final = machines
        self.any_power_loss = any_power_loss
        for machine in machines.values():
            machine.may_lose_memory = self._may_lose_memory
        self._loop: Final = loop
        self._network: Final = network

    @property
    def node_ids(self) -> tuple[int, ...]:
        """All nodes, whether they run or not."""
        return tuple(self.machines)

    def why_not(self, fault: str) -> str:
        """Say nothing: what is not there is not simulated."""
        del fault
        return ""

    async def running(self) -> tuple[int, ...]:
        """Return the nodes whose process exists now; a paused one counts."""
        return tuple(n for n, machine in self.machines.items() if machine.process is not None)

    async def perform(self, operation: str, node_ids: Sequence[int], amount: int = 0) -> None:
        """Do the operation to all `node_ids` at this instant. Raises NodeUnavailable."""
        machines = [self.machines[node_id] for node_id in node_ids]
        if operation not in self.operations:
            raise BackEndFailed(f"{self.name} have no operation {operation!r}")
        if operation in _ENDS and not self._leaves_a_witness(node_ids):
            raise NodeUnavailable("a machine that lost its memory needs the others now")
        if operation in _ENDS and any(one.may_lack_records for one in self.machines.values()):
            for machine in machines:  # the new process is out of the ISR until it has caught up
                machine.may_lack_records = True
        for machine in machines:
            if operation == "lose_power" and (why := self._why_memory_counts()):
                raise NodeUnavailable(f"its memory must not be lost now: {why}")
            _AT_ONCE[operation](machine, amount)
        if operation in _LATER:
            for machine in machines:
                await _LATER[operation](machine)

    def _may_lose_memory(self) -> bool:
        return not self._why_memory_counts()

    def _why_memory_counts(self) -> str:
        """Say why the loss of one memory may lose what is acknowledged, or "".

        What is under way counts: an ISR without the others may be proposed, or wait at a node that
        is paused, and be committed when the memory of its only member is gone.
        """
        if self.any_power_loss:
            return ""
        for node_id, machine in self.machines.items():
            if machine.process is not None and machine.process.is_paused:
                return f"node {node_id} is paused"
            if machine.node is not None and _has_uncommitted(machine.node):
                return f"node {node_id} holds metadata that is not committed"
            if machine.node is not None and _proposes_an_isr(machine.node):
                return f"node {node_id} proposes another ISR"
        return self.not_whole()

    def _leaves_a_witness(self, node_ids: Sequence[int]) -> bool:
        """Tell whether a node stays that was there all the time since another lost its memory.

        docs/decisions/0062-a-rebooted-broker-alone-in-the-isr-leads.md
        """
        machines = self.machines.values()
        if self.any_power_loss or not any(machine.may_lack_records for machine in machines):
            return True
        if not self.not_whole():
            for machine in machines:
                machine.may_lack_records = False
            return True
        return any(
            machine.is_ready and not machine.may_lack_records and machine.node_id not in node_ids
            for machine in machines
        )

    # --- links ---

    async def impose(self, rule: LinkRule) -> None:
        """Let a rule hold on its links, besides those that hold already."""
        concerned = {
            (_host(link.source), _host(link.destination), port)
            for link in rule.links
            for port in _PORTS.get(link.plane, (KAFKA_PORT, CONTROL_PORT))
        }

        def concerns(link: Link) -> bool:
            return (link.source, link.target, link.port) in concerned

        self._network.impose(rule.id, concerns, _state_of(rule.effect))
        if isinstance(rule.effect, Reset):
            self._reset(rule.id, concerns, rule.effect.every_us)

    def _reset(self, rule_id: str, concerns: Callable[[Link], bool], every_us: int) -> None:
        if self._network.holds(rule_id):
            self._network.reset(concerns)
            if every_us:
                self._loop.in_kernel(every_us / 1e6, self._reset, rule_id, concerns, every_us)

    async def lift(self, rule_id: str) -> None:
        """Take a rule back. The others still hold."""
        self._network.lift(rule_id)

    # --- what the nodes say ---

    async def holders(self, role: str, topic: str) -> Sequence[int]:
        """Return the nodes that hold the role, as the best-informed node sees it."""
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

    def newest_image(self) -> ClusterImage | None:
        """Return the newest committed metadata that a running node knows."""
        nodes = [machine.node for machine in self.machines.values() if machine.node is not None]
        images = [node.quorum.image for node in nodes]
        return max(images, key=lambda image: image.end_offset, default=None)

    def not_whole(self) -> str:
        """Say what is missing to a cluster whose nodes and replicas all take part, or ""."""
        for node_id, machine in self.machines.items():
            if not machine.is_ready:
                return f"node {node_id} is not ready"
        image = self.newest_image()
        for name, topic in sorted({} if image is None else image.topics.items()):
            for index, partition in enumerate(topic.partitions):
                if {*partition.isr} != {*partition.replicas}:
                    return f"the ISR of {name}-{index} is {sorted(partition.isr)}"
                if partition.leader_id not in self.machines:
                    return f"{name}-{index} has no leader"
        return ""

    def last_words(self, node_id: int) -> str:
        """Say how the node's last process ended by itself."""
        return self.machines[node_id].failure

    async def restore(self) -> None:
        """Do nothing: the machines end with the run."""


def _has_uncommitted(node: Node) -> bool:
    log = node.quorum._log  # noqa: SLF001 - a simulator looks where no caller may
    return log.end_offset > node.quorum.image.end_offset


def _proposes_an_isr(node: Node) -> bool:
    drivers = () if node.broker is None else node.broker.replicas.drivers.values()
    roles = [driver.partition.state.role for driver in drivers]
    return any(isinstance(role, Leader) and role.pending is not None for role in roles)


def _host(party: str) -> str:
    return CLIENTS_HOST if party == CLIENTS else host_of(int(party))


def _state_of(effect: Effect) -> LinkState:
    match effect:
        case Cut():
            return LinkState(holds=True)
        case Delay(min_us=min_us, spread_us=spread_us):
            return LinkState(min_us=min_us, spread_us=spread_us)
        case Rate(bytes_per_s=bytes_per_s):
            return LinkState(bytes_per_s=bytes_per_s)
        case Refuse():
            return LinkState(refuses=True)
        case Reset():
            return LinkState()
        case _:
            raise BackEndFailed(f"simulated machines have no rule like {effect}")
