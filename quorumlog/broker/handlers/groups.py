"""ListGroups (16), DescribeGroups (15), DeleteGroups (42).

KIP-229 (deletion), KIP-430 (authorized operations), KIP-518 (states), KIP-848 (types), KIP-1043
(GROUP_ID_NOT_FOUND).
"""

import asyncio

from quorumlog.broker.groups.core.consumer.descriptions import list_groups
from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.group import Group, GroupState, Member
from quorumlog.broker.groups.core.requests import DeleteGroup
from quorumlog.broker.responses.cluster_view import ALL_OF_GROUP
from quorumlog.broker.responses.controller_answers import shortened
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from quorumlog.wire.codec.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from quorumlog.wire.codec.messages.list_groups import (
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader

GROUP_TYPE = "classic"


@answers(ListGroupsRequest, 0, 5)
def handle_list_all(context: BrokerContext, request: ListGroupsRequest) -> ListGroupsResponse:
    """List the groups; an error means that some partitions are not loaded yet: retry."""
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    error_code, groups = ErrorCode.NONE, list[ListedGroup]()
    for coordinator in context.groups.coordinators():
        if isinstance(coordinator, ErrorCode):
            error_code = coordinator
            continue
        groups += _consumer_groups(coordinator, request)
        for group_id in coordinator.known_groups():
            if coordinator.consumer_groups.owns(group_id):
                continue
            listed = _listed(coordinator, group_id)
            has_state = not states or listed.group_state.lower() in states
            if has_state and (not types or GROUP_TYPE in types):
                groups.append(listed)
    return ListGroupsResponse(error_code=error_code, groups=groups)


def _consumer_groups(
    coordinator: GroupCoordinator, request: ListGroupsRequest
) -> list[ListedGroup]:
    return list_groups(
        coordinator.consumer_groups.coordinator.groups.values(),
        states=request.states_filter,
        types=request.types_filter,
    )


def _listed(coordinator: GroupCoordinator, group_id: str) -> ListedGroup:
    group = coordinator.groups.get(group_id)
    state = GroupState.EMPTY if group is None else group.state
    return ListedGroup(
        group_id=group_id,
        protocol_type=(group.protocol_type or "") if group else "",
        group_state=state.value,
        group_type=GROUP_TYPE,
    )


FIRST_VERSION_WITH_NOT_FOUND = 6


@answers(DescribeGroupsRequest, 0, 6)
def handle_describe(
    context: BrokerContext, header: RequestHeader, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    """Describe each requested group."""
    knows_not_found = header.api_version >= FIRST_VERSION_WITH_NOT_FOUND
    groups = [_describe(context, group_id, knows_not_found) for group_id in request.groups]
    if request.include_authorized_operations:
        for group in groups:
            if group.error_code == ErrorCode.NONE:
                group.authorized_operations = ALL_OF_GROUP
    return DescribeGroupsResponse(groups=groups)


def _describe(context: BrokerContext, group_id: str, knows_not_found: bool) -> DescribedGroup:
    coordinator = context.groups.coordinator(group_id)
    if isinstance(coordinator, ErrorCode):
        return DescribedGroup(group_id=group_id, error_code=coordinator)
    group = coordinator.groups.get(group_id)
    if group is not None:
        return _described(group)
    is_consumer_group = coordinator.consumer_groups.owns(group_id)
    if (
        not is_consumer_group and group_id in coordinator.committed.offsets
    ):  # only offsets, of a consumer outside of any group
        return DescribedGroup(group_id=group_id, group_state=GroupState.EMPTY.value)
    if knows_not_found:
        return DescribedGroup(
            group_id=group_id,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=shortened(
                f"group {group_id} is a consumer group: use ConsumerGroupDescribe"
                if is_consumer_group
                else f"there is no group {group_id}"
            ),
            group_state=GroupState.DEAD.value,
        )
    return DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)


def _described(group: Group) -> DescribedGroup:
    is_stable = group.state is GroupState.STABLE
    protocol_name = group.protocol_name if is_stable else None
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol_name or "",
        members=[_member(member, protocol_name) for member in group.members.values()],
    )


def _member(member: Member, protocol_name: str | None) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(protocol_name),
        member_assignment=member.assignment if protocol_name else b"",
    )


@answers(DeleteGroupsRequest, 0, 2)
async def handle_delete(
    context: BrokerContext, request: DeleteGroupsRequest
) -> DeleteGroupsResponse:
    """Delete the groups; answer once the tombstones are committed."""
    group_ids = request.groups_names
    outcomes = await asyncio.gather(
        *(context.groups.ask(DeleteGroup(group_id=group_id)) for group_id in group_ids)
    )
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=group_id, error_code=error_code)
            for group_id, error_code in zip(group_ids, outcomes, strict=True)
        ]
    )
