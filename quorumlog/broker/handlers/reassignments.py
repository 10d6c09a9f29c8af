"""AlterPartitionReassignments (45), ListPartitionReassignments (46). Source: KIP-455."""

import asyncio
from collections.abc import Iterator
from typing import Final

from quorumlog.broker.responses.controller_answers import shortened, unanswered
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.metadata_quorum.controller_client import (
    ControllerUnavailable,
    Reassignment,
    ReassignmentResult,
)
from quorumlog.metadata_quorum.controller_requests import AlterReassignments
from quorumlog.metadata_quorum.image import ClusterImage, PartitionImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, TopicPartition
from quorumlog.wire.codec.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from quorumlog.wire.codec.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from quorumlog.wire.codec.schemas import RequestHeader


@answers(AlterPartitionReassignmentsRequest, 0, 1)
async def handle_alter(
    context: BrokerContext, header: RequestHeader, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """Start, change or cancel; answer once this broker's image has it, or after `timeout_ms`."""
    wanted = tuple(
        Reassignment(
            topic=topic.name,
            partition=one.partition_index,
            replicas=None if one.replicas is None else tuple(map(BrokerId, one.replicas)),
        )
        for topic in request.topics
        for one in topic.partitions
    )
    allows_any = header.api_version == 0 or request.allow_replication_factor_change
    try:
        asked = AlterReassignments(wanted=wanted, may_change_replication_factor=allows_any)
        results = (await context.controller.ask(asked)).results
    except ControllerUnavailable as error:
        code, message = unanswered(error, "the reassignment may have begun")
        return AlterPartitionReassignmentsResponse(error_code=code, error_message=message)
    changed = [result for result in results if result.error_code is ErrorCode.NONE]
    await context.metadata.wait_until(
        lambda image: all(_is_known(image, result) for result in changed),
        timeout_ms=request.timeout_ms,
    )
    topics: dict[str, ReassignableTopicResponse] = {}
    for result in results:
        topic = topics.setdefault(result.topic, ReassignableTopicResponse(name=result.topic))
        topic.partitions.append(
            ReassignablePartitionResponse(
                partition_index=result.partition,
                error_code=result.error_code,
                error_message=shortened(result.error_message),
            )
        )
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=allows_any, responses=[*topics.values()]
    )


def _is_known(image: ClusterImage, result: ReassignmentResult) -> bool:
    partition = image.partition(TopicPartition(result.topic, result.partition))
    return partition is None or partition.partition_epoch >= result.partition_epoch


LOOKED_AT_AT_ONCE: Final = 5000  # partitions, about a millisecond
Place = tuple[str, int]


@answers(ListPartitionReassignmentsRequest, 0, 0)
async def handle_list_ongoing(
    context: BrokerContext, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """List the named partitions that are being reassigned; null: all such partitions."""
    image = context.image
    topics: dict[str, OngoingTopicReassignment] = {}
    for looked_at, ((name, index), partition) in enumerate(_asked(image, request), start=1):
        if partition.is_reassigned:
            topic = topics.setdefault(name, OngoingTopicReassignment(name=name))
            topic.partitions.append(_ongoing(index, partition))
        if looked_at % LOOKED_AT_AT_ONCE == 0:
            await asyncio.sleep(0)
    return ListPartitionReassignmentsResponse(topics=[*topics.values()])


def _asked(
    image: ClusterImage, request: ListPartitionReassignmentsRequest
) -> Iterator[tuple[Place, PartitionImage]]:
    if request.topics is None:
        for topic in image.topics.values():
            for index, partition in enumerate(topic.partitions):
                yield (topic.name, index), partition
        return
    for named in request.topics:
        found = image.topics.get(named.name)
        partitions = () if found is None else found.partitions
        for index in named.partition_indexes:
            if 0 <= index < len(partitions):
                yield (named.name, index), partitions[index]


def _ongoing(index: int, partition: PartitionImage) -> OngoingPartitionReassignment:
    return OngoingPartitionReassignment(
        partition_index=index,
        replicas=[*partition.replicas],
        adding_replicas=[*partition.adding_replicas],
        removing_replicas=[*partition.removing_replicas],
    )
