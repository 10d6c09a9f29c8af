"""A check that an index of partitions agrees with the partitions."""

from collections.abc import Iterable

from quorumlog.metadata_quorum.image.model import ClusterImage
from quorumlog.metadata_quorum.image.partitions_by_broker import PartitionsByBroker, Place
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId, PartitionIndex


def check_index(
    by_broker: PartitionsByBroker, image: ClusterImage, broker_ids: Iterable[BrokerId]
) -> None:
    """Check that the index agrees with the partitions."""
    for broker_id in (NO_LEADER, *broker_ids):
        wanted: list[set[Place]] = [set(), set(), set()]
        for topic in image.topics.values():
            for index, partition in enumerate(topic.partitions):
                at = Place(topic.topic_id, PartitionIndex(index))
                last = {partition.last_known_leader} - {NO_LEADER, *partition.isr}
                eligible = {*partition.elr, *partition.last_known_elr} | last
                roles = ({*partition.isr}, eligible, {partition.leader_id})
                for places, members in zip(wanted, roles, strict=True):
                    if broker_id in members:
                        places.add(at)
        kinds = (by_broker.in_sync, by_broker.eligible, by_broker.leading)
        assert [{*kind.of(broker_id)} for kind in kinds] == wanted
        assert [kind.has_any(broker_id) for kind in kinds] == [*map(bool, wanted)]
