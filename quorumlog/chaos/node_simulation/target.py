"""The back end of simulated machines: what a nemesis does to them, in virtual time."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from quorumlog.chaos.back_ends.back_end import NodeUnavailable, holders_of
from quorumlog.chaos.faults.fault import Operation
from quorumlog.chaos.node_simulation.machine import Machine
from quorumlog.metadata_quorum.image import ClusterImage

START_TIMEOUT_S: Final = 20.0
_POLL_S: Final = 0.01


class SimulatedMachines:
    """A back end on machines in this process. The best-informed node says who holds a role."""

    name = "simulated machines"
    operations: Final[frozenset[Operation]] = frozenset({"kill", "start", "pause", "resume"})

    def __init__(self, machines: Mapping[int, Machine]) -> None:
        self.machines: Final = machines

    @property
    def node_ids(self) -> tuple[int, ...]:
        """All nodes, whether they run or not."""
        return tuple(self.machines)

    async def running(self) -> tuple[int, ...]:
        """Return the nodes whose process exists now; a paused one counts."""
        return tuple(n for n, machine in self.machines.items() if machine.process is not None)

    async def perform(self, operation: Operation, node_ids: Sequence[int]) -> None:
        """Do the operation to all `node_ids` at this instant. Raises NodeUnavailable."""
        machines = [self.machines[node_id] for node_id in node_ids]
        match operation:
            case "kill":
                for machine in machines:
                    machine.kill()
            case "pause":
                for machine in machines:
                    machine.pause()
            case "resume":
                for machine in machines:
                    machine.resume()
            case "start":
                for machine in machines:
                    machine.start()
                for machine in machines:
                    await _until_ready(machine)

    async def holders(self, role: str, topic: str) -> Sequence[int]:
        """Return the nodes that hold the role, as the best-informed node sees it."""
        image = self.newest_image()
        if image is None:
            return []
        if role == "metadata-leader":
            return [image.controller_id]
        found = image.topics.get(topic)
        partitions = () if found is None else found.partitions
        return holders_of(role, ((one.leader_id, one.isr) for one in partitions))

    def newest_image(self) -> ClusterImage | None:
        """Return the newest committed metadata that a running node knows."""
        nodes = [machine.node for machine in self.machines.values() if machine.node is not None]
        images = [node.quorum.image for node in nodes]
        return max(images, key=lambda image: image.end_offset, default=None)

    def last_words(self, node_id: int) -> str:
        """Say how the node's last process ended by itself."""
        return self.machines[node_id].failure

    async def restore(self) -> None:
        """Do nothing: the machines end with the run."""


async def _until_ready(machine: Machine) -> None:
    loop = asyncio.get_running_loop()
    process, deadline_s = machine.process, loop.time() + START_TIMEOUT_S
    while machine.process is process and not machine.is_ready:
        if loop.time() > deadline_s:
            raise NodeUnavailable(f"node {machine.node_id} is not ready in {START_TIMEOUT_S:g} s")
        await asyncio.sleep(_POLL_S)
    if machine.process is not process:
        raise NodeUnavailable(f"node {machine.node_id} has ended: {machine.failure}")
