"""ConsumerGroupHeartbeat (68): a member of a consumer group joins, stays or leaves. KIP-848.

The API is advertised even while the protocol is switched off, as in Kafka: without it, a client
waits silently (librdkafka); a client that is refused returns an error at once.
docs/decisions/0009-feature-levels.md
"""

from uuid import UUID

from quorumlog.broker.groups.core.consumer.partitions import Partitions, TopicIdPartition
from quorumlog.broker.groups.core.consumer.records import to_stored
from quorumlog.broker.groups.core.consumer.requests import ConsumerHeartbeat, HeartbeatResult
from quorumlog.broker.responses.controller_answers import shortened
from quorumlog.broker.responses.features import consumer_groups_problem
from quorumlog.broker.server.api import BrokerContext, Reply, answers, when_done
from quorumlog.chance import random_bytes
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicId
from quorumlog.wire.codec.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    RequestTopicPartitions,
    ResponseTopicPartitions,
)
from quorumlog.wire.codec.schemas import RequestHeader


@answers(ConsumerGroupHeartbeatRequest, 0, 1)
def handle(
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
    )
    return when_done(context.groups.ask(heartbeat), _response)


def _owned(topics: list[RequestTopicPartitions] | None) -> Partitions | None:
    if topics is None:
        return None
    return frozenset(
        TopicIdPartition(TopicId(topic.topic_id), index)
        for topic in topics
        for index in topic.partitions
    )


def _response(result: HeartbeatResult) -> ConsumerGroupHeartbeatResponse:
    message = result.error_message
    return ConsumerGroupHeartbeatResponse(
        error_code=result.error_code,
        error_message=None if message is None else shortened(message),
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
