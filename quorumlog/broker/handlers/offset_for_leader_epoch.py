"""OffsetForLeaderEpoch (API key 23): the end offset of an epoch, to detect a truncation."""

from quorumlog.broker.server.api import BrokerContext, Reply, answers
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch, TopicPartition
from quorumlog.wire.codec.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


@answers(OffsetForLeaderEpochRequest, 2, 4)
def handle(context: BrokerContext, request: OffsetForLeaderEpochRequest) -> Reply:
    """Look up each partition's epoch. Source: KIP-320."""
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    _epoch_end(context, topic.topic, partition) for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _epoch_end(
    context: BrokerContext, topic: str, asked: OffsetForLeaderPartition
) -> EpochEndOffset:
    error_code, epoch, end_offset = context.replicas.epoch_end(
        TopicPartition(topic, asked.partition),
        Epoch(asked.leader_epoch),
        current_leader_epoch=Epoch(asked.current_leader_epoch),
    )
    if error_code is not ErrorCode.NONE:
        return EpochEndOffset(error_code=error_code, partition=asked.partition)
    return EpochEndOffset(partition=asked.partition, leader_epoch=epoch, end_offset=end_offset)
