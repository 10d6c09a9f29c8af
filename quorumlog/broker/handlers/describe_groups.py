"""DescribeGroups (15): groups, members and assignments. Source: Kafka's protocol guide.

KIP-430 (authorized operations, v3), KIP-1043 (GROUP_ID_NOT_FOUND, v6).
"""

from quorumlog.broker.groups.core.group import Group, GroupState, Member
from quorumlog.broker.responses.cluster_view import ALL_OF_GROUP
from quorumlog.broker.responses.controller_answers import shortened
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader

FIRST_VERSION_WITH_NOT_FOUND = 6


@answers(DescribeGroupsRequest, 0, 6)
def handle(
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
