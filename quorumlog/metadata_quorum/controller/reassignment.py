"""Moves partitions to other replicas: start, change and cancel (AlterPartitionReassignments).

A reassignment first adds the new replicas. It ends with the AlterPartition that brings the last
target replica into the ISR: `PartitionChanges.completed` then drops the removed replicas. It
refuses empty replica lists, duplicates, unregistered brokers, and a change that leaves too few
replicas with all committed records. Source: KIP-455.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final

from quorumlog.metadata_quorum.controller.assignments import replicas_problem
from quorumlog.metadata_quorum.controller.brokers import active_brokers
from quorumlog.metadata_quorum.controller.decision import Decision
from quorumlog.metadata_quorum.controller.partition_changes import (
    Assignment,
    Located,
    PartitionChanges,
    assignment_of,
)
from quorumlog.metadata_quorum.controller.refusals import TopicRefused, check_named
from quorumlog.metadata_quorum.controller_client import Reassignment, ReassignmentResult
from quorumlog.metadata_quorum.controller_requests import AlterReassignments, ReassignmentResults
from quorumlog.metadata_quorum.image.model import PartitionImage
from quorumlog.metadata_quorum.image.records import PartitionChange
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, PartitionIndex

_NOTHING_TO_CANCEL: Final = "No partition reassignment is in progress."


@dataclass(eq=False)
class ReassignmentDecisions:
    """Decides about reassignments; changes no state."""

    _cluster: ClusterReplay
    _changes: PartitionChanges

    def decide(self, request: AlterReassignments) -> Decision[ReassignmentResults]:
        """Start, change or cancel; a result per partition. Raises TopicRefused: too many."""
        check_named(len(request.wanted), "partitions")
        counts = Counter((wanted.topic, wanted.partition) for wanted in request.wanted)
        records: list[PartitionChange] = []
        results = []
        for wanted in request.wanted:
            is_repeated = counts[wanted.topic, wanted.partition] > 1
            try:
                _check_form(wanted, is_repeated=is_repeated)
                located = self._locate(wanted)
                if not request.may_change_replication_factor:
                    _check_replication_factor(located.partition, wanted)
                change = self._change(located, wanted)
            except TopicRefused as refusal:
                results.append(refusal.reassignment_result_of(wanted))
                continue
            if change is not None:
                records.append(change)
            results.append(_begun(located, change))
        response = ReassignmentResults(results=tuple(results))
        return Decision(response=response, records=tuple(records))

    def _locate(self, wanted: Reassignment) -> Located:
        topic_id = self._cluster.topic_id(wanted.topic)
        partition = self._cluster.partition(wanted.topic, wanted.partition)
        if topic_id is None or partition is None:
            raise TopicRefused(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"No such partition as {wanted.topic}-{wanted.partition}",
            )
        return Located(wanted.topic, topic_id, PartitionIndex(wanted.partition), partition)

    def _change(self, located: Located, wanted: Reassignment) -> PartitionChange | None:
        if wanted.replicas is None:
            if not located.partition.is_reassigned:
                raise TopicRefused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, _NOTHING_TO_CANCEL)
            return self._assign(located, self.without_reassignment(located.partition))
        problem = replicas_problem(self._cluster, wanted.replicas)
        if problem is not None:
            raise TopicRefused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
        return self._assign(located, self.towards(located.partition, wanted.replicas))

    def without_reassignment(self, partition: PartitionImage) -> Assignment:
        """Return the replicas of a partition before its reassignment."""
        adding = partition.adding_replicas
        return Assignment(tuple(r for r in partition.replicas if r not in adding))

    def towards(self, partition: PartitionImage, target: tuple[BrokerId, ...]) -> Assignment:
        """Return the assignment from the replicas before any reassignment towards `target`."""
        # DEVIATION: Kafka counts replicas that are still being added as original replicas.
        # docs/decisions/0016-reassignments.md
        original = self.without_reassignment(partition).replicas
        adding = tuple(sorted({*target} - {*original}))
        removing = tuple(sorted({*original} - {*target}))
        return Assignment((*target, *removing), adding, removing)

    def _assign(self, located: Located, assignment: Assignment) -> PartitionChange | None:
        partition = located.partition
        holders = {*partition.isr, *partition.elr}
        left = holders & {*assignment.replicas}
        count = len(assignment.replicas)
        wanted = max((self._changes.min_isr(located, one, count) for one in left), default=1)
        if len(left) < min(wanted, len(holders)):
            raise TopicRefused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Unable to reassign {located.topic_name}-{located.index}: of the replicas that "
                f"hold all that is committed, {sorted(holders)}, too few would be left.",
            )
        active = active_brokers(self._cluster)
        return self._changes.change(located, partition.isr, active, assignment=assignment)


def _begun(located: Located, change: PartitionChange | None) -> ReassignmentResult:
    partition_epoch = located.partition.partition_epoch + (change is not None)
    return ReassignmentResult(
        topic=located.topic_name,
        partition=located.index,
        error_code=ErrorCode.NONE,
        partition_epoch=Epoch(partition_epoch),
    )


def _check_form(wanted: Reassignment, *, is_repeated: bool) -> None:
    """Refuse a repeated partition: Kafka would decide the second on the state of the first."""
    if is_repeated:
        message = f"{wanted.topic}-{wanted.partition} is in the request more than once."
        raise TopicRefused(ErrorCode.INVALID_REQUEST, message)


def _check_replication_factor(partition: PartitionImage, wanted: Reassignment) -> None:
    now = len(assignment_of(partition).target)
    if wanted.replicas is not None and len(wanted.replicas) != now:
        raise TopicRefused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {now} to {len(wanted.replicas)}",
        )
