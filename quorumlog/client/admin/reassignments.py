"""Partition reassignments: altered and listed. Source: KIP-455."""

from collections.abc import Iterable, Mapping, Sequence

from quorumlog.client import descriptions as about
from quorumlog.client.admin.asker import Asker, check_all
from quorumlog.client.checks import checked_all, checked_partitions
from quorumlog.client.core.topic_partitions import by_topic
from quorumlog.client.io.cluster import QUESTION_TIMEOUT_MS, check
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages import alter_partition_reassignments as alter_
from quorumlog.wire.codec.messages import list_partition_reassignments as list_


async def alter(asker: Asker, replicas: Mapping[TopicPartition, Sequence[int] | None]) -> None:
    """See Admin.alter_partition_reassignments."""
    if not isinstance(replicas, Mapping):
        raise TypeError(f"must be a dict of TopicPartition to replicas, not {replicas!r}")
    wanted = checked_partitions(replicas)
    request = alter_.AlterPartitionReassignmentsRequest(
        timeout_ms=asker.settings.request_timeout_ms,
        topics=[
            alter_.ReassignableTopic(
                name=topic,
                partitions=[
                    _target(index, replicas[TopicPartition(topic, index)]) for index in indexes
                ],
            )
            for topic, indexes in by_topic(wanted).items()
        ],
    )

    async def attempt() -> None:
        response = await asker.request(request)
        check(response.error_code, response.error_message or "AlterPartitionReassignments")
        outcomes = {
            TopicPartition(topic.name, one.partition_index): one
            for topic in response.responses
            for one in topic.partitions
        }
        check_all(wanted, outcomes)

    await asker.retry(attempt, changes=True)


def _target(index: int, replicas: Sequence[int] | None) -> alter_.ReassignablePartition:
    return alter_.ReassignablePartition(
        partition_index=index,
        replicas=None if replicas is None else checked_all(replicas, int, "broker ids"),
    )


async def ongoing(
    asker: Asker, partitions: Iterable[TopicPartition] | None
) -> dict[TopicPartition, about.PartitionReassignment]:
    """See Admin.list_partition_reassignments."""
    topics = None
    if partitions is not None:
        topics = [
            list_.ListPartitionReassignmentsTopics(name=topic, partition_indexes=indexes)
            for topic, indexes in by_topic(checked_partitions(partitions)).items()
        ]
    request = list_.ListPartitionReassignmentsRequest(
        timeout_ms=asker.settings.request_timeout_ms, topics=topics
    )
    response = await asker.ask(request, changes=False, timeout_ms=QUESTION_TIMEOUT_MS)
    return {
        TopicPartition(topic.name, one.partition_index): about.PartitionReassignment(
            replicas=tuple(one.replicas),
            adding_replicas=tuple(one.adding_replicas),
            removing_replicas=tuple(one.removing_replicas),
        )
        for topic in response.topics
        for one in topic.partitions
    }
