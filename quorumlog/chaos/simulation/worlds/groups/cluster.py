"""The brokers as members of a group see them: where the coordinator is, what it has committed."""

from collections.abc import Callable
from typing import Final

from quorumlog.chaos.simulation.kernel.randomness import Rng
from quorumlog.chaos.simulation.worlds.brokers.broker_node import BrokerNode
from quorumlog.chaos.simulation.worlds.brokers.controller_node import ControllerNode
from quorumlog.chaos.simulation.worlds.groups.coordinator_host import CoordinatorHost, Offsets
from quorumlog.chaos.simulation.worlds.groups.oracle import Position
from quorumlog.wire.codec.identifiers import TopicPartition


class Cluster:
    """What members see of the brokers."""

    def __init__(
        self,
        at: TopicPartition,
        nodes: dict[int, BrokerNode],
        controller: ControllerNode,
        arrivals_us: Callable[[int, int], list[int]],
    ) -> None:
        """`arrivals_us(source, target)`: after how long a message arrives, if it does."""
        self.at: Final = at
        self.nodes: Final = nodes
        self._controller: Final = controller
        self.arrivals_us: Final = arrivals_us
        self.hosts: Final[dict[int, CoordinatorHost]] = {}

    def find_coordinator(self, rng: Rng) -> int | None:
        """Return the coordinator as some broker knows it, perhaps one that no longer is."""
        running = [node for node in self.nodes.values() if node.machine.is_up]
        image = rng.choice(running).replicas.image.partition(self.at) if running else None
        return None if image is None or image.leader_id not in self.hosts else image.leader_id

    def is_replaced(self, host: CoordinatorHost) -> bool:
        """Tell whether another leader has been elected, or the same one anew: it may not know."""
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
