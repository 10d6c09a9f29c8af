"""DescribeProducers (API key 61): the producer state of partitions (KIP-664)."""

from quorumlog.broker.partitions.core.producer_state import ActiveProducer
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)


@answers(DescribeProducersRequest, 0, 0)
async def handle(
    context: BrokerContext, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    """Describe each partition once, even if it is named twice: a response may be large."""
    response = DescribeProducersResponse()
    named: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        named.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    for name, indexes in named.items():
        partitions = []
        for index in indexes:
            at = TopicPartition(name, index)
            error_code, producers = await context.replicas.descriptions.producers(at)
            partitions.append(
                PartitionResponse(
                    partition_index=index,
                    error_code=error_code,
                    active_producers=[*map(_state, producers)],
                )
            )
        response.topics.append(TopicResponse(name=name, partitions=partitions))
    return response


def _state(producer: ActiveProducer) -> ProducerState:
    return ProducerState(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        last_sequence=producer.last_sequence,
        last_timestamp=producer.seen_ms,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_start_offset=producer.transaction_offset,
    )
