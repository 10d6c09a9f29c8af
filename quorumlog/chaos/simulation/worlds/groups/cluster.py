"""The brokers as group members reach them: the coordinator and its committed offsets."""

from collections.abc import Callable
from typing import Final

from quorumlog.chaos.simulation.kernel.randomness import Rng
from quorumlog.chaos.simulation.worlds.brokers.broker_node import BrokerNode
from quorumlog.chaos.simulation.worlds.brokers.controller_node import ControllerNode
from quorumlog.chaos.simulation.worlds.groups.coordinator_host import CoordinatorHost, Offsets
from quorumlog.chaos.simulation.worlds.groups.oracle import Position
from quorumlog.wire.codec.identifiers import TopicPartition


class Cluster:
    """The brokers and coordinators that members send requests to."""

    def __init__(
        self,
        at: TopicPartition,
        nodes: dict[int, BrokerNode],
        controller: ControllerNode,
        arrivals_us: Callable[[int, int], list[int]],
    ) -> None:
        """`arrivals_us(source, target)`: the delays of the copies of a message, if any arrive."""
        self.at: Final = at
        self.nodes: Final = nodes
        self._controller: Final = controller
        self.arrivals_us: Final = arrivals_us
        self.hosts: Final[dict[int, CoordinatorHost]] = {}

    def find_coordinator(self, rng: Rng) -> int | None:
        """Return the coordinator in the image of some broker; the image may be outdated."""
        running = [node for node in self.nodes.values() if node.machine.is_up]
        image = rng.choice(running).replicas.image.partition(self.at) if running else None
        return None if image is None or image.leader_id not in self.hosts else image.leader_id

    def is_replaced(self, host: CoordinatorHost) -> bool:
        """Return whether the leader epoch of `host` is over; `host` may not have noticed."""
        partition = self._controller.controller.cluster.partition(*self.at)
        return partition is None or (partition.leader_id, partition.leader_epoch) != (
            host.node_id,
            host.leader_epoch,
        )


def positions_of(offsets: Offsets) -> dict[int, Position]:
    """Return the committed offsets by partition."""
    return {
        where.partition: Position(committed.offset, committed.metadata)
        for where, committed in offsets.items()
        if committed is not None
    }


def positions_by_name(offsets: Offsets) -> dict[TopicPartition, Position]:
    """Return the committed offsets by topic and partition."""
    return {
        where: Position(committed.offset, committed.metadata)
        for where, committed in offsets.items()
        if committed is not None
    }
