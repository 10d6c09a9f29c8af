"""Brokers under a real controller, and the clients of a workload.

In the calm at the end every partition must have a leader and a full ISR, accept records again, and
have equal logs on all replicas.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from quorumlog.chaos.faults.admin import Reassign
from quorumlog.chaos.faults.quorum import FalseNotice, Resign
from quorumlog.chaos.mutants.parts import REAL_PARTS, Parts
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
from quorumlog.chaos.simulation.worlds.brokers.deleting import Deleting
from quorumlog.chaos.simulation.worlds.brokers.oracle import ReplicationOracle
from quorumlog.metadata_quorum.controller.requests import CreateTopics
from quorumlog.metadata_quorum.controller_client import NewTopic
from quorumlog.settings.kinds import text_of
from quorumlog.wire.codec.identifiers import BrokerId, TopicPartition

SET_UP_US: Final = 50_000


class Client(Protocol):
    """A client of the brokers: a producer, a member of a group."""

    @property
    def acknowledged(self) -> int:
        """Return the number of acknowledgements so far."""

    def run(self) -> None:
        """Begin to write."""

    def stop(self) -> None:
        """Write no more."""

    def describe(self) -> str:
        """Return the state, for the report of a world that does not settle."""


class Workload(Protocol):
    """The clients of the brokers, and their final checks.

    topic: the topic that the brokers hold, perhaps beside others.
    volatile: the topic that is deleted and re-created, or None.
    machine_ids: the machines of the clients; the brokers have the numbers from 1.
    """

    topic: str
    volatile: str | None
    machine_ids: tuple[int, ...]

    def clients(self, brokers: "BrokersWorld") -> Sequence[Client]:
        """Return the clients, and set up their parts of the brokers. Called once."""

    def awaited(self) -> str:
        """Check the clients' results, when all writes have ended and all logs are equal.

        Return the condition that does not hold yet, to call again a little later, or "". Raises
        Violation.
        """


class BrokersWorld:
    """A World of brokers, a controller and the clients of a workload."""

    def __init__(
        self,
        schedule: Schedule,
        workload: Workload,
        parts: Parts = REAL_PARTS,
        *,
        beside: Sequence[TopicPartition] = (),
    ) -> None:
        """`beside`: all partitions of other topics on the brokers."""
        options = Options(schedule)
        node_ids = tuple(range(1, options.number("nodes") + 1))
        self.left_down_max: Final = 0
        self.environment: Final = Environment(
            schedule.seed,
            (*node_ids, *workload.machine_ids),
            others_on_network=(CONTROLLER_ID,),
        )
        self._is_unclean: Final = schedule.options.get("unclean") is True
        self._flush_acks: Final = schedule.options.get("flush_acks") is True
        disks = {node_id: self.environment.machines[node_id].disk for node_id in node_ids}
        self.oracle: Final = ReplicationOracle(
            may_lose=self._is_unclean, disks=disks if self._flush_acks else None
        )
        self.nodes: Final[dict[int, BrokerNode]] = {}
        self.controller: Final = ControllerNode(
            self.environment,
            self.oracle,
            controller_class=parts.controller,
            committed=self._tell_brokers,
        )
        self._min_insync_replicas: Final = options.number("min_insync_replicas")
        self._workload: Final = workload
        self.places: Final = [
            *(TopicPartition(workload.topic, at) for at in range(options.number("partitions"))),
            *beside,
        ]
        for node_id in node_ids:
            machine = self.environment.machines[node_id]
            machine.process = self.nodes[node_id] = BrokerNode(
                machine,
                environment=self.environment,
                controller=self.controller,
                oracle=self.oracle,
                peers=self.nodes,
                parts=parts,
                segment_bytes=options.number("segment_bytes"),
                fetch_bytes_max=options.number("fetch_bytes_max"),
                flush_acks=self._flush_acks,
            )
        self._clients: Final = workload.clients(self)
        self._acknowledged_before_calm: dict[int, int] = {}
        self._awaited = ""  # the condition that the last `has_settled` missed

    @property
    def elections(self) -> int:
        """How many leaders were elected so far."""
        return self.controller.elections

    def committed(self) -> int:
        """Return how many records are committed."""
        return sum(map(len, self.oracle.committed.values()))

    def _tell_brokers(self) -> None:
        end = len(self.controller.records)
        for node_id, node in self.nodes.items():
            for after_us in self.environment.network.arrivals_us(CONTROLLER_ID, node_id):
                self.environment.timeline.push(after_us, node.take, node.learn, end)

    def begin(self) -> None:
        """Create the topics as soon as all brokers are unfenced; then start the clients."""
        self.controller.tick()
        self._set_up()

    def _set_up(self) -> None:
        unfenced = [b for b in self.controller.controller.cluster.brokers.values() if not b.fenced]
        if len(unfenced) < len(self.nodes):
            self.environment.timeline.push(SET_UP_US, self._set_up)
            return
        self.controller.ask(CreateTopics(topics=tuple(self._topics())))
        if self._workload.volatile is not None:
            self._deleting(self._workload.volatile).run()
        for client in self._clients:
            client.run()

    def _deleting(self, name: str) -> Deleting:
        environment = self.environment
        rng = seeded("deleting", environment.seed)
        [topic] = [one for one in self._topics() if one.name == name]
        return Deleting(environment, self.controller, rng, topic)

    def _topics(self) -> Iterator[NewTopic]:
        """Yield the topics to create; each partition begins with another leader."""
        order = [BrokerId(node_id) for node_id in self.nodes]
        assignments: dict[str, dict[int, tuple[BrokerId, ...]]] = {}
        for number, at in enumerate(self.places):
            shift = number % len(order)
            of_topic = assignments.setdefault(at.topic, {})
            of_topic[at.partition] = (*order[shift:], *order[:shift])
        for name, of_topic in assignments.items():
            yield NewTopic(
                name=name,
                assignments=of_topic,
                configs={
                    "min.insync.replicas": str(self._min_insync_replicas),
                    "unclean.leader.election.enable": text_of(self._is_unclean),
                },
            )

    # --- faults ---

    def members_of(self, role: str) -> list[int]:
        """Return the leader, or a follower in the ISR, of the first partition."""
        partition = self.controller.controller.cluster.partition(*self.places[0])
        if partition is None:
            return []
        if role == "partition-leader":
            return [int(partition.leader_id)] if partition.leader_id in self.nodes else []
        if role == "isr-follower":
            return [int(one) for one in partition.isr if one != partition.leader_id][:1]
        return []

    def may_lose_power(self, machine: Machine) -> bool:
        """Return whether other brokers hold all committed records, so that none may be lost.

        A broker that is killed leaves the ISR, and the ELR with it, as long as the ISR has
        min.insync.replicas members. So fewer than those may have lost records while the metadata
        still names them: else they could be the only ones left. Where one replica may commit, only
        a broker outside ISR and ELR loses its power. With `log.flush.acks` every broker may: the
        committed records are on the disks.
        """
        if self._flush_acks:
            return True
        node_id, lossy = machine.node_id, self.oracle.lossy
        concerned = [one.holders for one in self.oracle.members.values() if node_id in one.holders]
        if node_id in lossy or not concerned:
            return True
        would_be_lossy = lossy | {node_id}
        return all(
            {*holders} - would_be_lossy
            and len({*holders} & would_be_lossy) < self._min_insync_replicas
            for holders in concerned
        )

    def inflict(self, action: Action, machine: Machine) -> None:
        """Fence a live broker, let another controller take over, or reassign a partition."""
        match action.fault:
            case FalseNotice():
                self.controller.suspect(machine.node_id)
            case Resign():
                self.controller.fail_over()
            case Reassign():
                rng = seeded(f"reassign {self.environment.seed}", action.t_us)
                self.controller.reassign(rng, [*self.nodes], least=self._min_insync_replicas)
            case _:
                raise ValueError(f"the brokers' worlds have no fault {action.fault.name}")

    # --- calm ---

    def calm_down(self) -> None:
        """Record the number of acknowledgements: it must grow in the calm."""
        for index, client in enumerate(self._clients):
            self._acknowledged_before_calm[index] = client.acknowledged

    def has_settled(self) -> bool:
        """Return whether all is in sync and served; once it is, stop the clients and compare."""
        self._awaited = self._find_awaited()
        return not self._awaited

    def _find_awaited(self) -> str:
        for at in self.places:
            if not self._is_whole(at):
                return f"{at} to have all replicas in sync"
        for index, client in enumerate(self._clients):
            if client.acknowledged <= self._acknowledged_before_calm[index]:
                return f"another acknowledgement to client {index}: {client.describe()}"
            client.stop()
        for at in self.places:
            if not self._is_alike(at):
                return f"the logs of {at} to be equal"
        self.oracle.finish()
        return self._workload.awaited()

    def _is_whole(self, at: TopicPartition) -> bool:
        """Return whether all its replicas are in sync, and no reassignment is under way."""
        partition = self.controller.controller.cluster.partition(*at)
        if partition is None or partition.is_reassigned:
            return False
        return {*partition.isr} == {*partition.replicas}

    def _is_alike(self, at: TopicPartition) -> bool:
        """Return whether exactly its replicas have a log, with all committed records."""
        cluster = self.controller.controller.cluster
        partition, topic_id = cluster.partition(*at), cluster.topic_id(at.topic)
        holding = {node_id for node_id, node in self.nodes.items() if at in node.replicas.drivers}
        if partition is None or topic_id is None or holding != {*partition.replicas}:
            return False
        end = len(self.oracle.committed[self.oracle.topics.place_of(at, topic_id)])
        for node_id in holding:
            driver = self.nodes[node_id].replicas.drivers[at]
            if driver.topic_id != topic_id:
                return False
            if not driver.partition.state.high_watermark == end == driver.log.log_end_offset:
                return False
        return True

    def describe(self) -> str:
        """Return the awaited condition, and the metadata and logs of every partition."""
        cluster = self.controller.controller.cluster
        shown = [f"waits for {self._awaited}"]
        for at in self.places:
            ends = {node_id: len(self.oracle.logs[node_id, at]) for node_id in self.nodes}
            shown.append(
                f"{at} {cluster.partition(*at)} ends {ends}, committed "
                f"{len(self.oracle.committed[at])}"
            )
        shown.append(f"acknowledged {[client.acknowledged for client in self._clients]}")
        return "; ".join(shown)
