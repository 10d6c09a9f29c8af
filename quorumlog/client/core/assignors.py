"""Assigns partitions to members: the decisions of a classic group's leader.

Each assignor is a pure function of the members' subscriptions and the topics' partition counts;
every Kafka client must compute the same assignment, since any member may be the leader.
Sources: Kafka's RangeAssignor, RoundRobinAssignor, CooperativeStickyAssignor (KIP-54, KIP-429).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Final

from quorumlog.wire.codec.identifiers import TopicPartition

Assignment = dict[str, list[TopicPartition]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """One member's subscription; only sticky assignors use `owned` and `generation_id`."""

    topics: tuple[str, ...]
    instance_id: str | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation_id: int = -1


Members = Mapping[str, Subscription]
Counts = Mapping[str, int]
Assign = Callable[[Members, Counts], Assignment]


def _in_order(members: Members) -> list[str]:
    """Sort static members first by instance id, then the others by member id, as in Kafka."""

    def place(member: str) -> tuple[bool, str, str]:
        instance = members[member].instance_id
        return instance is None, instance or "", member

    return sorted(members, key=place)


def partitions_of(topics: Iterable[str], counts: Counts) -> list[TopicPartition]:
    """Return all partitions of these topics, topic by topic."""
    return [TopicPartition(topic, index) for topic in topics for index in range(counts[topic])]


def assign_range(members: Members, counts: Counts) -> Assignment:
    """Assign each topic's partitions in equal ranges; the first members may get one more."""
    assignment: Assignment = {member: [] for member in members}
    for topic in sorted(counts):
        readers = [member for member in _in_order(members) if topic in members[member].topics]
        if not readers:
            continue
        share, extra = divmod(counts[topic], len(readers))
        start = 0
        for position, member in enumerate(readers):
            end = start + share + (position < extra)
            assignment[member] += [TopicPartition(topic, index) for index in range(start, end)]
            start = end
    return assignment


def assign_round_robin(members: Members, counts: Counts) -> Assignment:
    """Assign all partitions in order, in turn to the members that subscribe to their topic."""
    assignment: Assignment = {member: [] for member in members}
    wanted = {topic for member in members.values() for topic in member.topics}
    turns = cycle(_in_order(members))
    for partition in partitions_of(sorted(wanted & {*counts}), counts):
        member = next(turns)
        while partition.topic not in members[member].topics:
            member = next(turns)
        assignment[member].append(partition)
    return assignment


def assign_sticky(members: Members, counts: Counts) -> Assignment:
    """Keep owned partitions, then move as few as needed until loads differ by at most one.

    A partition that changes its member is left out of this assignment while its owner has it: the
    owner revokes it, rejoins, and the next assignment includes it (KIP-429). If subscriptions
    differ, the loads are as even as moving single partitions can make them.
    """
    assignment = _owned(members, counts)
    owner = {partition: member for member, owned in assignment.items() for partition in owned}
    wanted = {topic for member in members.values() for topic in member.topics}
    order = _in_order(members)
    for partition in partitions_of(sorted(wanted & {*counts}), counts):
        if partition not in owner:
            readers = [member for member in order if partition.topic in members[member].topics]
            poorest = min(readers, key=lambda member: len(assignment[member]))
            assignment[poorest].append(partition)
    _balance(assignment, members, order)
    for member, partitions in assignment.items():
        partitions[:] = sorted(p for p in partitions if owner.get(p, member) == member)
    return assignment


def _owned(members: Members, counts: Counts) -> Assignment:
    """Return the partitions each member may keep; of two claims the newer generation wins."""
    claims: dict[TopicPartition, tuple[int, str]] = {}
    disputed: set[TopicPartition] = set()
    for member in sorted(members):
        subscription = members[member]
        for partition in subscription.owned:
            exists = partition.partition < counts.get(partition.topic, 0)
            if not exists or partition.topic not in subscription.topics:
                continue
            generation = subscription.generation_id
            rival = claims.get(partition, (generation - 1, ""))
            if rival[0] == generation:
                disputed.add(partition)
            elif rival[0] < generation:
                disputed.discard(partition)
                claims[partition] = generation, member
    assignment: Assignment = {member: [] for member in members}
    for partition, (_, member) in sorted(claims.items()):
        if partition not in disputed:
            assignment[member].append(partition)
    return assignment


def _balance(assignment: Assignment, members: Members, order: Sequence[str]) -> None:
    """Move single partitions from members with more to members with fewer, until loads are even."""
    moved = True
    while moved:
        moved = False
        for rich in sorted(order, key=lambda member: -len(assignment[member])):
            for partition in sorted(assignment[rich]):
                readers = [member for member in order if partition.topic in members[member].topics]
                poor = min(readers, key=lambda member: len(assignment[member]))
                if len(assignment[rich]) - len(assignment[poor]) > 1:
                    assignment[rich].remove(partition)
                    assignment[poor].append(partition)
                    moved = True


ASSIGNORS: Final[Mapping[str, Assign]] = {
    "range": assign_range,
    "roundrobin": assign_round_robin,
    "cooperative-sticky": assign_sticky,
}
COOPERATIVE: Final = frozenset({"cooperative-sticky"})
"""Protocols whose members keep their partitions during a rebalance."""
