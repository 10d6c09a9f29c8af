"""Guards of records: Produce, Fetch, ListOffsets, DeleteRecords, and descriptions of partitions."""

from collections.abc import Callable, Sequence
from inspect import isawaitable
from typing import Final

from quorumlog.broker.guards.guard import (
    Asked,
    adding,
    by_topic,
    changed,
    divided,
    name_at,
    refused_topics,
)
from quorumlog.broker.server.api import BrokerContext, Disconnect, HandleRun, Reply, RunReply
from quorumlog.invariants import some
from quorumlog.metadata_quorum.image.acls import AclOperation, AclResourceType
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import UNKNOWN_OFFSET, TopicId
from quorumlog.wire.codec.messages.delete_records import (
    DeleteRecordsRequest,
    DeleteRecordsTopicResult,
)
from quorumlog.wire.codec.messages.describe_producers import DescribeProducersRequest, TopicResponse
from quorumlog.wire.codec.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse
from quorumlog.wire.codec.messages.list_offsets import ListOffsetsRequest, ListOffsetsTopicResponse
from quorumlog.wire.codec.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderTopicResult,
)
from quorumlog.wire.codec.messages.produce import (
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from quorumlog.wire.codec.produce_template import ProduceTemplate, TemplateMatch

PRODUCE_BY_ID_SINCE: Final = 13
REPLICA_STATE_SINCE: Final = 15  # of Fetch
REFUSED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
API: Final = "Produce"


def guard_run(handle_run: HandleRun) -> HandleRun:
    """Return the handler of runs for requests that are permitted; others are handled singly."""

    def guarded(
        context: BrokerContext,
        template: ProduceTemplate,
        requests: Sequence[TemplateMatch],
        *,
        may_continue: Callable[[], bool],
    ) -> RunReply | None:
        name, transactional_id = template.at.topic, template.transactional_id
        if not name:
            name = context.image.topic_names.get(TopicId(template.topic_id), "")
        writes = (context.principal, context.client_host, name, transactional_id)
        control = some(context.access, "guards are for brokers with an authorizer")
        if not control.is_permitted(writes):
            if not context.may(AclOperation.WRITE, AclResourceType.TOPIC, name, api=API) or (
                transactional_id is not None
                and not context.may(
                    AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, transactional_id, api=API
                )
            ):
                return None
            control.permit(writes)
        return handle_run(context, template, requests, may_continue=may_continue)

    return guarded


def guard_produce(asked: Asked[ProduceRequest]) -> Reply:
    """Require WRITE of the transactional id, then of each topic."""
    request, access = asked.request, asked.access
    transactional_id = request.transactional_id
    if transactional_id is not None and not access.may_transactional_id(
        AclOperation.WRITE, transactional_id
    ):
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return _refused_records(request, request.topic_data, code)

    def may_write(topic: TopicProduceData) -> bool:
        name: str | None = topic.name
        if asked.version >= PRODUCE_BY_ID_SINCE:
            name = name_at(asked, topic.topic_id)
        # An unknown id is UNKNOWN_TOPIC_ID: an id reveals nothing to a client that guesses it.
        return name is None or access.may_topic(AclOperation.WRITE, name)

    permitted, refused = divided(request.topic_data, may_write)
    if not refused:
        return asked.pass_on()
    if not permitted:
        return _refused_records(request, refused, REFUSED)
    reply = asked.forward(changed(request, topic_data=permitted))
    if request.acks == 0:
        return _closing(reply)
    return adding(reply, responses=_results(refused, REFUSED))


def _results(topics: list[TopicProduceData], code: ErrorCode) -> list[TopicProduceResponse]:
    return refused_topics(topics, TopicProduceResponse, code, base_offset=UNKNOWN_OFFSET)


def _refused_records(
    request: ProduceRequest, topics: list[TopicProduceData], code: ErrorCode
) -> Reply:
    if request.acks == 0:
        raise Disconnect(f"acks=0: {code.name}")
    return ProduceResponse(responses=_results(topics, code))


async def _closing(reply: Reply) -> None:
    """Close the connection after the permitted records of a request with acks=0 are appended."""
    if isawaitable(reply):
        await reply
    raise Disconnect(f"acks=0: {REFUSED.name}")


def guard_fetch(asked: Asked[FetchRequest]) -> Reply:
    """Require CLUSTER_ACTION of a follower. The handler checks READ of a consumer's partitions.

    Only the handler has the partitions of a fetch session.
    """
    request = asked.request
    state = request.replica_state
    replica_id = request.replica_id
    if asked.version >= REPLICA_STATE_SINCE and state is not None:
        replica_id = state.replica_id
    if replica_id < 0 or asked.access.may_cluster(AclOperation.CLUSTER_ACTION):
        return asked.pass_on()
    results = refused_topics(
        request.topics, FetchableTopicResponse, REFUSED, high_watermark=UNKNOWN_OFFSET
    )
    return FetchResponse(responses=results)


def guard_list_offsets(asked: Asked[ListOffsetsRequest]) -> Reply:
    """Require DESCRIBE of each topic."""
    return by_topic(asked, AclOperation.DESCRIBE, ListOffsetsTopicResponse)


def guard_delete_records(asked: Asked[DeleteRecordsRequest]) -> Reply:
    """Require DELETE of each topic."""
    return by_topic(
        asked, AclOperation.DELETE, DeleteRecordsTopicResult, low_watermark=UNKNOWN_OFFSET
    )


def guard_offset_for_leader_epoch(asked: Asked[OffsetForLeaderEpochRequest]) -> Reply:
    """Require CLUSTER_ACTION, as a broker has, or DESCRIBE of each topic."""
    if asked.access.may_cluster(AclOperation.CLUSTER_ACTION, log_denied=False):
        return asked.pass_on()
    return by_topic(
        asked,
        AclOperation.DESCRIBE,
        OffsetForLeaderTopicResult,
        leader_epoch=-1,
        end_offset=UNKNOWN_OFFSET,
    )


def guard_describe_producers(asked: Asked[DescribeProducersRequest]) -> Reply:
    """Require READ of each topic."""
    return by_topic(asked, AclOperation.READ, TopicResponse)
