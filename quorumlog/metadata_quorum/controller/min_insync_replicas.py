"""The effective min.insync.replicas of a partition, and the records that change it (KIP-966).

From LEVEL_OF_CLUSTER_MIN_ISR on, the cluster has one number for all topics without their own, as
in Kafka where ELRs are on. Below that level, each leader uses the number in its configuration file.
Leader and controller must always use the same number. So one batch changes the number, clears ELRs
and voids the leaders' ISR proposals: `around_topic`, `around_cluster`.
docs/decisions/0010-isr-proposals.md
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from quorumlog.metadata_quorum.controller.refusals import check_records
from quorumlog.metadata_quorum.controller_client import BrokerRegistration
from quorumlog.metadata_quorum.image.features import LEVEL_OF_CLUSTER_MIN_ISR, METADATA_FEATURE
from quorumlog.metadata_quorum.image.model import PartitionImage
from quorumlog.metadata_quorum.image.records import (
    BROKER_RESOURCE,
    Config,
    FeatureLevel,
    MetadataRecord,
    PartitionChange,
)
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.settings.topics import TopicConfig
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId, PartitionIndex, TopicId

_SETTING: Final = TopicConfig.min_insync_replicas
SERVER_NAME: Final = _SETTING.server
TOPIC_NAME: Final = _SETTING.name


class Around(NamedTuple):
    """The partition changes to write before and after a new number, in one batch with it.

    A replica that leaves an ISR below the number goes to the ELR, because the leader then commits
    no record. Before the new number, the ELRs are cleared: the leader commits under a smaller one.
    After it, the partition epochs rise: a proposal granted from then on carries an epoch that its
    leader replayed together with the new number, so leader and controller use the same number.
    A partition without a leader stays as it is: no record was committed since.

    # DEVIATION: Kafka clears the ELRs and leaves the epochs as they are.
    # docs/decisions/0010-isr-proposals.md
    """

    before: list[PartitionChange]
    after: list[PartitionChange]


def of_cluster(cluster: ClusterReplay) -> int | None:
    """Return the cluster's number for topics without their own; None: each leader has one."""
    text = cluster.broker_configs("").get(SERVER_NAME)
    return None if text is None else int(text)


def of_leader(cluster: ClusterReplay, leader_id: BrokerId) -> int:
    """Return the number that a leader uses for topics without their own."""
    number = of_cluster(cluster)
    return cluster.brokers[leader_id].min_insync_replicas if number is None else number


def of_topic(cluster: ClusterReplay, name: str, leader_id: BrokerId) -> int:
    """Return the number that the leader of a partition of this topic uses."""
    config = TopicConfig(cluster.configs(name), {SERVER_NAME: str(of_leader(cluster, leader_id))})
    return config.min_insync_replicas


def around_topic(cluster: ClusterReplay, name: str, topic_id: TopicId) -> Around:
    """Return the partition changes to write around a new number of one topic."""
    return _around((topic_id, index, one) for index, one in _led(cluster, name))


def around_cluster(cluster: ClusterReplay, number: int | None) -> Around:
    """Return the partition changes to write around a new number of the cluster.

    `number` None: the cluster loses its number. A partition whose leader uses the same number
    before and after stays as it is. Reads all partitions. Raises TopicRefused if the changes are
    too many for a batch.
    """
    return _around(_led_by_another_number(cluster, number))


def records_of_new_cluster(
    levels: Sequence[FeatureLevel], request: BrokerRegistration
) -> tuple[MetadataRecord, ...]:
    """Return the first records of a new cluster: its levels, and the number of its first broker.

    Without `levels` the cluster is not new, and has no such records.

    # DEVIATION: Kafka takes the active controller's own number.
    # docs/decisions/0010-isr-proposals.md
    """
    has_number = any(
        one.name == METADATA_FEATURE and one.level >= LEVEL_OF_CLUSTER_MIN_ISR for one in levels
    )
    return (*levels, _record_of(request.min_insync_replicas)) if has_number else tuple(levels)


def around_level(cluster: ClusterReplay, record: FeatureLevel) -> list[MetadataRecord]:
    """Return the records of a new level, which may set the cluster's number or remove it.

    The first number is the greatest in the brokers' files, so that no leader commits with fewer
    replicas than its file requires. Raises TopicRefused.
    """
    now = cluster.feature_level(METADATA_FEATURE) >= LEVEL_OF_CLUSTER_MIN_ISR
    then = record.level >= LEVEL_OF_CLUSTER_MIN_ISR
    if record.name != METADATA_FEATURE or now is then:
        return [record]
    numbers = [broker.min_insync_replicas for broker in cluster.brokers.values()]
    number = max(numbers, default=int(_SETTING.default)) if then else None
    around = around_cluster(cluster, number)
    records: list[MetadataRecord] = [*around.before, record, _record_of(number), *around.after]
    check_records(len(records))
    return records


def _record_of(number: int | None) -> Config:
    """Return the record of the cluster's number; None removes it."""
    return Config(
        resource_type=BROKER_RESOURCE,
        resource_name="",
        name=SERVER_NAME,
        value=None if number is None else str(number),
    )


def _led(cluster: ClusterReplay, name: str) -> Iterator[tuple[PartitionIndex, PartitionImage]]:
    for index, partition in enumerate(cluster.partitions(name)):
        if partition.leader_id != NO_LEADER:
            yield PartitionIndex(index), partition


def _led_by_another_number(
    cluster: ClusterReplay, number: int | None
) -> Iterator[tuple[TopicId, PartitionIndex, PartitionImage]]:
    numbers = {
        broker.broker_id: (
            of_leader(cluster, broker.broker_id),
            broker.min_insync_replicas if number is None else number,
        )
        for broker in cluster.brokers.values()
    }
    for name in cluster.topic_names():
        topic_id = cluster.topic_id(name)
        if topic_id is None or TOPIC_NAME in cluster.configs(name):
            continue
        for index, partition in _led(cluster, name):
            now, then = numbers[partition.leader_id]
            replicas = len(partition.replicas)
            if min(now, replicas) != min(then, replicas):
                yield topic_id, index, partition


def _around(changed: Iterable[tuple[TopicId, PartitionIndex, PartitionImage]]) -> Around:
    around = Around([], [])
    for topic_id, index, partition in changed:
        if partition.elr:
            around.before.append(PartitionChange(topic_id=topic_id, partition_id=index, elr=()))
        around.after.append(PartitionChange(topic_id=topic_id, partition_id=index))
        check_records(len(around.before) + len(around.after))
    return around
