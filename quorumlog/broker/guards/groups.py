"""Guards of groups: members, committed offsets, coordinators, descriptions and deletions."""

from typing import Any, Final

from quorumlog.broker.guards.guard import (
    Asked,
    Guard,
    adding,
    amended,
    by_topic,
    changed,
    described,
    divided,
    name_at,
    refused_topics,
    refused_whole,
)
from quorumlog.broker.responses.cluster_view import ALL_OF_GROUP
from quorumlog.broker.server.api import Reply
from quorumlog.metadata_quorum.image.acls import AclOperation, AclResourceType
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import UNKNOWN_OFFSET
from quorumlog.wire.codec.messages import consumer_group_describe, describe_groups
from quorumlog.wire.codec.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from quorumlog.wire.codec.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest
from quorumlog.wire.codec.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from quorumlog.wire.codec.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from quorumlog.wire.codec.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponseTopic,
)
from quorumlog.wire.codec.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponseTopic,
)
from quorumlog.wire.codec.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

REFUSED: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
TOPIC_REFUSED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
MANY_KEYS_SINCE: Final = 4  # of FindCoordinator
MANY_GROUPS_SINCE: Final = 8  # of OffsetFetch
OFFSETS_BY_ID_SINCE: Final = 10  # of OffsetCommit and OffsetFetch
GROUP_ERROR_SINCE: Final = 2  # of OffsetFetch
HIDES_TOPICS: Final = (
    "The group has described topic(s) that the client is not authorized to describe."
)


def member_guard(**more: Any) -> Guard:
    """Return the guard of a member's request: READ of the group. `more`: fields of a refusal."""

    def guard(asked: Asked[Any]) -> Reply:
        if asked.access.may_group(AclOperation.READ, asked.request.group_id):
            return asked.pass_on()
        return refused_whole(asked, REFUSED, **more)

    return guard


def guard_consumer_heartbeat(asked: Asked[ConsumerGroupHeartbeatRequest]) -> Reply:
    """Require READ of the group, and DESCRIBE of each topic that the member names.

    The coordinator leaves topics that the member may not describe out of its expression.
    """
    access, request = asked.access, asked.request
    if not access.may_group(AclOperation.READ, request.group_id):
        return refused_whole(asked, REFUSED)
    names = request.subscribed_topic_names or ()
    if not all(access.may_topic(AclOperation.DESCRIBE, name) for name in names):
        return refused_whole(asked, TOPIC_REFUSED)
    return asked.pass_on()


def guard_find_coordinator(asked: Asked[FindCoordinatorRequest]) -> Reply:
    """Require DESCRIBE of each group or transactional id; of share groups: CLUSTER_ACTION."""
    request = asked.request
    if asked.version < MANY_KEYS_SINCE:
        code = _coordinator_error(asked, request.key)
        if code is ErrorCode.NONE:
            return asked.pass_on()
        return FindCoordinatorResponse(
            **described(FindCoordinatorResponse, code), node_id=-1, port=-1
        )
    codes = {key: _coordinator_error(asked, key) for key in request.coordinator_keys}
    refused = [
        Coordinator(key=key, **described(Coordinator, code), node_id=-1, port=-1)
        for key, code in codes.items()
        if code is not ErrorCode.NONE
    ]
    permitted = [key for key in request.coordinator_keys if codes[key] is ErrorCode.NONE]
    if refused and not permitted:  # a request without keys may create the internal topic
        return FindCoordinatorResponse(coordinators=refused)
    part = changed(request, coordinator_keys=permitted)
    return adding(asked.forward(part), coordinators=refused)


def _coordinator_error(asked: Asked[FindCoordinatorRequest], key: str) -> ErrorCode:
    access, code = asked.access, ErrorCode.NONE
    match asked.request.key_type:
        case 0:  # a group
            if not access.may_group(AclOperation.DESCRIBE, key):
                code = REFUSED
        case 1:  # a transactional id
            if not access.may_transactional_id(AclOperation.DESCRIBE, key):
                code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        case _:
            if not access.may_cluster(AclOperation.CLUSTER_ACTION):
                code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return code


