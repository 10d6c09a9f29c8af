"""Groups and their offsets, as an administrator changes them."""

import pytest

from quorumlog.client import (
    ErrorCode,
    KafkaError,
    OffsetAndMetadata,
)
from quorumlog.wire.codec.messages import delete_groups as delete_groups_
from quorumlog.wire.codec.messages import offset_delete as offset_delete_
from tests.support.client.fake_admin import U, cluster_and_admin
from tests.support.client.fake_cluster import T


async def test_a_groups_offsets_are_set_in_its_name() -> None:
    async with cluster_and_admin() as (cluster, admin):
        await admin.alter_consumer_group_offsets("g", {T: 5})
        assert cluster.commits == [5]
        assert await admin.list_consumer_group_offsets("g", [T]) == {T: OffsetAndMetadata(5)}
        cluster.refusals = [ErrorCode.UNKNOWN_MEMBER_ID]
        text = "UNKNOWN_MEMBER_ID: group g: the offset of t-0 is not committed"
        with pytest.raises(KafkaError, match=text) as caught:
            await admin.alter_consumer_group_offsets("g", {T: 6})
        assert caught.value.definite
        with pytest.raises(ValueError, match="an offset is 0 to"):
            await admin.alter_consumer_group_offsets("g", {T: -1})


def forgotten(
    code: ErrorCode, group_code: ErrorCode = ErrorCode.NONE
) -> offset_delete_.OffsetDeleteResponse:
    one = offset_delete_.OffsetDeleteResponsePartition(partition_index=0, error_code=code)
    topic = offset_delete_.OffsetDeleteResponseTopic(name="t", partitions=[one])
    return offset_delete_.OffsetDeleteResponse(error_code=group_code, topics=[topic])


async def test_a_groups_offsets_are_deleted() -> None:
    async with cluster_and_admin() as (cluster, admin):
        cluster.offer(
            offset_delete_.OffsetDeleteRequest,
            forgotten(ErrorCode.NONE, ErrorCode.NOT_COORDINATOR),
            forgotten(ErrorCode.NONE),
            forgotten(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC),
            forgotten(ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND),
            forgotten(ErrorCode.NONE),
        )
        with pytest.raises(KafkaError, match="NOT_COORDINATOR"):  # may be done: not repeated
            await admin.delete_consumer_group_offsets("g", [T])
        await admin.delete_consumer_group_offsets("g", [T])
        with pytest.raises(KafkaError, match="the offset of t-0 is not deleted") as caught:
            await admin.delete_consumer_group_offsets("g", [T])
        assert caught.value.definite
        with pytest.raises(KafkaError, match="GROUP_ID_NOT_FOUND: group g"):
            await admin.delete_consumer_group_offsets("g", [T])
        with pytest.raises(KafkaError, match="group g: t-1: left out of the answer"):
            await admin.delete_consumer_group_offsets("g", [U])


async def test_a_group_is_deleted_where_it_is_coordinated_now() -> None:
    async with cluster_and_admin() as (cluster, admin):
        codes = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NON_EMPTY_GROUP]
        answers = [
            delete_groups_.DeleteGroupsResponse(
                results=[delete_groups_.DeletableGroupResult(group_id="g", error_code=code)]
            )
            for code in codes
        ]
        cluster.offer(delete_groups_.DeleteGroupsRequest, *answers)
        with pytest.raises(KafkaError, match="COORDINATOR_LOAD_IN_PROGRESS: group g"):
            await admin.delete_consumer_groups(["g"])
        with pytest.raises(KafkaError, match="NON_EMPTY_GROUP: group g") as caught:
            await admin.delete_consumer_groups(["g"])
        assert caught.value.definite
