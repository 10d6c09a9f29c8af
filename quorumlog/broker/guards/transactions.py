"""Guards of transactions and producer ids."""

from typing import Final

from quorumlog.broker.guards.guard import (
    Asked,
    amended,
    by_topic,
    changed,
    divided,
    partition_indexes,
    refused_topics,
    refused_whole,
)
from quorumlog.broker.server.api import Reply
from quorumlog.invariants import some
from quorumlog.metadata_quorum.image.acls import AclOperation, AclResourceType
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from quorumlog.wire.codec.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from quorumlog.wire.codec.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from quorumlog.wire.codec.messages.end_txn import EndTxnRequest
from quorumlog.wire.codec.messages.init_producer_id import InitProducerIdRequest
from quorumlog.wire.codec.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from quorumlog.wire.codec.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponseTopic,
)
from quorumlog.wire.codec.messages.write_txn_markers import (
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from quorumlog.wire.codec.topic_names import INTERNAL_TOPICS

REFUSED: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
BETWEEN_BROKERS_SINCE: Final = 4  # of AddPartitionsToTxn


def guard_init_producer_id(asked: Asked[InitProducerIdRequest]) -> Reply:
    """Require WRITE of the transactional id; without one, a right to write (KIP-679).

    The right is IDEMPOTENT_WRITE of the cluster, or WRITE of any topic.
    """
    access, context, name = asked.access, asked.context, asked.request.transactional_id
    if name is not None:
        if access.may_transactional_id(AclOperation.WRITE, name):
            return asked.pass_on()
        return refused_whole(asked, REFUSED, producer_id=-1, producer_epoch=-1)
    control = some(context.access, "guards are for brokers with an authorizer")
    if access.may_cluster(AclOperation.IDEMPOTENT_WRITE, log_denied=False) or control.may_on_any(
        context.principal, context.client_host, AclOperation.WRITE, AclResourceType.TOPIC
    ):
        return asked.pass_on()
    access.may_cluster(AclOperation.IDEMPOTENT_WRITE)  # for the audit log
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return refused_whole(asked, code, producer_id=-1, producer_epoch=-1)


def guard_add_partitions(asked: Asked[AddPartitionsToTxnRequest]) -> Reply:
    """Require WRITE of the transactional id and of each topic; of brokers: CLUSTER_ACTION.

    If any partition is refused, none is added: the others are OPERATION_NOT_ATTEMPTED.
    """
    request, access = asked.request, asked.access
    if asked.version >= BETWEEN_BROKERS_SINCE:
        if access.may_cluster(AclOperation.CLUSTER_ACTION):
            return asked.pass_on()
        return refused_whole(asked, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    topics = request.v3_and_below_topics
    if not access.may_transactional_id(AclOperation.WRITE, request.v3_and_below_transactional_id):
        refused = refused_topics(topics, AddPartitionsToTxnTopicResult, REFUSED)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=refused)
    forbidden = {
        topic.name
        for topic in topics
        if topic.name not in INTERNAL_TOPICS
        and not access.may_topic(AclOperation.WRITE, topic.name)
    }
    if not forbidden:
        return asked.pass_on()  # the handler refuses internal topics

    def code_of(at: TopicPartition) -> ErrorCode:
        if at.topic in forbidden or at.topic in INTERNAL_TOPICS:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if asked.context.image.partition(at) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.OPERATION_NOT_ATTEMPTED

    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=index,
                        partition_error_code=code_of(TopicPartition(topic.name, index)),
                    )
                    for index in partition_indexes(topic)
                ],
            )
            for topic in topics
        ]
    )


def guard_add_offsets(asked: Asked[AddOffsetsToTxnRequest]) -> Reply:
    """Require WRITE of the transactional id, and READ of the group."""
    request, access = asked.request, asked.access
    if not access.may_transactional_id(AclOperation.WRITE, request.transactional_id):
        return refused_whole(asked, REFUSED)
    if not access.may_group(AclOperation.READ, request.group_id):
        return refused_whole(asked, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    return asked.pass_on()


def guard_end(asked: Asked[EndTxnRequest]) -> Reply:
    """Require WRITE of the transactional id."""
    if asked.access.may_transactional_id(AclOperation.WRITE, asked.request.transactional_id):
        return asked.pass_on()
    return refused_whole(asked, REFUSED)


def guard_offset_commit(asked: Asked[TxnOffsetCommitRequest]) -> Reply:
    """Require WRITE of the transactional id, READ of the group, and READ of each topic."""
    request, access, shape = asked.request, asked.access, TxnOffsetCommitResponseTopic
    code = ErrorCode.NONE
    if not access.may_transactional_id(AclOperation.WRITE, request.transactional_id):
        code = REFUSED
    elif not access.may_group(AclOperation.READ, request.group_id):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    if code is not ErrorCode.NONE:
        return TxnOffsetCommitResponse(topics=refused_topics(request.topics, shape, code))
    return by_topic(asked, AclOperation.READ, shape)


def guard_write_markers(asked: Asked[WriteTxnMarkersRequest]) -> Reply:
    """Require ALTER or CLUSTER_ACTION of the cluster."""
    may = asked.access.may_cluster
    if may(AclOperation.ALTER, log_denied=False) or may(AclOperation.CLUSTER_ACTION):
        return asked.pass_on()
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=refused_topics(marker.topics, WritableTxnMarkerTopicResult, code),
            )
            for marker in asked.request.markers
        ]
    )


def guard_describe(asked: Asked[DescribeTransactionsRequest]) -> Reply:
    """Require DESCRIBE of each transactional id; leave out topics without DESCRIBE."""
    request, access = asked.request, asked.access
    permitted, forbidden = divided(
        dict.fromkeys(request.transactional_ids),
        lambda one: access.may_transactional_id(AclOperation.DESCRIBE, one),
    )
    refused = [TransactionState(transactional_id=one, error_code=REFUSED) for one in forbidden]

    def amend(response: DescribeTransactionsResponse) -> DescribeTransactionsResponse:
        for state in response.transaction_states:
            state.topics = [
                one
                for one in state.topics
                if access.may_topic(AclOperation.DESCRIBE, one.topic, log_denied=False)
            ]
        response.transaction_states = [*response.transaction_states, *refused]
        return response

    return amended(asked.forward(changed(request, transactional_ids=permitted)), amend)


def guard_list(asked: Asked[ListTransactionsRequest]) -> Reply:
    """List the transactional ids that the client may describe."""

    def amend(response: ListTransactionsResponse) -> ListTransactionsResponse:
        response.transaction_states = [
            one
            for one in response.transaction_states
            if asked.access.may_transactional_id(
                AclOperation.DESCRIBE, one.transactional_id, log_denied=False
            )
        ]
        return response

    return amended(asked.pass_on(), amend)
