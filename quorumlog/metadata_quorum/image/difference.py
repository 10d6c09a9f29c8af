"""The delta between two images, for an image that was loaded from a snapshot.

A replay records the delta while it applies records. An image from a snapshot has no such records,
so it is compared with the image before it. A topic object in both images is not compared further.
"""

from collections.abc import Mapping

from quorumlog.metadata_quorum.image.model import ClusterDelta, ClusterImage, TopicImage
from quorumlog.wire.codec.identifiers import TopicPartition


def difference(before: ClusterImage, after: ClusterImage) -> ClusterDelta:
    """Return the delta from `before` to `after`: all new, changed and deleted items."""
    partitions: set[TopicPartition] = set()
    configs: set[str] = set()
    for name, topic in after.topics.items():
        old = before.topics.get(name)
        if old is topic:
            continue
        if old is not None and old.topic_id != topic.topic_id:
            old = None  # another topic under the same name
        partitions |= _changed_partitions(old, topic)
        if (old.configs if old is not None else {}) != topic.configs:
            configs.add(name)
    return ClusterDelta(
        brokers=frozenset(
            broker_id
            for broker_id in {*before.brokers, *after.brokers}
            if before.brokers.get(broker_id) != after.brokers.get(broker_id)
        ),
        partitions=frozenset(partitions),
        deleted_topics={
            name: topic.topic_id
            for name, topic in before.topics.items()
            if topic.topic_id not in after.topic_names
        },
        topic_configs=frozenset(configs),
        broker_configs=_changed_configs(before.broker_configs, after.broker_configs),
        group_configs=_changed_configs(before.group_configs, after.group_configs),
    )


def _changed_configs(
    before: Mapping[str, Mapping[str, str]], after: Mapping[str, Mapping[str, str]]
) -> frozenset[str]:
    if before is after:
        return frozenset()
    names = {*before, *after}
    return frozenset(name for name in names if before.get(name) != after.get(name))


def _changed_partitions(old: TopicImage | None, topic: TopicImage) -> set[TopicPartition]:
    before = () if old is None else old.partitions
    return {
        TopicPartition(topic.name, index)
        for index, partition in enumerate(topic.partitions)
        if index >= len(before) or before[index] != partition
    }
