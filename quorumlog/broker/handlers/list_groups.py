"""ListGroups (16): the groups that this broker coordinates. Source: KIP-518 (states), KIP-848."""

from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.states import GroupState
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
    """List the groups; an error means that some partitions are not loaded yet: try again."""
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    error_code, groups = ErrorCode.NONE, []
    for coordinator in context.groups.coordinators():
        if isinstance(coordinator, ErrorCode):
            error_code = coordinator
            continue
        for group_id in coordinator.known_groups():
            listed = _listed(coordinator, group_id)
            has_state = not states or listed.group_state.lower() in states
            if has_state and (not types or GROUP_TYPE in types):
                groups.append(listed)
    return ListGroupsResponse(error_code=error_code, groups=groups)


def _listed(coordinator: GroupCoordinator, group_id: str) -> ListedGroup:
    group = coordinator.groups.get(group_id)
    state = GroupState.EMPTY if group is None else group.state
    return ListedGroup(
        group_id=group_id,
        protocol_type=(group.protocol_type or "") if group else "",
        group_state=state.value,
        group_type=GROUP_TYPE,
    )
