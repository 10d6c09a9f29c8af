"""Planted bugs in administrators' requests: moves, throttles, deletions, growth and more.

Whole nodes alone can run them: no simulated world has an administrator of brokers.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, cast

from quorumlog.broker.partitions.core import events
from quorumlog.broker.partitions.core.effects import Effect
from quorumlog.broker.partitions.core.followership import Followership
from quorumlog.broker.partitions.core.replication_throttle import ReplicationThrottle
from quorumlog.chaos.mutants.mutant import Mutants
from quorumlog.metadata_quorum.controller.controller import Controller
from quorumlog.metadata_quorum.controller.decision import Decision
from quorumlog.metadata_quorum.controller.partition_changes import (
    Assignment,
    Located,
    PartitionChanges,
)
from quorumlog.metadata_quorum.controller_requests import (
    ControllerRequest,
    CreatePartitions,
    CreateTopics,
)
from quorumlog.metadata_quorum.image import BrokerImage, ClusterImage
from quorumlog.metadata_quorum.image.records import (
    FeatureLevel,
    MetadataRecord,
    PartitionChange,
    UnregisterBroker,
)
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId, Offset, TopicPartition

# ruff: noqa: ARG002 - a mutant has the signature of the replaced method

MOVES: Final = Mutants("replication")
"""Bugs in moves, throttles and deletions."""
CHURN: Final = Mutants("controller")
"""Bugs in an administrator's other requests."""
PARTITIONS_AT_FIRST: Final = 2
"""How many partitions a run gives its topic: any further one was added."""


@MOVES.breaks("a reassignment drops the old replicas while no new replica is in sync")
class _CompletesAtOnce(PartitionChanges):
    def completed(self, assignment: Assignment, isr: tuple[BrokerId, ...]) -> Assignment:
        return Assignment(assignment.target)


@MOVES.breaks("a replica removed by a reassignment stays in the ISR")
class _KeepsTheRemovedInTheIsr(PartitionChanges):
    def change(
        self, located: Located, target_isr: tuple[BrokerId, ...], *others: Any, **options: Any
    ) -> PartitionChange | None:
        change = super().change(located, target_isr, *others, **options)
        if change is None or change.replicas is None:
            return change
        return replace(change, isr=target_isr)


@MOVES.breaks("a throttle is never released: its rate stays in force after its removal")
class _NeverReleasesThrottles(ReplicationThrottle):
    _least_rate: int | None = None

    def _rate_by(self, image: ClusterImage) -> int:
        rate = super()._rate_by(image)
        self._least_rate = rate if self._least_rate is None else min(rate, self._least_rate)
        return self._least_rate

    def _is_throttled(self, at: TopicPartition, follower_id: BrokerId) -> bool:
        partition = self._image().partition(at)
        return partition is not None and follower_id not in partition.isr


@MOVES.breaks("a follower refuses the batch that contains its leader's log start offset (KIP-107)")
class _TakesNoBatchThatBeganEarlier(Followership):
    def batch_began_earlier(self, event: events.BatchBeganEarlier) -> Sequence[Effect]:
        return ()


@MOVES.breaks("a throttle also delays followers in the ISR")
class _ThrottlesInSyncReplicas(ReplicationThrottle):
    def _is_throttled(self, at: TopicPartition, follower_id: BrokerId) -> bool:
        topic = self._image().topics.get(at.topic)
        return topic is not None and self._replicas_name in topic.configs


@CHURN.breaks("a partition added to a topic gets no leader when its replicas return")
class _LeavesGrownPartitionsLeaderless(PartitionChanges):
    def change(self, located: Located, *others: Any, **options: Any) -> PartitionChange | None:
        is_grown = located.index >= PARTITIONS_AT_FIRST and not located.topic_name.startswith("__")
        if located.partition.leader_id == NO_LEADER and is_grown:
            return None
        return super().change(located, *others, **options)


@CHURN.breaks("an unregistered broker gets replicas of new partitions")
class _PlacesOnTheUnregistered(Controller):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._forgotten: dict[BrokerId, BrokerImage] = {}

    def apply(self, offset: Offset, record: MetadataRecord) -> None:
        if isinstance(record, UnregisterBroker):
            self._forgotten[record.broker_id] = self.cluster.brokers[record.broker_id]
        super().apply(offset, record)

    def decide(self, request: ControllerRequest, **at: Any) -> Decision[object]:
        brokers = cast("dict[BrokerId, BrokerImage]", self.cluster.brokers)
        if not isinstance(request, CreateTopics | CreatePartitions):
            return super().decide(request, **at)
        added = {one: image for one, image in self._forgotten.items() if one not in brokers}
        brokers.update(added)
        try:
            return super().decide(request, **at)
        finally:
            for broker_id in added:
                del brokers[broker_id]


@CHURN.breaks("a feature level is in force on the controller's node before it is committed")
class _PublishesLevelsAtOnce(Controller):
    def apply(self, offset: Offset, record: MetadataRecord) -> None:
        shared = self.cluster.features  # with the image that this node shows
        super().apply(offset, record)
        if isinstance(record, FeatureLevel):
            cast("dict[str, int]", shared)[record.name] = record.level
            self.cluster.features = shared


@CHURN.breaks("a large creation is committed in slices, visible before the last slice")
class _CreatesInParts(Controller):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # id of a request -> its later slice. It keeps the request, so that its id stays unique.
        self._rest: dict[int, tuple[ControllerRequest, Decision[object]]] = {}

    def decide(self, request: ControllerRequest, **at: Any) -> Decision[object]:
        _, rest = self._rest.pop(id(request), (request, None))
        if rest is not None:
            return rest
        decision = super().decide(request, **at)
        first, later = decision.records[:2], decision.records[2:]  # a topic and one partition
        if not isinstance(request, CreateTopics) or not later:
            return decision
        self._rest[id(request)] = request, replace(decision, records=later)
        return replace(decision, records=first, goes_on=True)
