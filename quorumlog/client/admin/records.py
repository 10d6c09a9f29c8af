"""Requests to partition leaders: offsets, producers, deletion of records."""

from collections.abc import Iterable, Mapping
from typing import Final

from quorumlog.client import descriptions as about
from quorumlog.client.admin.asker import Answers, Asker
from quorumlog.client.checks import (
    checked_mapping,
    checked_offset,
    checked_partition,
    checked_partitions,
    checked_timestamps,
)
from quorumlog.client.core.position import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from quorumlog.client.core.topic_partitions import by_topic
from quorumlog.client.descriptions import OffsetSpec
from quorumlog.client.errors import KafkaError, answered
from quorumlog.client.io.cluster import labelled
from quorumlog.client.io.list_offsets import list_offsets
from quorumlog.client.records import OffsetAndTimestamp
from quorumlog.client.settings import IsolationLevel
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages import delete_records as delete_records_
from quorumlog.wire.codec.messages import describe_producers as describe_producers_

_SPECS: Final[Mapping[str, int]] = {
    "earliest": EARLIEST_TIMESTAMP,
    "latest": LATEST_TIMESTAMP,
    "max_timestamp": -3,  # KIP-734
}
TO_HIGH_WATERMARK: Final = -1
_States = tuple[about.ProducerStateDescription, ...]


async def offsets(
    asker: Asker, specs: Mapping[TopicPartition, OffsetSpec | int], isolation_level: IsolationLevel
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """See Admin.list_offsets."""
    timestamps: dict[TopicPartition, int] = {}
    for name, spec in checked_mapping(specs, "TopicPartition to a time or a name").items():
        if isinstance(spec, str) and spec not in _SPECS:
            known = ", ".join(map(repr, _SPECS))
            raise ValueError(f"{name}: {spec!r} must be one of {known}, or a time in ms")
        timestamps[name] = _SPECS[spec] if isinstance(spec, str) else spec
    timeout_ms = asker.settings.default_api_timeout_ms
    wanted = checked_timestamps(timestamps)
    return await list_offsets(asker.cluster, wanted, isolation_level, timeout_ms)


async def delete(asker: Asker, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """See Admin.delete_records. Retries are harmless."""
    for name, offset in checked_mapping(before, "TopicPartition to offset").items():
        checked_partition(name)
        if offset != TO_HIGH_WATERMARK:
            checked_offset(offset)

    async def ask(broker_id: int, partitions: list[TopicPartition]) -> Answers[int]:
        topics = []
        for topic, indexes in by_topic(partitions).items():
            wanted = [
                delete_records_.DeleteRecordsPartition(
                    partition_index=index, offset=before[TopicPartition(topic, index)]
                )
                for index in indexes
            ]
            topics.append(delete_records_.DeleteRecordsTopic(name=topic, partitions=wanted))
        timeout_ms = asker.settings.request_timeout_ms
        request = delete_records_.DeleteRecordsRequest(topics=topics, timeout_ms=timeout_ms)
        response = await asker.request(request, broker_id=broker_id)
        answers: dict[TopicPartition, int | KafkaError] = {}
        for answer in response.topics:
            for one in answer.partitions:
                name = TopicPartition(answer.name, one.partition_index)
                is_done = one.error_code == ErrorCode.NONE
                answers[name] = one.low_watermark if is_done else _deletion_error(name, one)
        return answers

    return await asker.ask_leaders(before, ask, changes=True)


def _deletion_error(
    name: TopicPartition, answer: delete_records_.DeleteRecordsPartitionResult
) -> KafkaError:
    # The broker checks these errors before it deletes records: the offset is above the high
    # watermark, the log is compacted, or the broker does not lead the partition.
    is_refusal = answer.error_code in {
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    error = answered(answer.error_code, str(name))
    return KafkaError(error.code, error.message, definite=error.definite or is_refusal)


async def producers(
    asker: Asker, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, _States]:
    """See Admin.describe_producers."""

    async def ask(broker_id: int, part: list[TopicPartition]) -> Answers[_States]:
        topics = [
            describe_producers_.TopicRequest(name=topic, partition_indexes=indexes)
            for topic, indexes in by_topic(part).items()
        ]
        request = describe_producers_.DescribeProducersRequest(topics=topics)
        response = await asker.request(request, broker_id=broker_id)
        answers: dict[TopicPartition, _States | KafkaError] = {}
        for topic in response.topics:
            for one in topic.partitions:
                name = TopicPartition(topic.name, one.partition_index)
                if one.error_code != ErrorCode.NONE:
                    answers[name] = answered(one.error_code, labelled(name, one.error_message))
                else:
                    answers[name] = tuple(_state(state) for state in one.active_producers)
        return answers

    return await asker.ask_leaders(checked_partitions(partitions), ask, changes=False)


def _state(state: describe_producers_.ProducerState) -> about.ProducerStateDescription:
    return about.ProducerStateDescription(
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        last_sequence=state.last_sequence,
        last_timestamp_ms=state.last_timestamp,
        coordinator_epoch=state.coordinator_epoch,
        current_txn_start_offset=state.current_txn_start_offset,
    )
