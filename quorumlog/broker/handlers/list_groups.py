"""ListGroups (16): the groups that this broker coordinates. Source: KIP-518 (states), KIP-848."""

from quorumlog.broker.groups.core.consumer.descriptions import list_groups
from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.group import GroupState
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.list_groups import (
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader

GROUP_TYPE = "classic"


@answers(ListGroupsRequest, 0, 5)
def handle(
    context: BrokerContext, header: RequestHeader, request: ListGroupsRequest
) -> ListGroupsResponse:
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
    found = list_groups(
        coordinator.consumer_groups.coordinator.groups.values(),
        states=request.states_filter,
        types=request.types_filter,
    )
    return [
        ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type,
            group_state=group.state,
            group_type=group.group_type,
        )
        for group in found
    ]


def _listed(coordinator: GroupCoordinator, group_id: str) -> ListedGroup:
    group = coordinator.groups.get(group_id)
    state = GroupState.EMPTY if group is None else group.state
    return ListedGroup(
        group_id=group_id,
        protocol_type=(group.protocol_type or "") if group else "",
        group_state=state.value,
        group_type=GROUP_TYPE,
    )
