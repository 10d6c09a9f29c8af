"""Adds partitions to existing topics. Sources: KIP-195 (CreatePartitions), KAFKA-14996.

It refuses a count that is no increase, and assignments with a replication factor that differs from
the topic's.
"""

from collections.abc import Sequence
from typing import Final

from quorumlog.metadata_quorum.controller.assignments import Assignments, Replicas
from quorumlog.metadata_quorum.controller.refusals import (
    TopicRefused,
    check_named,
    check_partitions,
    decide_each,
    unknown_topic,
)
from quorumlog.metadata_quorum.controller.requests import CreatePartitions, Decision, TopicResults
from quorumlog.metadata_quorum.controller_client import NewPartitions, TopicResult
from quorumlog.metadata_quorum.image.model import PartitionImage
from quorumlog.metadata_quorum.image.records import MetadataRecord
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.wire.codec.error_codes import ErrorCode


class GrowthDecisions:
    """Decides additions of partitions; changes no state."""

    def __init__(self, cluster: ClusterReplay, assignments: Assignments) -> None:
        self._cluster: Final = cluster
        self._assignments: Final = assignments

    def decide_create_partitions(self, request: CreatePartitions) -> Decision[TopicResults]:
        """Add partitions to the valid topics; a result per topic, in the order of the request."""
        try:
            check_named(len(request.topics))
            check_partitions(sum(map(self._added, request.topics)))
        except TopicRefused as refusal:
            whole = tuple(refusal.result_of(topic.name) for topic in request.topics)
            return Decision(response=TopicResults(results=whole))
        records, results = decide_each(
            request.topics,
            lambda topic, _: self._grow(topic),
            TopicRefused.result_of,
            twice="Duplicate topic name.",
        )
        return Decision(
            response=TopicResults(results=results), records=() if request.validate_only else records
        )

    def _added(self, topic: NewPartitions) -> int:
        return max(0, topic.count - self._cluster.partition_count(topic.name))

    def _grow(self, topic: NewPartitions) -> tuple[list[MetadataRecord], TopicResult]:
        topic_id, first = self._cluster.topic_id(topic.name), self._cluster.partition(topic.name, 0)
        if topic_id is None or first is None:
            raise unknown_topic()
        existing = self._cluster.partition_count(topic.name)
        _check_increase(topic, existing)
        assignments = self._assign(topic, existing, first)
        result = TopicResult(
            name=topic.name,
            error_code=ErrorCode.NONE,
            topic_id=topic_id,
            partitions=topic.count,
            replication_factor=len(first.replicas),
        )
        return self._assignments.records(topic_id, assignments, first_partition=existing), result

    def _assign(
        self, topic: NewPartitions, existing: int, first: PartitionImage
    ) -> Sequence[Replicas]:
        added, replication_factor = topic.count - existing, len(first.replicas)
        if topic.assignments is None:
            return self._assignments.place(added, replication_factor, first_partition=existing)
        if len(topic.assignments) != added:
            raise TopicRefused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {added} additional partition(s), but "
                f"{len(topic.assignments)} assignment(s) were specified.",
            )
        self._assignments.check(topic.assignments, replication_factor, first_partition=existing)
        return topic.assignments


def _check_increase(topic: NewPartitions, existing: int) -> None:
    if topic.count == existing:
        raise TopicRefused(
            ErrorCode.INVALID_PARTITIONS, f"Topic already has {existing} partition(s)."
        )
    if topic.count < existing:
        raise TopicRefused(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {existing} partition(s); "
            f"{topic.count} would not be an increase.",
        )
