"""Records, offsets and producers, as the leaders of partitions tell and delete them."""

from typing import Any

import pytest

from quorumlog.client import (
    ErrorCode,
    KafkaError,
    OffsetAndTimestamp,
)
from quorumlog.wire.codec.messages import delete_records as delete_records_
from quorumlog.wire.codec.messages import describe_producers as producers_
from tests.support.client.fake_admin import MOVED, U, cluster_and_admin
from tests.support.client.fake_cluster import T


def deleted(*results: tuple[int, int, ErrorCode]) -> delete_records_.DeleteRecordsResponse:
    partitions = [
        delete_records_.DeleteRecordsPartitionResult(
            partition_index=index, low_watermark=low_watermark, error_code=code
        )
        for index, low_watermark, code in results
    ]
    topic = delete_records_.DeleteRecordsTopicResult(name="t", partitions=partitions)
    return delete_records_.DeleteRecordsResponse(topics=[topic])


async def test_records_are_deleted_by_each_leader_until_all_have_answered() -> None:
    async with cluster_and_admin() as (cluster, admin):
        cluster.topics["t"] = 2
        cluster.elect(2, U)
        cluster.offer(
            delete_records_.DeleteRecordsRequest,
            deleted((0, 5, ErrorCode.NONE), (1, -1, MOVED)),
            deleted((0, 5, ErrorCode.NONE), (1, -1, MOVED)),
            deleted((1, 7, ErrorCode.NONE)),
        )
        assert await admin.delete_records({T: 5, U: -1}) == {T: 5, U: 7}
        asked = [
            (broker, [(one.partition_index, one.offset) for one in request.topics[0].partitions])
            for broker, request in cluster.seen
        ]
        assert sorted(asked[:2]) == [(1, [(0, 5)]), (2, [(1, -1)])]
        assert asked[2:] == [(2, [(1, -1)])]  # what is done is not asked for again


@pytest.mark.parametrize(
    ("results", "complaint", "definite"),
    [
        ([(0, -1, ErrorCode.OFFSET_OUT_OF_RANGE)], "OFFSET_OUT_OF_RANGE: t-0", True),
        ([(0, -1, ErrorCode.UNKNOWN_SERVER_ERROR)], "UNKNOWN_SERVER_ERROR: t-0", False),
        ([], "t-0: left out of the answer", False),
    ],
)
async def test_a_deletion_that_fails_says_whether_anything_was_deleted(
    results: list[tuple[int, int, ErrorCode]], complaint: str, definite: bool
) -> None:
    async with cluster_and_admin() as (cluster, admin):
        cluster.offer(delete_records_.DeleteRecordsRequest, deleted(*results))
        with pytest.raises(KafkaError, match=complaint) as caught:
            await admin.delete_records({T: 5})
        assert caught.value.definite is definite
        with pytest.raises(ValueError, match="an offset is 0 to"):
            await admin.delete_records({T: -2})


async def test_offsets_are_asked_by_name_or_time() -> None:
    async with cluster_and_admin() as (cluster, admin):
        cluster.fill(4)
        assert await admin.list_offsets({T: "latest"}) == {T: OffsetAndTimestamp(4, -1)}
        assert (await admin.list_offsets({T: "earliest"}))[T].offset == 0
        assert (await admin.list_offsets({T: 17}, "read_committed"))[T].offset == 0
        wrong: Any = "newest"
        with pytest.raises(ValueError, match="t-0: 'newest' must be one of 'earliest', 'latest'"):
            await admin.list_offsets({T: wrong})


async def test_producers_are_told_by_the_leader() -> None:
    async with cluster_and_admin() as (cluster, admin):
        cluster.elect(2)
        state = producers_.ProducerState(
            producer_id=4, producer_epoch=1, last_sequence=9, last_timestamp=17
        )
        one = producers_.PartitionResponse(partition_index=0, active_producers=[state])
        topic = producers_.TopicResponse(name="t", partitions=[one])
        cluster.offer(
            producers_.DescribeProducersRequest,
            producers_.DescribeProducersResponse(topics=[topic]),
        )
        (told,) = (await admin.describe_producers([T]))[T]
        assert (told.producer_id, told.last_sequence, told.last_timestamp_ms) == (4, 9, 17)
        assert [broker for broker, _ in cluster.seen] == [2]
