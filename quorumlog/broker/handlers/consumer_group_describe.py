"""ConsumerGroupDescribe (69): consumer groups, their members and assignments. KIP-848."""

from quorumlog.broker.groups.core.consumer.descriptions import describe
from quorumlog.broker.responses.cluster_view import ALL_OF_GROUP
from quorumlog.broker.responses.controller_answers import shortened
from quorumlog.broker.responses.features import consumer_groups_problem
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from quorumlog.wire.codec.schemas import RequestHeader


@answers(ConsumerGroupDescribeRequest, 0, 1)
def handle(
    context: BrokerContext, header: RequestHeader, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """Describe the committed state of each requested group."""
    del header
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
