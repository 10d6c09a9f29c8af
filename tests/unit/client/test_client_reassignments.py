"""Reassignments: what the administrator asks, and what comes of the answers."""

from typing import Any

import pytest

from quorumlog.client import ErrorCode, KafkaError
from quorumlog.client.descriptions import PartitionReassignment
from quorumlog.wire.codec.messages import alter_partition_reassignments as alter_
from quorumlog.wire.codec.messages import list_partition_reassignments as list_
from tests.support.client.fake_admin import U, cluster_and_admin
from tests.support.client.fake_cluster import T


def answer(*codes: ErrorCode) -> alter_.AlterPartitionReassignmentsResponse:
    partitions = [
        alter_.ReassignablePartitionResponse(partition_index=index, error_code=code)
        for index, code in enumerate(codes)
    ]
    topic = alter_.ReassignableTopicResponse(name="t", partitions=partitions)
    return alter_.AlterPartitionReassignmentsResponse(responses=[topic])


async def test_replicas_are_asked_for_and_none_cancels() -> None:
    async with cluster_and_admin() as (cluster, admin):
        cluster.offer(
            alter_.AlterPartitionReassignmentsRequest, answer(ErrorCode.NONE, ErrorCode.NONE)
        )
        await admin.alter_partition_reassignments({T: [2, 3], U: None})
        [request] = cluster.requests()
        [topic] = request.topics
        assert [(one.partition_index, one.replicas) for one in topic.partitions] == [
            (0, [2, 3]),
            (1, None),
        ]


@pytest.mark.parametrize(
    ("codes", "is_definite"),
    [
        ((ErrorCode.NONE, ErrorCode.INVALID_REPLICA_ASSIGNMENT), False),
        ((ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, ErrorCode.INVALID_REPLICA_ASSIGNMENT), True),
    ],
)
async def test_the_first_refusal_is_raised(codes: tuple[ErrorCode, ...], is_definite: bool) -> None:
    async with cluster_and_admin() as (cluster, admin):
        cluster.offer(alter_.AlterPartitionReassignmentsRequest, answer(*codes))
        with pytest.raises(KafkaError) as caught:
            await admin.alter_partition_reassignments({T: [2], U: [9]})
        assert caught.value.code == next(code for code in codes if code is not ErrorCode.NONE)
        assert caught.value.definite is is_definite


async def test_a_partition_that_is_left_out_may_be_moving() -> None:
    async with cluster_and_admin() as (cluster, admin):
        cluster.offer(alter_.AlterPartitionReassignmentsRequest, answer(ErrorCode.NONE))
        with pytest.raises(KafkaError, match="left out") as caught:
            await admin.alter_partition_reassignments({T: [2], U: [9]})
        assert not caught.value.definite
        wrong: Any = [T]
        with pytest.raises(TypeError, match="a dict of TopicPartition"):
            await admin.alter_partition_reassignments(wrong)


async def test_those_that_move_are_listed() -> None:
    async with cluster_and_admin() as (cluster, admin):
        one = list_.OngoingPartitionReassignment(
            partition_index=1, replicas=[2, 1], adding_replicas=[2], removing_replicas=[1]
        )
        topic = list_.OngoingTopicReassignment(name="t", partitions=[one])
        cluster.offer(
            list_.ListPartitionReassignmentsRequest,
            list_.ListPartitionReassignmentsResponse(topics=[topic]),
        )
        moving = PartitionReassignment(
            replicas=(2, 1), adding_replicas=(2,), removing_replicas=(1,)
        )
        assert await admin.list_partition_reassignments() == {U: moving}
        assert await admin.list_partition_reassignments([T, U]) == {U: moving}
        first, second = cluster.requests()
        assert first.topics is None
        assert [(one.name, one.partition_indexes) for one in second.topics] == [("t", [0, 1])]
