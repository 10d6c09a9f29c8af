"""The image as clients see it: unfenced brokers, and the topics on them."""

from collections.abc import Iterable
from typing import Final, Protocol

from quorumlog.broker.server.api import BrokerContext
from quorumlog.metadata_quorum.image import BrokerImage, ClusterImage, PartitionImage, TopicImage
from quorumlog.metadata_quorum.image.acls import AclOperation
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId, TopicPartition
from quorumlog.wire.codec.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from quorumlog.wire.codec.schemas import RequestHeader
from quorumlog.wire.codec.topic_names import INTERNAL_TOPICS

LISTENER_NOT_FOUND_SINCE: Final = 6  # the version of Metadata


class LeaderOfPartition(Protocol):
    """The leader of a partition in a response."""

    error_code: int
    leader_id: int


def metadata_response(
    context: BrokerContext,
    header: RequestHeader,
    request: MetadataRequest,
    topics: list[MetadataResponseTopic],
) -> MetadataResponse:
    """Return these topics, with the unfenced brokers that have the client's listener.

    Includes the authorized operations, if the request has their flags (KIP-430).
    """
    hide_leaders(
        context,
        (partition for topic in topics for partition in topic.partitions),
        ErrorCode.LISTENER_NOT_FOUND
        if header.api_version >= LISTENER_NOT_FOUND_SINCE
        else ErrorCode.LEADER_NOT_AVAILABLE,
    )
    if request.include_topic_authorized_operations:
        for topic in topics:
            if topic.error_code != ErrorCode.UNKNOWN_TOPIC_ID:  # as Kafka: it has no name
                topic.topic_authorized_operations = ALL_OF_TOPIC
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=broker.broker_id, host=host, port=port, rack=broker.rack)
            for broker, (host, port) in reachable(context)
            if not broker.fenced
        ],
        cluster_id=context.cluster_id,
        controller_id=controller_for_clients(context),
        topics=topics,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = ALL_OF_CLUSTER
    return response


def reachable(context: BrokerContext) -> list[tuple[BrokerImage, tuple[str, int]]]:
    """Return the brokers that have the client's listener, with its host and port, sorted by id."""
    addresses = (
        (broker, broker.address_at(context.listener))
        for _, broker in sorted(context.image.brokers.items())
    )
    return [(broker, address) for broker, address in addresses if address is not None]


def hide_leaders(
    context: BrokerContext, partitions: Iterable[LeaderOfPartition], error: ErrorCode
) -> None:
    """Replace each leader without the client's listener by NO_LEADER and `error`, as Kafka does."""
    brokers = context.image.brokers
    found = {broker.broker_id for broker, _ in reachable(context)}
    if len(found) == len(brokers):
        return
    for partition in partitions:
        if partition.leader_id in brokers and partition.leader_id not in found:
            partition.error_code, partition.leader_id = error, NO_LEADER


def controller_for_clients(context: BrokerContext) -> BrokerId:
    """Return a broker for admin requests: the controller if it serves clients, else any."""
    unfenced = [broker.broker_id for broker, _ in reachable(context) if not broker.fenced]
    for broker_id in (context.image.controller_id, context.broker_id):
        if broker_id in unfenced:
            return broker_id
    return min(unfenced, default=NO_LEADER)


def topic_of(image: ClusterImage, topic: TopicImage) -> MetadataResponseTopic:
    """Return the topic as clients see it, internal or not."""
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            _partition(image, index, partition) for index, partition in enumerate(topic.partitions)
        ],
    )


def _partition(
    image: ClusterImage, index: int, partition: PartitionImage
) -> MetadataResponsePartition:
    has_leader = partition.leader_id != NO_LEADER
    return MetadataResponsePartition(
        error_code=ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
        partition_index=index,
        leader_id=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        replica_nodes=[*partition.replicas],
        isr_nodes=[*partition.isr],
        offline_replicas=[*offline_replicas(image, partition)],
    )


def partitions_of(image: ClusterImage, names: Iterable[str]) -> Iterable[TopicPartition]:
    """Yield the partitions of the named topics that exist."""
    for name in names:
        topic = image.topics.get(name)
        if topic is not None:
            for index in range(len(topic.partitions)):
                yield TopicPartition(name, index)


def offline_replicas(image: ClusterImage, partition: PartitionImage) -> Iterable[BrokerId]:
    """Yield the replicas whose broker is fenced or gone, or whose log directory is offline."""
    for broker_id in partition.replicas:
        registration = image.brokers.get(broker_id)
        if registration is None or registration.fenced:
            yield broker_id
        elif partition.directories:  # rare; this code runs for each of many replicas
            at = partition.directory_of(broker_id)
            if at is not None and at not in registration.directories:
                yield broker_id


def leader_hints(
    context: BrokerContext, partitions: Iterable[TopicPartition]
) -> list[tuple[BrokerImage, tuple[str, int]]]:
    """Return the brokers that lead these partitions, with host and port, each once, sorted by id.

    A broker without the client's listener is left out.
    """
    leaders = {
        partition.leader_id
        for partition in map(context.image.partition, partitions)
        if partition is not None
    }
    return [(broker, at) for broker, at in reachable(context) if broker.broker_id in leaders]


def _bits(*operations: AclOperation) -> int:
    """Return the bit field of operations: bit n is Kafka's operation code n (KIP-430)."""
    return sum(1 << operation for operation in operations)


_CONFIGS: Final = (AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)

ALL_OF_TOPIC: Final = _bits(
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DELETE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    *_CONFIGS,
)
ALL_OF_GROUP: Final = _bits(
    AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE, *_CONFIGS
)
ALL_OF_CLUSTER: Final = _bits(
    AclOperation.CREATE,
    AclOperation.ALTER,
    AclOperation.DESCRIBE,
    AclOperation.CLUSTER_ACTION,
    AclOperation.IDEMPOTENT_WRITE,
    *_CONFIGS,
)
