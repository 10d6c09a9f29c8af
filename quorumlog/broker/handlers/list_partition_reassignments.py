"""ListPartitionReassignments (46): the partitions with a reassignment under way. KIP-455.

# DEVIATION: In Kafka the controller answers; here the broker answers from its own image.
# docs/decisions/0016-reassignments.md
"""

import asyncio
from collections.abc import Iterator
from typing import Final

from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.metadata_quorum.image import ClusterImage, PartitionImage
from quorumlog.wire.codec.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)
from quorumlog.wire.codec.schemas import RequestHeader

LOOKED_AT_AT_ONCE: Final = 5000  # partitions, about a millisecond
Place = tuple[str, int]


@answers(ListPartitionReassignmentsRequest, 0, 0)
async def handle(
    context: BrokerContext, header: RequestHeader, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """List the named partitions that are being reassigned; null: all such partitions."""
    image = context.image
    topics: dict[str, list[OngoingPartitionReassignment]] = {}
    for looked_at, ((name, index), partition) in enumerate(_asked(image, request), start=1):
        if partition.is_reassigned:
            topics.setdefault(name, []).append(_ongoing(index, partition))
        if looked_at % LOOKED_AT_AT_ONCE == 0:
            await asyncio.sleep(0)
    return ListPartitionReassignmentsResponse(
        topics=[
            OngoingTopicReassignment(name=name, partitions=partitions)
            for name, partitions in topics.items()
        ]
    )


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
