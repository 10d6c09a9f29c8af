"""The controller of the simulated brokers: the real decisions over a log in a list.

Every decision is committed at once. Each broker receives it over the network, after its own delay.
"""

from collections.abc import Callable, Sequence
from typing import Final

from quorumlog.chaos.simulation.kernel.randomness import Rng, seeded
from quorumlog.chaos.simulation.kernel.rules import check
from quorumlog.chaos.simulation.kernel.run import Environment
from quorumlog.chaos.simulation.worlds.brokers.oracle import Members, ReplicationOracle
from quorumlog.chaos.simulation.worlds.brokers.reassigning import Reassigning
from quorumlog.metadata_quorum.controller.controller import Controller
from quorumlog.metadata_quorum.controller.requests import (
    ControllerRequest,
    Decision,
    ElectLeaders,
)
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.metadata_quorum.image.records import (
    MetadataRecord,
    PartitionChange,
    RegisterBroker,
    RemoveTopic,
    Topic,
)
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset, TopicId, TopicPartition

CONTROLLER_ID: Final = 0  # on the network; it is no machine and never fails
TICK_US: Final = 50_000
SETTINGS: Final = ControllerSettings(broker_session_timeout_ms=1_500, default_replication_factor=3)


def image_of(replay: ClusterReplay) -> ClusterImage:
    """Return the newest image."""
    _, image = replay.publish(
        end_offset=replay.end_offset, epoch=Epoch(1), controller_id=BrokerId(CONTROLLER_ID)
    )
    return image


class ControllerNode:
    """Decides the requests of brokers, and fences brokers whose session expired."""

    def __init__(
        self,
        environment: Environment,
        oracle: ReplicationOracle,
        *,
        controller_class: type[Controller],
        committed: Callable[[], None],
    ) -> None:
        """Call `committed` after every decision that wrote records."""
        self.records: Final[list[MetadataRecord]] = []  # committed, by offset
        self.controller: Controller
        self.elections = self.takeovers = 0
        self._environment: Final = environment
        self._oracle: Final = oracle
        self._controller_class: Final = controller_class
        self._committed: Final = committed
        self._draw: Final = seeded("controller", environment.seed).randbytes
        self._leaders: Final[dict[TopicPartition, int]] = {}
        self._reassigning: Final = Reassigning()
        self._take_over()

    def now_ms(self) -> int:
        """Return the controller's monotonic time."""
        return self._environment.timeline.now_us // 1000

    def _take_over(self) -> None:
        self.takeovers += 1
        replay = ClusterReplay(ClusterImage())
        for offset, record in enumerate(self.records):
            replay.apply(Offset(offset), record)
        self.controller = self._controller_class(
            image_of(replay), SETTINGS, random_bytes=self._draw, now_ms=self.now_ms()
        )

    def fail_over(self) -> None:
        """Let another controller take over, then elect every eligible preferred leader."""
        self._take_over()
        self._enact(self.controller.decide_activation())
        self._elect_rest()
        cluster = self.controller.cluster
        places = [
            (name, index)
            for name in cluster.topic_names()
            for index in range(cluster.partition_count(name))
        ]
        self.ask(ElectLeaders(partitions=tuple(places), unclean=False))

    def ask(self, request: ControllerRequest) -> object:
        """Decide a request and commit the decision."""
        while True:
            decision = self.controller.decide(
                request, now_ms=self.now_ms(), base_offset=Offset(len(self.records))
            )
            self._enact(decision)
            if not decision.goes_on:
                self._elect_rest()
                return decision.response

    def _elect_rest(self) -> None:
        while self.controller.has_elections:
            self._enact(self.controller.decide_elections())

    def reassign(self, rng: Rng, broker_ids: Sequence[int], *, least: int) -> None:
        """Begin to reassign a partition at random, or cancel its reassignment."""
        cluster = self.controller.cluster
        partitions = {
            TopicPartition(name, index): partition
            for name in cluster.topic_names()
            for index, partition in enumerate(cluster.partitions(name))
        }
        if partitions:
            request = self._reassigning.draw(rng, partitions, broker_ids, least=least)
            self._reassigning.answered(self.ask(request))

    def suspect(self, broker_id: int) -> None:
        """Treat a broker's process as dead, although it lives."""
        broker = self.controller.cluster.brokers.get(BrokerId(broker_id))
        if broker is not None:
            self._enact(
                self.controller.decide_process_died(
                    broker.broker_id, broker_epoch=broker.broker_epoch, now_ms=self.now_ms()
                )
            )

    def tick(self) -> None:
        """Fence the brokers whose session has expired; repeat every TICK_US."""
        due_ms = self.controller.next_expiry_ms()
        while due_ms is not None and due_ms <= self.now_ms():
            decision = self.controller.decide_expiry(self.now_ms())
            check(decision.response is not None, "controller: a silent broker stays unfenced")
            self._enact(decision)
            due_ms = self.controller.next_expiry_ms()
        self._environment.timeline.push(TICK_US, self.tick)

    def _enact(self, decision: Decision[object]) -> None:
        for record in decision.records:
            if isinstance(record, RemoveTopic):
                self._note_deletion(record.topic_id)
            self.controller.apply(Offset(len(self.records)), record)
            self.records.append(record)
            if isinstance(record, PartitionChange) and record.is_recovering:
                self._note_unclean_election(record)
        if not decision.records:
            return
        for record in decision.records:
            if isinstance(record, RegisterBroker):
                self._oracle.registered(record.broker_id)
            elif isinstance(record, Topic):
                self._oracle.topics.create(record.name, record.topic_id)
        broken = self.controller.check_invariants()
        check(not broken, f"controller: {broken}")
        self._show()
        self._committed()

    def _note_deletion(self, topic_id: TopicId) -> None:
        cluster, place_name = self.controller.cluster, self._oracle.topics.delete(topic_id)
        name = cluster.topic_name(topic_id) or place_name
        for index in range(cluster.partition_count(name)):
            self._oracle.deleted(TopicPartition(place_name, index))
            self._reassigning.forget(TopicPartition(name, index))

    def _note_unclean_election(self, record: PartitionChange) -> None:
        cluster = self.controller.cluster
        name = cluster.topic_name(record.topic_id)
        partition = None if name is None else cluster.partition(name, record.partition_id)
        if name is not None and partition is not None:
            at = TopicPartition(name, record.partition_id)
            at = self._oracle.topics.place_of(at, record.topic_id)
            self._oracle.elected_uncleanly(at, partition.leader_id, partition.leader_epoch)

    def _show(self) -> None:
        cluster = self.controller.cluster
        for name in cluster.topic_names():
            topic_id = cluster.topic_id(name)
            for index, partition in enumerate(cluster.partitions(name)):
                at = place = TopicPartition(name, index)
                if topic_id is not None:
                    place = self._oracle.topics.place_of(at, topic_id)
                self._reassigning.show(at, partition)
                members = Members((*partition.isr, *partition.elr), partition.leader_epoch)
                if self._oracle.members.get(place) != members:
                    self._oracle.elected(place, members)
                if partition.leader_id >= 0 and self._leaders.get(place) != partition.leader_epoch:
                    self._leaders[place] = partition.leader_epoch
                    self.elections += 1