def guard_offset_commit(asked: Asked[OffsetCommitRequest]) -> Reply:
    """Require READ of the group, and of each topic."""
    request = asked.request
    if not asked.access.may_group(AclOperation.READ, request.group_id):
        return OffsetCommitResponse(
            topics=refused_topics(request.topics, OffsetCommitResponseTopic, REFUSED)
        )

    def name_of(topic: OffsetCommitRequestTopic) -> str | None:
        by_id = asked.version >= OFFSETS_BY_ID_SINCE
        return name_at(asked, topic.topic_id) if by_id else topic.name

    return by_topic(asked, AclOperation.READ, OffsetCommitResponseTopic, named=name_of)


def guard_offset_delete(asked: Asked[OffsetDeleteRequest]) -> Reply:
    """Require DELETE of the group, and READ of each topic."""
    if not asked.access.may_group(AclOperation.DELETE, asked.request.group_id):
        return refused_whole(asked, REFUSED)
    return by_topic(asked, AclOperation.READ, OffsetDeleteResponseTopic)


def guard_offset_fetch(asked: Asked[OffsetFetchRequest]) -> Reply:
    """Require DESCRIBE of each group, and of each topic; without topics: leave topics out."""
    request = asked.request
    if asked.version < MANY_GROUPS_SINCE:
        return _fetch_old(asked)
    refused, parts, refusals = [], [], dict[str, list[OffsetFetchResponseTopics]]()
    for group in request.groups:
        if asked.access.may_group(AclOperation.DESCRIBE, group.group_id):
            permitted, forbidden = _parted_topics(asked, group)
            parts.append(changed(group, topics=permitted))
            refusals[group.group_id] = forbidden
        else:
            refused.append(OffsetFetchResponseGroup(group_id=group.group_id, error_code=REFUSED))
    lists_all = {group.group_id for group in request.groups if group.topics is None}

    def amend(response: OffsetFetchResponse) -> OffsetFetchResponse:
        for group in response.groups:
            if group.group_id in lists_all:
                group.topics = _visible(asked, group.topics)
            elif group.error_code == ErrorCode.NONE:
                group.topics = [*group.topics, *refusals[group.group_id]]
        response.groups = [*response.groups, *refused]
        return response

    return amended(asked.forward(changed(request, groups=parts)), amend)


def _parted_topics(
    asked: Asked[OffsetFetchRequest], group: OffsetFetchRequestGroup
) -> tuple[list[Any] | None, list[OffsetFetchResponseTopics]]:
    """Return the permitted topics of a group, and the response to the others."""
    if group.topics is None:
        return None, []

    def may_describe(topic: Any) -> bool:
        by_id = asked.version >= OFFSETS_BY_ID_SINCE
        name = name_at(asked, topic.topic_id) if by_id else topic.name
        return name is None or asked.access.may_topic(AclOperation.DESCRIBE, name)

    permitted, forbidden = divided(group.topics, may_describe)
    results = refused_topics(
        forbidden, OffsetFetchResponseTopics, TOPIC_REFUSED, committed_offset=UNKNOWN_OFFSET
    )
    return permitted, results


def _fetch_old(asked: Asked[OffsetFetchRequest]) -> Reply:
    """Guard a request for one group."""
    request, shape = asked.request, OffsetFetchResponseTopic
    if not asked.access.may_group(AclOperation.DESCRIBE, request.group_id):
        topics = request.topics if asked.version < GROUP_ERROR_SINCE else ()
        results = refused_topics(topics, shape, REFUSED, committed_offset=UNKNOWN_OFFSET)
        return OffsetFetchResponse(error_code=REFUSED, topics=results)
    if request.topics is not None:
        return by_topic(asked, AclOperation.DESCRIBE, shape, committed_offset=UNKNOWN_OFFSET)

    def amend(response: OffsetFetchResponse) -> OffsetFetchResponse:
        response.topics = _visible(asked, response.topics)
        return response

    return amended(asked.pass_on(), amend)


