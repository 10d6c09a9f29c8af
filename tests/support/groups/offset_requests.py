"""Requests about the offset of partition 0 of topic `t`, for the tests of the group APIs."""

from quorumlog.wire.codec.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from quorumlog.wire.codec.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from quorumlog.wire.io.connection import KafkaConnection

NAMED_TOPICS_MAX = 9  # the last version that names topics, and not their ids


async def commit(
    connection: KafkaConnection,
    group_id: str,
    *,
    offset: int = 1,
    generation_id: int = -1,
    member_id: str = "",
) -> int:
    """Commit; return the error code."""
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    request = OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=generation_id,
        member_id=member_id,
        topics=[OffsetCommitRequestTopic(name="t", partitions=[partition])],
    )
    answer = await connection.send(request, version=NAMED_TOPICS_MAX)
    return answer.topics[0].partitions[0].error_code


async def committed(connection: KafkaConnection, group_id: str) -> int:
    """Return the committed offset, -1 if there is none."""
    topic = OffsetFetchRequestTopics(name="t", partition_indexes=[0])
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group_id, topics=[topic])]
    )
    [group] = (await connection.send(request, version=NAMED_TOPICS_MAX)).groups
    assert group.error_code == 0
    return group.topics[0].partitions[0].committed_offset
