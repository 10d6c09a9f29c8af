"""AddPartitionsToTxn (24): adds partitions to a transaction. Source: KIP-98, KIP-890.

Clients send up to v3, for one transactional id. Brokers that lead partitions send v4 and later, for
several ids, to verify or to add: only brokers may name internal topics.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from quorumlog.broker.server.api import BrokerContext, Disconnect, Reply, answers, when_done
from quorumlog.broker.transactions.core.requests import (
    AddPartitions,
    AddPartitionsResult,
    ProducerIdAndEpoch,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID, TopicPartition
from quorumlog.wire.codec.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
)
from quorumlog.wire.codec.schemas import RequestHeader
from quorumlog.wire.codec.topic_names import INTERNAL_TOPICS

FIRST_VERSION_OF_BROKERS: Final = 4
# DEVIATION: Kafka takes as many as a request holds: millions.
# docs/decisions/0033-transaction-coordinator.md
PARTITIONS_MAX: Final = 10_000  # of one transaction in one request: 20 ms
REFUSED_MAX: Final = 5 * PARTITIONS_MAX  # partitions that a refusal to a client can list
PARTITIONS_AT_ONCE: Final = 1000  # handled without a break


@answers(AddPartitionsToTxnRequest, 0, 5)
def handle(
    context: BrokerContext, header: RequestHeader, request: AddPartitionsToTxnRequest
) -> Reply:
    """Add or verify partitions; answer once an addition is committed."""
    version = header.api_version
    if version >= FIRST_VERSION_OF_BROKERS:
        if any(_count(one.topics) > PARTITIONS_MAX for one in request.transactions):
            return AddPartitionsToTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
        return _answer_broker(context, version, request)
    count = _count(request.v3_and_below_topics)
    if count > REFUSED_MAX:  # a client's response has error codes of partitions only
        raise Disconnect(f"AddPartitionsToTxn names {count} partitions: more than {REFUSED_MAX}")
    if count > PARTITIONS_MAX:
        return _refuse_client(request)
    result = _ask(
        context,
        version,
        request.v3_and_below_transactional_id,
        ProducerIdAndEpoch(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
        request.v3_and_below_topics,
    )

    def respond(result: AddPartitionsResult) -> AddPartitionsToTxnResponse:
        return AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=_topic_results(result.partitions)
        )

    return when_done(result, respond)


async def _refuse_client(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
    """Answer INVALID_REQUEST for each partition: it is fatal, so the producer does not retry."""
    results = []
    since_break = 0
    for topic in request.v3_and_below_topics:
        result = AddPartitionsToTxnTopicResult(name=topic.name)
        for index in topic.partitions:
            refused = AddPartitionsToTxnPartitionResult(
                partition_index=index, partition_error_code=ErrorCode.INVALID_REQUEST
            )
            result.results_by_partition.append(refused)
            since_break += 1
            if since_break >= PARTITIONS_AT_ONCE:
                since_break = 0
                await asyncio.sleep(0)
        results.append(result)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)


async def _answer_broker(
    context: BrokerContext, version: int, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    asked = []
    since_break = 0
    for one in request.transactions:
        asked.append(
            _ask(
                context,
                version,
                one.transactional_id,
                ProducerIdAndEpoch(one.producer_id, one.producer_epoch),
                one.topics,
                verify_only=one.verify_only,
            )
        )
        since_break += _count(one.topics)
        if since_break >= PARTITIONS_AT_ONCE:
            since_break = 0
            await asyncio.sleep(0)
    results = await asyncio.gather(*asked)
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResult(
                transactional_id=one.transactional_id,
                topic_results=_topic_results(result.partitions),
            )
            for one, result in zip(request.transactions, results, strict=True)
        ]
    )


def _count(topics: Iterable[AddPartitionsToTxnTopic]) -> int:
    return sum(len(topic.partitions) for topic in topics)


def _ask(
    context: BrokerContext,
    version: int,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    topics: Iterable[AddPartitionsToTxnTopic],
    *,
    verify_only: bool = False,
) -> asyncio.Future[AddPartitionsResult]:
    """Send the coordinator the request; if any partition cannot be added, refuse all."""
    topics = [*topics]
    partitions = frozenset(
        TopicPartition(topic.name, index) for topic in topics for index in topic.partitions
    )
    refused = {}
    for where in partitions:
        if version < FIRST_VERSION_OF_BROKERS and where.topic in INTERNAL_TOPICS:
            refused[where] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif context.image.partition(where) is None:
            refused[where] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for topic in topics:
        if _is_other_topic(context, topic):
            other = (TopicPartition(topic.name, index) for index in topic.partitions)
            refused.update(dict.fromkeys(other, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    if refused:
        outcomes = {**dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED), **refused}
        answer: asyncio.Future[AddPartitionsResult] = asyncio.get_running_loop().create_future()
        answer.set_result(AddPartitionsResult(partitions=outcomes))
        return answer
    return context.transactions.ask(
        AddPartitions(
            transactional_id=transactional_id,
            api_version=version,
            producer=producer,
            partitions=partitions,
            verify_only=verify_only,
        )
    )


def _is_other_topic(context: BrokerContext, topic: AddPartitionsToTxnTopic) -> bool:
    """Whether the topic of this name has another id: it was deleted and created again.

    The image here or at the leader is behind. If ours is, our markers would go to the former topic.
    """
    # DEVIATION: Kafka's brokers compare names. docs/decisions/0034-transaction-verification.md
    found = context.image.topics.get(topic.name)
    return found is not None and topic.topic_id not in {ZERO_TOPIC_ID, found.topic_id}


def _topic_results(
    outcomes: Mapping[TopicPartition, ErrorCode],
) -> list[AddPartitionsToTxnTopicResult]:
    topics: dict[str, AddPartitionsToTxnTopicResult] = {}
    for where, error_code in sorted(outcomes.items()):
        topic = topics.setdefault(where.topic, AddPartitionsToTxnTopicResult(name=where.topic))
        topic.results_by_partition.append(
            AddPartitionsToTxnPartitionResult(
                partition_index=where.partition, partition_error_code=error_code
            )
        )
    return [*topics.values()]
