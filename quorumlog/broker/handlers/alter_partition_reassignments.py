"""AlterPartitionReassignments (45): moves partitions to other replicas. Source: KIP-455."""

from quorumlog.broker.responses.controller_answers import shortened, unanswered
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.metadata_quorum.controller_client import (
    ControllerUnavailable,
    Reassignment,
    ReassignmentResult,
)
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, TopicPartition
from quorumlog.wire.codec.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader


@answers(AlterPartitionReassignmentsRequest, 0, 1)
async def handle(
    context: BrokerContext, header: RequestHeader, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Start, change or cancel; answer once this broker's image has it, or after `timeout_ms`."""
    wanted = [
        Reassignment(
            topic=topic.name,
            partition=one.partition_index,
            replicas=None if one.replicas is None else tuple(map(BrokerId, one.replicas)),
        )
        for topic in request.topics
        for one in topic.partitions
    ]
    allows_any = header.api_version == 0 or request.allow_replication_factor_change
    try:
        results = await context.controller.alter_reassignments(
            wanted, may_change_replication_factor=allows_any
        )
    except ControllerUnavailable as error:
        code, message = unanswered(error, "the reassignment may have begun")
        return AlterPartitionReassignmentsResponse(error_code=code, error_message=message)
    changed = [result for result in results if result.error_code is ErrorCode.NONE]
    await context.metadata.wait_until(
        lambda image: all(_is_known(image, result) for result in changed),
        timeout_ms=request.timeout_ms,
    )
    topics: dict[str, list[ReassignablePartitionResponse]] = {}
    for result in results:
        topics.setdefault(result.topic, []).append(
            ReassignablePartitionResponse(
                partition_index=result.partition,
                error_code=result.error_code,
                error_message=shortened(result.error_message),
            )
        )
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=allows_any,
        responses=[
            ReassignableTopicResponse(name=name, partitions=partitions)
            for name, partitions in topics.items()
        ],
    )


def _is_known(image: ClusterImage, result: ReassignmentResult) -> bool:
    partition = image.partition(TopicPartition(result.topic, result.partition))
    return partition is None or partition.partition_epoch >= result.partition_epoch
