"""ConsumerGroupHeartbeat: a consumer group member's requests, and the responses as events."""

from uuid import UUID

from quorumlog.chance import random_bytes
from quorumlog.client.core import membership_events as facts
from quorumlog.client.core.consumer_membership import ConsumerMembership
from quorumlog.client.core.membership import Membership
from quorumlog.client.core.membership_events import AssignedTopics
from quorumlog.client.io.cluster import Cluster
from quorumlog.client.settings import ConsumerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    RequestTopicPartitions,
)
from quorumlog.wire.codec.messages.metadata import MetadataRequest, MetadataRequestTopic


def new_membership(settings: ConsumerSettings) -> Membership | ConsumerMembership:
    """Return a member of the settings' `group_protocol`."""
    if settings.group_protocol == "classic":
        return Membership(settings)
    return ConsumerMembership(settings, str(UUID(bytes=random_bytes(16), version=4)))


def heartbeat_request(
    effect: facts.SendConsumerHeartbeat, settings: ConsumerSettings, group_id: str
) -> ConsumerGroupHeartbeatRequest:
    """Return the request; the coordinator keeps the values of fields that are None or -1."""
    says_all = effect.is_full
    return ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id=effect.member_id,
        member_epoch=effect.member_epoch,
        instance_id=settings.group_instance_id,
        rack_id=(settings.client_rack or None) if says_all else None,
        rebalance_timeout_ms=settings.max_poll_interval_ms if says_all else -1,
        subscribed_topic_names=None if effect.topics is None else [*effect.topics],
        subscribed_topic_regex=effect.pattern,
        server_assignor=settings.group_remote_assignor if says_all else None,
        topic_partitions=None if effect.owned is None else _listed(effect.owned),
    )


def _listed(owned: AssignedTopics) -> list[RequestTopicPartitions]:
    return [
        RequestTopicPartitions(topic_id=topic_id, partitions=[*indexes])
        for topic_id, indexes in sorted(owned.items())
    ]


def answered(
    effect: facts.SendConsumerHeartbeat, answer: ConsumerGroupHeartbeatResponse
) -> facts.ConsumerHeartbeatAnswered:
    """Return the response as an event."""
    return facts.ConsumerHeartbeatAnswered(
        attempt=effect.attempt,
        error_code=answer.error_code,
        error_message=answer.error_message,
        member_epoch=answer.member_epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
        assignment=None if answer.assignment is None else _assigned(answer.assignment),
    )


def _assigned(assignment: Assignment) -> AssignedTopics:
    return {
        one.topic_id: tuple(sorted(one.partitions))
        for one in assignment.topic_partitions
        if one.partitions
    }


async def names_of_topics(cluster: Cluster, topic_ids: tuple[bytes, ...]) -> dict[bytes, str]:
    """Return the names of these topics, without topics that do not exist. Raises KafkaError."""
    known = cluster.metadata.names
    found = {topic_id: known[topic_id] for topic_id in topic_ids if topic_id in known}
    missing = [topic_id for topic_id in topic_ids if topic_id not in found]
    if missing:
        topics = [MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in missing]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        answer = await cluster.send(None, request)
        for topic in answer.topics:
            if topic.error_code == ErrorCode.NONE and topic.name:
                found[topic.topic_id] = topic.name
        cluster.add_topics(found.values())
    return found
