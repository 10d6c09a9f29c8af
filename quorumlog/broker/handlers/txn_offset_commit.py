"""TxnOffsetCommit (28): offsets that take effect once the producer's transaction is committed.

Source: KIP-98; KIP-447 (v3: the member and its generation); KIP-890 (v5: the partition of
`__consumer_offsets` is added to the transaction; before, AddOffsetsToTxn has added it).
"""

from quorumlog.broker.groups.core.requests import (
    CommitResult,
    CommittedOffset,
    CommitTransactionalOffsets,
)
from quorumlog.broker.responses.commit_timeout import limit_commit
from quorumlog.broker.server.api import BrokerContext, Reply, answers, when_done
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from quorumlog.wire.codec.schemas import RequestHeader

KNOWS_LOADING_SINCE = 2  # older clients crash at COORDINATOR_LOAD_IN_PROGRESS (KAFKA-7296)
KNOWS_ABORTABLE_SINCE = 4  # TRANSACTION_ABORTABLE (KIP-890)
ADDS_SINCE = 5


@answers(TxnOffsetCommitRequest, 0, 5)
def handle(context: BrokerContext, header: RequestHeader, request: TxnOffsetCommitRequest) -> Reply:
    """Commit the offsets of the partitions that exist; answered once they are in the log."""
    offsets, outcomes = {}, {}
    for topic in request.topics:
        for part in topic.partitions:
            where = TopicPartition(topic.name, part.partition_index)
            if context.image.partition(where) is None:
                outcomes[where] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            offsets[where] = CommittedOffset(
                offset=part.committed_offset,
                leader_epoch=part.committed_leader_epoch,
                metadata=part.committed_metadata or "",
                topic_id=context.image.topics[topic.name].topic_id,
            )

    def respond(result: CommitResult) -> TxnOffsetCommitResponse:
        told = {
            where: _worded(code, header.api_version) for where, code in result.partitions.items()
        }
        refusal = _worded(result.error_code, header.api_version)
        codes = dict.fromkeys(offsets, refusal) | told | outcomes
        return TxnOffsetCommitResponse(topics=[_topic(topic, codes) for topic in request.topics])

    if not offsets:  # no request to the coordinator, as in Kafka
        return respond(CommitResult(error_code=ErrorCode.NONE))
    commit = CommitTransactionalOffsets(
        group_id=request.group_id,
        transactional_id=request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        adds=header.api_version >= ADDS_SINCE,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        offsets=offsets,
    )
    result = context.groups.ask(commit)
    limit_commit(context, result, commit)
    return when_done(result, respond)


def _worded(error_code: ErrorCode, api_version: int) -> ErrorCode:
    """Return the error code as the sender's version has it."""
    is_loading = error_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if is_loading and api_version < KNOWS_LOADING_SINCE:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    is_abortable = error_code is ErrorCode.TRANSACTION_ABORTABLE
    if is_abortable and api_version < KNOWS_ABORTABLE_SINCE:
        return ErrorCode.INVALID_TXN_STATE
    return error_code


def _topic(
    topic: TxnOffsetCommitRequestTopic, codes: dict[TopicPartition, ErrorCode]
) -> TxnOffsetCommitResponseTopic:
    return TxnOffsetCommitResponseTopic(
        name=topic.name,
        partitions=[
            TxnOffsetCommitResponsePartition(
                partition_index=part.partition_index,
                error_code=codes[TopicPartition(topic.name, part.partition_index)],
            )
            for part in topic.partitions
        ],
    )
