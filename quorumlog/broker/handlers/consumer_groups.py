"""ConsumerGroupHeartbeat (68), ConsumerGroupDescribe (69): groups of KIP-848.

The heartbeat is advertised even while the protocol is switched off, as in Kafka: without the API, a
client waits silently (librdkafka); a client that is refused returns an error at once.
docs/decisions/0009-feature-levels.md
"""

from uuid import UUID

from quorumlog.broker.groups.core.consumer.descriptions import describe
from quorumlog.broker.groups.core.consumer.partitions import Partitions, TopicIdPartition
from quorumlog.broker.groups.core.consumer.records import to_stored
from quorumlog.broker.groups.core.consumer.requests import (
    ConsumerHeartbeat,
    HeartbeatResult,
    TopicRights,
)
from quorumlog.broker.responses.cluster_view import ALL_OF_GROUP
from quorumlog.broker.responses.controller_answers import shortened
from quorumlog.broker.responses.features import consumer_groups_problem
from quorumlog.broker.server.api import BrokerContext, Reply, answers, when_done
from quorumlog.chance import random_bytes
from quorumlog.metadata_quorum.image.acls import AclOperation, AclResourceType
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicId
from quorumlog.wire.codec.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from quorumlog.wire.codec.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    RequestTopicPartitions,
    ResponseTopicPartitions,
)
from quorumlog.wire.codec.schemas import RequestHeader


@answers(ConsumerGroupHeartbeatRequest, 0, 1)
def handle_heartbeat(
    context: BrokerContext, header: RequestHeader, request: ConsumerGroupHeartbeatRequest
) -> Reply:
    """Send the coordinator the heartbeat; answer when the result is committed."""
    problem = consumer_groups_problem(context)
    if problem is not None:
        return ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=problem
        )
    names = request.subscribed_topic_names
    heartbeat = ConsumerHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        new_member_id=str(UUID(bytes=random_bytes(16), version=4)),
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        subscribed_topic_names=None if names is None else tuple(names),
        subscribed_topic_regex=request.subscribed_topic_regex,
        server_assignor=request.server_assignor,
        owned=_owned(request.topic_partitions),
        client_id=header.client_id or "",
        client_host=context.client_host,
        api_version=header.api_version,
        rights=_rights(context),
    )
    return when_done(context.groups.ask(heartbeat), _response)


def _rights(context: BrokerContext) -> TopicRights | None:
    """Return the topics that the client may describe; None: all, without an authorizer."""
    if context.access is None:
        return None

    def may_describe(name: str) -> bool:
        return context.may(
            AclOperation.DESCRIBE,
            AclResourceType.TOPIC,
            name,
            api="ConsumerGroupHeartbeat",
            log_denied=False,
        )

    return TopicRights(may_describe, context.access.version)


def _owned(topics: list[RequestTopicPartitions] | None) -> Partitions | None:
    if topics is None:
        return None
    return frozenset(
        TopicIdPartition(TopicId(topic.topic_id), index)
        for topic in topics
        for index in topic.partitions
    )


def _response(result: HeartbeatResult) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        error_code=result.error_code,
        error_message=shortened(result.error_message),
        member_id=result.member_id or None,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=result.heartbeat_interval_ms,
        assignment=None if result.assignment is None else _assignment(result.assignment),
    )


def _assignment(partitions: Partitions) -> Assignment:
    return Assignment(
        topic_partitions=[
            ResponseTopicPartitions(topic_id=one.topic_id, partitions=one.partitions)
            for one in to_stored(partitions)
        ]
    )


@answers(ConsumerGroupDescribeRequest, 0, 1)
def handle_describe(
    context: BrokerContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """Describe the committed state of each requested group."""
    groups = [_describe(context, group_id) for group_id in request.group_ids]
    if request.include_authorized_operations:
        for group in groups:
            if group.error_code == ErrorCode.NONE:
                group.authorized_operations = ALL_OF_GROUP
    return ConsumerGroupDescribeResponse(groups=groups)


def _describe(context: BrokerContext, group_id: str) -> DescribedGroup:
    problem = consumer_groups_problem(context)
    if problem is not None:
        return _refused(group_id, ErrorCode.UNSUPPORTED_VERSION, problem)
    if not group_id:
        return _refused(group_id, ErrorCode.INVALID_GROUP_ID, "the group id is empty")
    coordinator = context.groups.coordinator(group_id)
    if isinstance(coordinator, ErrorCode):
        return DescribedGroup(group_id=group_id, error_code=coordinator)
    consumer_groups = coordinator.consumer_groups
    group = consumer_groups.coordinator.committed_group(group_id)
    if group is None:
        is_classic = group_id in coordinator.groups
        text = "is not a consumer group" if is_classic else "is not there"
        return _refused(group_id, ErrorCode.GROUP_ID_NOT_FOUND, f"group {group_id} {text}")
    assignor_name = consumer_groups.coordinator.targets.assignor_name(group)
    return describe(group, assignor_name, consumer_groups.topics.names)


def _refused(group_id: str, error_code: ErrorCode, message: str) -> DescribedGroup:
    return DescribedGroup(
        group_id=group_id, error_code=error_code, error_message=shortened(message)
    )
