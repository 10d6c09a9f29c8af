"""Brokers under a real controller, and producers that write to all partitions.

In the calm at the end every partition must have a leader and a full ISR, accept records again, and
have equal logs on all replicas.
"""

from typing import Final

from quorumlog.chaos.faults.leadership import FalseNotice, Resign
from quorumlog.chaos.schedule import Action, Schedule
from quorumlog.chaos.simulation.kernel.machine import Machine
from quorumlog.chaos.simulation.kernel.options import Options
from quorumlog.chaos.simulation.kernel.randomness import seeded
from quorumlog.chaos.simulation.kernel.run import Environment
from quorumlog.chaos.simulation.worlds.brokers.broker_node import BrokerNode
from quorumlog.chaos.simulation.worlds.brokers.controller_node import (
    CONTROLLER_ID,
    ControllerNode,
)
from quorumlog.chaos.simulation.worlds.brokers.mutants import BrokenRules
from quorumlog.chaos.simulation.worlds.brokers.oracle import ReplicationOracle
from quorumlog.chaos.simulation.worlds.brokers.producers import Producer
from quorumlog.metadata_quorum.controller.requests import CreateTopics
from quorumlog.metadata_quorum.controller_client import NewTopic
from quorumlog.wire.codec.identifiers import BrokerId, TopicPartition

SET_UP_US: Final = 50_000
TOPIC: Final = "records"


class BrokersWorld:
    """A World."""

    def __init__(
        self,
        schedule: Schedule,
        rules: BrokenRules | None = None,
    ) -> None:
        options, rules = Options(schedule), rules or BrokenRules()
        node_ids = tuple(range(1, options.number("nodes") + 1))
        self.left_down_max: Final = 0
        self.environment: Final = Environment(
            schedule.seed, node_ids, others_on_network=(CONTROLLER_ID,)
        )
        self.oracle: Final = ReplicationOracle()
        self.nodes: Final[dict[int, BrokerNode]] = {}
        self.controller: Final = ControllerNode(
            self.environment,
            self.oracle,
            controller_class=rules.controller,
            committed=self._tell_brokers,
        )
        self._min_insync_replicas: Final = options.number("min_insync_replicas")
        self._places: Final = [
            TopicPartition(TOPIC, index) for index in range(options.number("partitions"))
        ]
        for node_id, machine in self.environment.machines.items():
            machine.process = self.nodes[node_id] = BrokerNode(
                machine,
                environment=self.environment,
                controller=self.controller,
                oracle=self.oracle,
                peers=self.nodes,
                rules=rules.partition,
                segment_bytes=options.number("segment_bytes"),
                fetch_bytes_max=options.number("fetch_bytes_max"),
            )
        self._producers: Final = [
            Producer(
                at,
                self.nodes,
                environment=self.environment,
                oracle=self.oracle,
                rng=seeded(f"producer {at}", schedule.seed),
                every_us=options.number("produce_every_us"),
            )
            for at in self._places
        ]
        self._acknowledged_before_calm: dict[int, int] = {}

    @property
    def elections(self) -> int:
        """How many leaders were elected so far."""
        return self.controller.elections

    def committed(self) -> int:
        """Return how many records are committed."""
        return sum(map(len, self.oracle.committed.values()))

    def _tell_brokers(self) -> None:
        end = len(self.controller.history.records)
        for node_id, node in self.nodes.items():
            for after_us in self.environment.network.arrivals_us(CONTROLLER_ID, node_id):
                self.environment.timeline.push(after_us, node.take, node.learn, end)

    def begin(self) -> None:
        """Create the topic as soon as all brokers are there; then let the producers write."""
        self.controller.tick()
        self._set_up()

    def _set_up(self) -> None:
        unfenced = [b for b in self.controller.controller.cluster.brokers.values() if not b.fenced]
        if len(unfenced) < len(self.nodes):
            self.environment.timeline.push(SET_UP_US, self._set_up)
            return
        order = [BrokerId(node_id) for node_id in self.nodes]
        shifts = {at.partition: at.partition % len(order) for at in self._places}
        topic = NewTopic(
            name=TOPIC,
            assignments={
                index: (*order[shift:], *order[:shift]) for index, shift in shifts.items()
            },
            configs={"min.insync.replicas": str(self._min_insync_replicas)},
        )
        self.controller.ask(CreateTopics(topics=(topic,)))
        for producer in self._producers:
            producer.run()

    # --- faults ---

    def members_of(self, role: str) -> list[int]:
        """Return the leader, or a follower in the ISR, of the first partition."""
        partition = self.controller.controller.cluster.partition(TOPIC, 0)
        if partition is None:
            return []
        if role == "partition-leader":
            return [int(partition.leader_id)] if partition.leader_id in self.nodes else []
        if role == "isr-follower":
            return [int(one) for one in partition.isr if one != partition.leader_id][:1]
        return []

    def may_lose_power(self, machine: Machine) -> bool:
        """Tell whether others hold what is committed: else it would be gone by right.

        Where one replica may commit, the others may leave the ISR before this one is known to
        have lost something. There only a broker outside ISR and ELR loses its power.
        """
        node_id, lossy = machine.node_id, self.oracle.lossy
        concerned = [one.holders for one in self.oracle.members.values() if node_id in one.holders]
        if node_id in lossy or not concerned:
            return True
        is_shared = all({*holders} - lossy - {node_id} for holders in concerned)
        return self._min_insync_replicas > 1 and is_shared

    def inflict(self, action: Action, machine: Machine) -> None:
        """Fence a broker that lives, or let another controller take over and move leaders."""
        match action.fault:
            case FalseNotice():
                self.controller.suspect(machine.node_id)
            case Resign():
                self.controller.fail_over()
            case _:
                raise ValueError(f"the brokers' worlds have no fault {action.fault.name}")

    # --- calm ---

    def calm_down(self) -> None:
        """Remember what is acknowledged: it must become more."""
        for index, producer in enumerate(self._producers):
            self._acknowledged_before_calm[index] = producer.acknowledged

    def has_settled(self) -> bool:
        """Tell whether all partitions are whole and served, then stop writing and compare."""
        cluster = self.controller.controller.cluster
        for at in self._places:
            partition = cluster.partition(*at)
            if partition is None or {*partition.isr} != {*partition.replicas}:
                return False
        for index, producer in enumerate(self._producers):
            if producer.acknowledged <= self._acknowledged_before_calm[index]:
                return False
            producer.stop()
        for at in self._places:
            for node in self.nodes.values():
                driver = node.replicas.drivers[at]
                end = len(self.oracle.committed[at])
                if not driver.partition.state.high_watermark == end == driver.log.log_end_offset:
                    return False
        self.oracle.finish()
        return True

    def describe(self) -> str:
        """Return the metadata and the logs of every partition."""
        cluster = self.controller.controller.cluster
        shown = []
        for at, producer in zip(self._places, self._producers, strict=True):
            ends = {node_id: len(self.oracle.logs[node_id, at]) for node_id in self.nodes}
            shown.append(
                f"{at} {cluster.partition(*at)} ends {ends}, committed "
                f"{len(self.oracle.committed[at])}, acknowledged {producer.acknowledged}"
            )
        return "; ".join(shown)
