"""Converts an image to the records of a snapshot, and back (KIP-630).

The records do not contain the image's end offset, which is in the snapshot's name, nor its epoch
and controller, which come from the quorum.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from quorumlog.metadata_quorum.image import records
from quorumlog.metadata_quorum.image.access import access_records
from quorumlog.metadata_quorum.image.details import same_fields
from quorumlog.metadata_quorum.image.model import BrokerImage, ClusterImage, TopicImage
from quorumlog.metadata_quorum.image.records import (
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    MetadataRecord,
)
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset, PartitionIndex

_NO_BROKER = BrokerId(-1)


def records_of(image: ClusterImage) -> Iterator[MetadataRecord]:
    """Yield the records of `image`, with brokers and topics in order of their creation."""
    for name, level in image.features.items():
        is_automatic = name in image.automatic_levels
        yield records.FeatureLevel(name=name, level=level, is_automatic=is_automatic)
    for broker in image.brokers.values():
        yield _registration(broker)
    for topic in image.topics.values():
        yield from _topic(topic)
    for name, configs in image.broker_configs.items():
        yield from _configs(BROKER_RESOURCE, name, configs)
    for name, configs in image.group_configs.items():
        yield from _configs(GROUP_RESOURCE, name, configs)
    for name, configs in image.client_metrics.items():
        yield from _configs(CLIENT_METRICS_RESOURCE, name, configs)
    yield from access_records(image.access)
    if image.next_producer_id:
        yield records.ProducerIds(
            broker_id=_NO_BROKER, broker_epoch=-1, next_producer_id=image.next_producer_id
        )


def image_of(snapshot: Iterable[MetadataRecord], end_offset: Offset) -> ClusterImage:
    """Rebuild the image as of `end_offset`, without epoch and controller.

    Raises InvariantViolation if a record does not fit the records before it.
    """
    replay = ClusterReplay(ClusterImage())
    for position, record in enumerate(snapshot):
        replay.apply(Offset(position), record)
    _, image = replay.publish(
        end_offset=replay.end_offset, epoch=Epoch(0), controller_id=_NO_BROKER
    )
    return replace(image, end_offset=end_offset)


def _registration(broker: BrokerImage) -> records.RegisterBroker:
    record = records.RegisterBroker(**same_fields(broker, records.RegisterBroker))
    return replace(record, log_dirs=broker.log_dirs or None)


def _topic(topic: TopicImage) -> Iterator[MetadataRecord]:
    yield records.Topic(name=topic.name, topic_id=topic.topic_id)
    for index, partition in enumerate(topic.partitions):
        shared = same_fields(partition, records.Partition)
        shared["directories"] = partition.directories or None
        yield records.Partition(
            topic_id=topic.topic_id,
            partition_id=PartitionIndex(index),
            leader=partition.leader_id,
            **shared,
        )
    yield from _configs(TOPIC_RESOURCE, topic.name, topic.configs)


def _configs(resource_type: int, of: str, configs: Mapping[str, str]) -> Iterator[MetadataRecord]:
    for name, value in configs.items():
        yield records.Config(resource_type=resource_type, resource_name=of, name=name, value=value)
