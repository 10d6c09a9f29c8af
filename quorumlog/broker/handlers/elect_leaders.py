"""ElectLeaders (43): elects preferred replicas, or leaders uncleanly. Sources: KIP-183, KIP-460.

The handler sends the controller a thousand partitions at a time, so that neither is busy for long,
however many there are.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from quorumlog.broker.controller_requests.image_watch import SEEN_HERE_MS
from quorumlog.broker.responses.controller_answers import shortened
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.metadata_quorum.controller_client import ControllerUnavailable, ElectionResult
from quorumlog.metadata_quorum.controller_requests import ElectLeaders
from quorumlog.metadata_quorum.image import ClusterImage, PartitionImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, TopicPartition
from quorumlog.wire.codec.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

PREFERRED: Final = 0
UNCLEAN: Final = 1
ASKED_AT_ONCE: Final = 1000  # partitions
LOOKED_AT_AT_ONCE: Final = 5000  # partitions, about a millisecond
Places = list[tuple[str, int]]


@answers(ElectLeadersRequest, 0, 2)
async def handle(context: BrokerContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """Elect leaders; without topics (null): of every partition that may need an election.

    Of those, ELECTION_NOT_NEEDED is not reported. Answer once this broker's image has the new
    leaders, or after SEEN_HERE_MS; a partition undecided after `timeout_ms` is REQUEST_TIMED_OUT.
    """
    asked = _asked(request)
    if request.election_type not in {PREFERRED, UNCLEAN}:
        message = f"Unknown election type {request.election_type}"
        refused = [_undecided(at, ErrorCode.INVALID_REQUEST, message) for at in asked or ()]
        response = _response(refused)
        response.error_code = ErrorCode.INVALID_REQUEST
        return response
    unclean = request.election_type == UNCLEAN
    if asked is not None:
        return _response(await _elect(context, asked, request.timeout_ms, unclean=unclean))
    wanted = [at async for at in _led_by_another(context.image, unclean=unclean)]
    results = await _elect(context, wanted, request.timeout_ms, unclean=unclean)
    needless = ErrorCode.ELECTION_NOT_NEEDED
    return _response([result for result in results if result.error_code is not needless])


def _asked(request: ElectLeadersRequest) -> Places | None:
    if request.topic_partitions is None:
        return None
    return [
        (topic.topic, index) for topic in request.topic_partitions for index in topic.partitions
    ]


async def _led_by_another(image: ClusterImage, *, unclean: bool) -> AsyncIterator[tuple[str, int]]:
    looked_at = 0
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            if _is_wanted(partition, unclean=unclean):
                yield topic.name, index
            looked_at += 1
            if looked_at % LOOKED_AT_AT_ONCE == 0:
                await asyncio.sleep(0)


def _is_wanted(partition: PartitionImage, *, unclean: bool) -> bool:
    if unclean:
        return partition.leader_id == NO_LEADER
    return partition.leader_id != partition.replicas[0]


async def _elect(
    context: BrokerContext, wanted: Places, timeout_ms: int, *, unclean: bool
) -> list[ElectionResult]:
    """Return a result per partition, in the order of `wanted`."""
    results: list[ElectionResult] = []
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            for start in range(0, len(wanted), ASKED_AT_ONCE):
                some = tuple(wanted[start : start + ASKED_AT_ONCE])
                asked = ElectLeaders(partitions=some, unclean=unclean)
                results += (await context.controller.ask(asked)).results
            elected = [result for result in results if result.error_code is ErrorCode.NONE]
            await context.metadata.wait_until(
                lambda image: all(_is_known(image, result) for result in elected),
                timeout_ms=SEEN_HERE_MS,
                leaders_of=lambda _: map(_place, elected),
            )
    except (TimeoutError, ControllerUnavailable):
        message = "not decided in time; an election may have taken place"
        left = wanted[len(results) :]
        results += [_undecided(at, ErrorCode.REQUEST_TIMED_OUT, message) for at in left]
    return results


def _is_known(image: ClusterImage, result: ElectionResult) -> bool:
    partition = image.partition(_place(result))
    return partition is None or partition.leader_epoch >= result.leader_epoch


def _place(result: ElectionResult) -> TopicPartition:
    return TopicPartition(result.topic, result.partition)


def _undecided(at: tuple[str, int], error_code: ErrorCode, message: str) -> ElectionResult:
    return ElectionResult(
        topic=at[0], partition=at[1], error_code=error_code, error_message=message
    )


def _response(results: Sequence[ElectionResult]) -> ElectLeadersResponse:
    topics: dict[str, ReplicaElectionResult] = {}
    for result in results:
        topic = topics.setdefault(result.topic, ReplicaElectionResult(topic=result.topic))
        topic.partition_result.append(
            PartitionResult(
                partition_id=result.partition,
                error_code=result.error_code,
                error_message=shortened(result.error_message),
            )
        )
    return ElectLeadersResponse(replica_election_results=[*topics.values()])
