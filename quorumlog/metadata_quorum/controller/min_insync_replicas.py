"""The number of replicas that must be in sync: of the cluster, of a leader; what a change voids.

From LEVEL_OF_CLUSTER_MIN_ISR on, the cluster has one number for all topics that set none, as in
Kafka where ELRs are on; below, each broker has the number of its file for what it leads. The leader
and the controller must use the same number at every moment, so a change is one batch, of which
`around_topic` and `around_cluster` return the parts. Source: KIP-966.
docs/decisions/0033-a-new-min-insync-replicas-voids-older-proposals.md
"""

from collections.abc import Iterable, Iterator
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
    """The changes of partitions to write before and after a new number, in one batch with it.

    A replica that leaves a too small ISR goes to the ELR, because the leader commits nothing then.
    Before the change, the ELRs are cleared: with a smaller number the leader commits. After it, the
    partition epochs rise: a proposal that is granted from here on carries an epoch that its leader
    has from a replay of this change, so that leader and controller use the same number.
    A partition without a leader is left alone: nothing was committed since.

    # DEVIATION: Kafka clears the ELRs and leaves the epochs as they are.
    # docs/decisions/0033-a-new-min-insync-replicas-voids-older-proposals.md
    """

    before: list[PartitionChange]
    behind: list[PartitionChange]


def of_cluster(cluster: ClusterReplay) -> int | None:
    """Return the number that holds for topics which set none; None: that of the leader's file."""
    text = cluster.broker_configs("").get(SERVER_NAME)
    return None if text is None else int(text)


def of_leader(cluster: ClusterReplay, leader_id: BrokerId) -> int:
    """Return the number that a broker uses for topics which set none."""
    number = of_cluster(cluster)
    return cluster.brokers[leader_id].min_insync_replicas if number is None else number


def of_topic(cluster: ClusterReplay, name: str, leader_id: BrokerId) -> int:
    """Return the number that the leader of a partition of this topic uses."""
    config = TopicConfig(cluster.configs(name), {SERVER_NAME: str(of_leader(cluster, leader_id))})
    return config.min_insync_replicas


def around_topic(cluster: ClusterReplay, name: str, topic_id: TopicId) -> Around:
    """Return what is written around a new number of one topic."""
    return _around((topic_id, index, one) for index, one in _led(cluster, name))


def around_cluster(cluster: ClusterReplay, number: int | None) -> Around:
    """Return what is written around a new number of the cluster; None: each leader has its own.

    Partitions whose leaders use the same number as before are left alone. Looks at all partitions.
    Raises TopicRefused where there are more than one batch may have.
    """
    return _around(_with_other_number(cluster, number))


def first_number(
    levels: Iterable[FeatureLevel], request: BrokerRegistration
) -> tuple[MetadataRecord, ...]:
    """Return the records with which a new cluster begins: its levels, and its number.

    # DEVIATION: Kafka takes the active controller's own number.
    # docs/decisions/0019-the-elr-goes-by-the-leaders-min-insync-replicas.md
    """
    begun = tuple(levels)
    has_number = any(
        one.name == METADATA_FEATURE and one.level >= LEVEL_OF_CLUSTER_MIN_ISR for one in begun
    )
    return (*begun, record_of(request.min_insync_replicas)) if has_number else begun


def around_level(cluster: ClusterReplay, record: FeatureLevel) -> list[MetadataRecord]:
    """Return a new level of the records with all that it changes.

    From its level on, the cluster has a number: the greatest of its brokers, so that none commits
    with fewer replicas than its own file says. Raises TopicRefused.
    """
    now = cluster.feature_level(METADATA_FEATURE) >= LEVEL_OF_CLUSTER_MIN_ISR
    then = record.level >= LEVEL_OF_CLUSTER_MIN_ISR
    if record.name != METADATA_FEATURE or now is then:
        return [record]
    numbers = [broker.min_insync_replicas for broker in cluster.brokers.values()]
    number = max(numbers, default=int(_SETTING.default)) if then else None
    around = around_cluster(cluster, number)
    records: list[MetadataRecord] = [*around.before, record, record_of(number), *around.behind]
    check_records(len(records))
    return records


def record_of(number: int | None) -> Config:
    """Return the record that gives the cluster this number; None: it has none any more."""
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


def _with_other_number(
    cluster: ClusterReplay, number: int | None
) -> Iterator[tuple[TopicId, PartitionIndex, PartitionImage]]:
    for name in cluster.topic_names():
        topic_id = cluster.topic_id(name)
        if topic_id is None or TOPIC_NAME in cluster.configs(name):
            continue
        for index, partition in _led(cluster, name):
            leader = cluster.brokers[partition.leader_id]
            now = of_leader(cluster, partition.leader_id)
            then = leader.min_insync_replicas if number is None else number
            if min(now, len(partition.replicas)) != min(then, len(partition.replicas)):
                yield topic_id, index, partition


def _around(changed: Iterable[tuple[TopicId, PartitionIndex, PartitionImage]]) -> Around:
    around = Around([], [])
    for topic_id, index, partition in changed:
        if partition.elr:
            around.before.append(PartitionChange(topic_id=topic_id, partition_id=index, elr=()))
        around.behind.append(PartitionChange(topic_id=topic_id, partition_id=index))
        check_records(len(around.before) + len(around.behind))
    return around
