"""OffsetCommit (8), TxnOffsetCommit (28): answered once the offsets are in `__consumer_offsets`.

Source: KIP-848 (member epochs, v9), KAFKA-14690 (topics by id, v10). The offsets of a transaction
take effect once it is committed: KIP-98; KIP-447 (v3: the member and its generation); KIP-890 (v5:
the partition of `__consumer_offsets` is added to the transaction; before, AddOffsetsToTxn has added
it).
"""

import asyncio
from collections.abc import Mapping, Sequence

from quorumlog.broker.groups.core.requests import (
    CommitOffsets,
    CommitResult,
    CommittedOffset,
    CommitTransactionalOffsets,
    GroupRequest,
)
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
from quorumlog.wire.codec.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from quorumlog.wire.codec.schemas import RequestHeader

FIRST_VERSION_WITH_TOPIC_IDS = 10
KNOWS_LOADING_SINCE = 2  # older clients crash at COORDINATOR_LOAD_IN_PROGRESS (KAFKA-7296)
KNOWS_ABORTABLE_SINCE = 4  # TRANSACTION_ABORTABLE (KIP-890)
ADDS_SINCE = 5

Offsets = dict[TopicPartition, CommittedOffset]
Outcomes = Mapping[TopicPartition, ErrorCode]


@answers(OffsetCommitRequest, 2, 10)
def handle_commit(
    context: BrokerContext, header: RequestHeader, request: OffsetCommitRequest
) -> Reply:
    """Commit the offsets of the partitions that exist."""
    has_ids = header.api_version >= FIRST_VERSION_WITH_TOPIC_IDS
    if has_ids:
        for topic in request.topics:
            topic.name = context.image.topic_names.get(TopicId(topic.topic_id), "")
    offsets, missing = _sorted_out(context, request.topics)
    if has_ids:
        missing |= {where: ErrorCode.UNKNOWN_TOPIC_ID for where in missing if not where.topic}

    def respond(result: CommitResult) -> OffsetCommitResponse:
        codes = dict.fromkeys(offsets, result.error_code) | dict(result.partitions) | missing
        return OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[
                        OffsetCommitResponsePartition(partition_index=index, error_code=code)
                        for index, code in _codes(topic, codes)
                    ],
                )
                for topic in request.topics
            ]
        )

    commit = CommitOffsets(
        group_id=request.group_id,
        generation_id=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        api_version=header.api_version,
        offsets=offsets,
    )
    return when_done(_commit(context, commit), respond)


@answers(TxnOffsetCommitRequest, 0, 5)
def handle_transactional_commit(
    context: BrokerContext, header: RequestHeader, request: TxnOffsetCommitRequest
) -> Reply:
    """Commit the offsets of the partitions that exist; answered once they are in the log."""
    offsets, missing = _sorted_out(context, request.topics)

    def respond(result: CommitResult) -> TxnOffsetCommitResponse:
        codes = dict.fromkeys(offsets, result.error_code) | dict(result.partitions)
        worded = {where: _worded(code, header.api_version) for where, code in codes.items()}
        return TxnOffsetCommitResponse(
            topics=[
                TxnOffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        TxnOffsetCommitResponsePartition(partition_index=index, error_code=code)
                        for index, code in _codes(topic, worded | missing)
                    ],
                )
                for topic in request.topics
            ]
        )

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
    return when_done(_commit(context, commit), respond)


def _sorted_out(
    context: BrokerContext,
    topics: Sequence[OffsetCommitRequestTopic] | Sequence[TxnOffsetCommitRequestTopic],
) -> tuple[Offsets, dict[TopicPartition, ErrorCode]]:
    """Return the offsets of the partitions that exist, and an error for each of the others."""
    offsets: Offsets = {}
    missing = {}
    for topic in topics:
        for part in topic.partitions:
            where = TopicPartition(topic.name, part.partition_index)
            if context.image.partition(where) is None:
                missing[where] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            offsets[where] = CommittedOffset(
                offset=part.committed_offset,
                leader_epoch=part.committed_leader_epoch,
                metadata=part.committed_metadata or "",
                topic_id=context.image.topics[topic.name].topic_id,
            )
    return offsets, missing


def _codes(
    topic: OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic, codes: Outcomes
) -> list[tuple[int, ErrorCode]]:
    indexes = [part.partition_index for part in topic.partitions]
    return [(index, codes[TopicPartition(topic.name, index)]) for index in indexes]


def _commit(
    context: BrokerContext, commit: GroupRequest[CommitResult]
) -> asyncio.Future[CommitResult]:
    """Send the coordinator the commit; the client waits `offsets.commit.timeout.ms` at most.

    That limits the wait, not the write: the offsets may still be committed, and then are valid.
    """
    result = context.groups.ask(commit)
    if result.done():
        return result

    def time_out() -> None:
        if not result.done():
            result.set_result(commit.refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    timeout_s = context.settings.offsets_commit_timeout_ms / 1000
    timer = asyncio.get_running_loop().call_later(timeout_s, time_out)
    result.add_done_callback(lambda _result: timer.cancel())
    return result


def _worded(error_code: ErrorCode, api_version: int) -> ErrorCode:
    """Return the error code as the sender's version has it."""
    is_loading = error_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if is_loading and api_version < KNOWS_LOADING_SINCE:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    is_abortable = error_code is ErrorCode.TRANSACTION_ABORTABLE
    if is_abortable and api_version < KNOWS_ABORTABLE_SINCE:
        return ErrorCode.INVALID_TXN_STATE
    return error_code