def _visible(asked: Asked[OffsetFetchRequest], topics: list[Any]) -> list[Any]:
    return [
        topic
        for topic in topics
        if asked.access.may_topic(AclOperation.DESCRIBE, topic.name, log_denied=False)
    ]


def guard_list_groups(asked: Asked[ListGroupsRequest]) -> Reply:
    """List all groups by DESCRIBE of the cluster, else the groups that the client may describe."""
    access = asked.access
    if access.may_cluster(AclOperation.DESCRIBE, log_denied=False):
        return asked.pass_on()

    def amend(response: ListGroupsResponse) -> ListGroupsResponse:
        response.groups = [
            group
            for group in response.groups
            if access.may_group(AclOperation.DESCRIBE, group.group_id, log_denied=False)
        ]
        return response

    return amended(asked.pass_on(), amend)


def guard_describe_groups(asked: Asked[describe_groups.DescribeGroupsRequest]) -> Reply:
    """Require DESCRIBE of each group."""
    may, request = asked.access.may_group, asked.request
    permitted, forbidden = divided(request.groups, lambda one: may(AclOperation.DESCRIBE, one))
    refused = [
        describe_groups.DescribedGroup(group_id=one, error_code=REFUSED) for one in forbidden
    ]

    def amend(
        response: describe_groups.DescribeGroupsResponse,
    ) -> describe_groups.DescribeGroupsResponse:
        _limit_operations(asked, response.groups)
        response.groups = [*response.groups, *refused]
        return response

    return amended(asked.forward(changed(request, groups=permitted)), amend)


def guard_consumer_describe(
    asked: Asked[consumer_group_describe.ConsumerGroupDescribeRequest],
) -> Reply:
    """Require DESCRIBE of each group, and of each topic that is assigned to its members."""
    may, request = asked.access.may_group, asked.request
    shape = consumer_group_describe.DescribedGroup
    permitted, forbidden = divided(request.group_ids, lambda one: may(AclOperation.DESCRIBE, one))
    refused = [shape(group_id=one, **described(shape, REFUSED)) for one in forbidden]

    def amend(
        response: consumer_group_describe.ConsumerGroupDescribeResponse,
    ) -> consumer_group_describe.ConsumerGroupDescribeResponse:
        _limit_operations(asked, response.groups)
        shown = [
            one
            if _may_see_topics(asked, one)
            else shape(group_id=one.group_id, error_code=TOPIC_REFUSED, error_message=HIDES_TOPICS)
            for one in response.groups
        ]
        response.groups = [*shown, *refused]
        return response

    return amended(asked.forward(changed(request, group_ids=permitted)), amend)


def _may_see_topics(asked: Asked[Any], group: consumer_group_describe.DescribedGroup) -> bool:
    names = {
        topic.topic_name
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions
    }
    return all(asked.access.may_topic(AclOperation.DESCRIBE, name) for name in sorted(names))


def _limit_operations(asked: Asked[Any], groups: list[Any]) -> None:
    """Replace the bit fields that the handler has set by those of the client's operations."""
    for group in groups:
        if group.authorized_operations == ALL_OF_GROUP:
            group.authorized_operations = asked.access.operations(
                AclResourceType.GROUP, group.group_id
            )


def guard_delete_groups(asked: Asked[DeleteGroupsRequest]) -> Reply:
    """Require DELETE of each group."""
    may, request = asked.access.may_group, asked.request
    permitted, forbidden = divided(request.groups_names, lambda one: may(AclOperation.DELETE, one))
    refused = [DeletableGroupResult(group_id=one, error_code=REFUSED) for one in forbidden]
    return adding(asked.forward(changed(request, groups_names=permitted)), results=refused)
