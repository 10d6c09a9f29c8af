"""OffsetCommit (8): answered once the offsets are committed in `__consumer_offsets`.

Source: KIP-848 (member epochs, v9), KAFKA-14690 (topics by id, v10).
"""

from quorumlog.broker.groups.core.requests import CommitOffsets, CommitResult, CommittedOffset
from quorumlog.broker.responses.commit_timeout import limit_commit
from quorumlog.broker.server.api import BrokerContext, Reply, answers, when_done
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicId, TopicPartition
from quorumlog.wire.codec.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from quorumlog.wire.codec.schemas import RequestHeader

FIRST_VERSION_WITH_TOPIC_IDS = 10


@answers(OffsetCommitRequest, 2, 10)
def handle(context: BrokerContext, header: RequestHeader, request: OffsetCommitRequest) -> Reply:
    """Commit the offsets of the partitions that exist."""
    offsets, outcomes = {}, {}
    names_by_id = header.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
    for topic in request.topics:
        if names_by_id:
            topic.name = context.image.topic_names.get(TopicId(topic.topic_id), "")
        for part in topic.partitions:
            where = TopicPartition(topic.name, part.partition_index)
            if context.image.partition(where) is None:
                is_unknown_id = names_by_id and not topic.name
                outcomes[where] = (
                    ErrorCode.UNKNOWN_TOPIC_ID
                    if is_unknown_id
                    else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                )
                continue
            offsets[where] = CommittedOffset(
                offset=part.committed_offset,
                leader_epoch=part.committed_leader_epoch,
                metadata=part.committed_metadata or "",
                topic_id=context.image.topics[topic.name].topic_id,
            )

    def respond(result: CommitResult) -> OffsetCommitResponse:
        codes = dict.fromkeys(offsets, result.error_code) | dict(result.partitions) | outcomes
        return OffsetCommitResponse(topics=[_topic(topic, codes) for topic in request.topics])

    commit = CommitOffsets(
        group_id=request.group_id,
        generation_id=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        api_version=header.api_version,
        offsets=offsets,
    )
    result = context.groups.ask(commit)
    limit_commit(context, result, commit)
    return when_done(result, respond)


def _topic(
    topic: OffsetCommitRequestTopic, codes: dict[TopicPartition, ErrorCode]
) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetCommitResponsePartition(
                partition_index=part.partition_index,
                error_code=codes[TopicPartition(topic.name, part.partition_index)],
            )
            for part in topic.partitions
        ],
    )
