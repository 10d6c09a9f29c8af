"""Runs assignors for tests as a leader does, without a thread."""

from collections.abc import Mapping

from quorumlog.client.assignor import Partitions
from quorumlog.client.core.assignors import assign, partitions_of
from quorumlog.client.core.group_protocol import encode_assignment
from quorumlog.client.core.membership_events import AssignmentComputed, ComputeAssignment
from quorumlog.wire.codec.identifiers import TopicPartition

NO_RACKS = frozenset[str]()


def placed(
    counts: Mapping[str, int], racks: Mapping[TopicPartition, frozenset[str]] | None = None
) -> Partitions:
    """Return the partitions of the topics, each with its racks, or none."""
    partitions = partitions_of(sorted(counts), counts)
    return {one: (racks or {}).get(one, NO_RACKS) for one in partitions}


def computed(effect: ComputeAssignment) -> AssignmentComputed:
    """Return the end of the effect, with the assignor's own assignment."""
    assignment = assign(effect.assignor, effect.members, placed(effect.counts))
    encoded = tuple((one, encode_assignment(assignment[one])) for one in sorted(assignment))
    return AssignmentComputed(generation_id=effect.generation_id, assignments=encoded)
