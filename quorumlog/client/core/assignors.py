"""Assigns partitions to members: the decisions of a classic group's leader.

Each assignor is a pure function of the members' subscriptions, the partitions and their racks. The
result of any assignor is checked before it is sent. Range computes the same assignment as Kafka's.
Sources: Kafka's RangeAssignor, RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor
(KIP-54, KIP-429); racks: KIP-881.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import cycle
from typing import Any, Final, SupportsIndex

from quorumlog.client.assignor import Members, NamedAssignor, Partitions, named_assignor
from quorumlog.client.core.absences import listed
from quorumlog.client.core.sticky_assignor import (
    assign_sticky,
    in_order,
    owned_partitions,
    readers_by_topic,
)
from quorumlog.client.errors import AssignorError
from quorumlog.client.settings import ConsumerSettings
from quorumlog.wire.codec.identifiers import TopicPartition

Assignment = dict[str, list[TopicPartition]]


def partitions_of(topics: Iterable[str], counts: Mapping[str, int]) -> list[TopicPartition]:
    """Return all partitions of these topics, topic by topic."""
    return [TopicPartition(topic, index) for topic in topics for index in range(counts[topic])]


# --- range ---


class _Topic:
    """One topic's unassigned partitions, and the number that each of its readers may still get."""

    def __init__(self, partitions: list[TopicPartition], readers: tuple[str, ...]) -> None:
        self.readers: Final = readers
        self.partitions: Final = tuple(partitions)
        self.free: Final = dict.fromkeys(partitions)
        self._share, self._extra = divmod(len(partitions), len(readers))
        self._taken: Final = dict.fromkeys(readers, 0)

    def room(self, reader: str) -> int:
        """Return how many more partitions the reader may get."""
        return max(0, self._share + (self._extra > 0) - self._taken[reader])

    def give(self, reader: str, partitions: Collection[TopicPartition]) -> None:
        """Mark the partitions, at least one, as the reader's."""
        self._taken[reader] += len(partitions)
        self._extra -= self._taken[reader] > self._share
        for partition in partitions:
            del self.free[partition]

    def needs_racks(self, members: Members, partitions: Partitions) -> bool:
        """Return whether some reader is nearer to some partitions than to others."""
        replica_racks = [partitions[one] for one in self.partitions]
        every_rack = frozenset[str]().union(*replica_racks)
        has_reader = any(members[reader].rack in every_rack for reader in self.readers)
        return has_reader and any(racks != every_rack for racks in replica_racks)


def assign_range(members: Members, partitions: Partitions) -> Assignment:
    """Assign each topic's partitions in equal ranges; the first members may get one more.

    Where racks matter, a member gets partitions with a replica in its rack first; topics with the
    same readers and partition count stay co-partitioned if all have a replica there (KIP-881).
    """
    assignment: Assignment = {member: [] for member in members}
    readers = readers_by_topic(members)
    by_topic: dict[str, list[TopicPartition]] = {}
    for partition in sorted(partitions):
        by_topic.setdefault(partition.topic, []).append(partition)
    topics = [
        _Topic(of_topic, readers[name]) for name, of_topic in by_topic.items() if name in readers
    ]

    def is_near(reader: str, partition: TopicPartition) -> bool:
        return members[reader].rack is None or members[reader].rack in partitions[partition]

    needing = [topic for topic in topics if topic.needs_racks(members, partitions)]
    if needing:
        alike: dict[tuple[tuple[str, ...], int], list[_Topic]] = {}
        for topic in topics:
            alike.setdefault((topic.readers, len(topic.partitions)), []).append(topic)
        for group in alike.values():
            if len(group) > 1:
                _assign_together(group, is_near, assignment)
            elif group[0] in needing:
                _assign_ranges(group[0], is_near, assignment)
    for topic in topics:
        _assign_ranges(topic, lambda _reader, _partition: True, assignment)
    for assigned in assignment.values():
        assigned.sort()
    return assignment


IsNear = Callable[[str, TopicPartition], bool]


def _assign_ranges(topic: _Topic, may_read: IsNear, assignment: Assignment) -> None:
    for reader in topic.readers:
        free = [one for one in topic.free if may_read(reader, one)][: topic.room(reader)]
        if free:
            topic.give(reader, free)
            assignment[reader] += free


def _assign_together(topics: list[_Topic], is_near: IsNear, assignment: Assignment) -> None:
    """Assign the partitions of one number of all topics to one reader that is near to all."""
    readers = dict.fromkeys(topics[0].readers)
    for together in zip(*(topic.partitions for topic in topics), strict=True):
        for reader in readers:
            has_room = all(topic.room(reader) for topic in topics)
            if has_room and all(is_near(reader, partition) for partition in together):
                break
        else:
            continue
        for topic, partition in zip(topics, together, strict=True):
            topic.give(reader, [partition])
            assignment[reader].append(partition)
        if not any(topic.room(reader) for topic in topics):
            del readers[reader]


# --- round robin ---


def assign_round_robin(members: Members, partitions: Partitions) -> Assignment:
    """Assign all partitions in order, in turn to the members that subscribe to their topic."""
    assignment: Assignment = {member: [] for member in members}
    turns = cycle(in_order(members))
    readers = {topic: frozenset(same) for topic, same in readers_by_topic(members).items()}
    for partition in sorted(partitions):
        if partition.topic not in readers:
            continue
        member = next(turns)
        while member not in readers[partition.topic]:
            member = next(turns)
        assignment[member].append(partition)
    return assignment


# --- all assignors ---

ASSIGNORS: Final[Mapping[str, NamedAssignor]] = {
    one.name: one
    for one in (
        NamedAssignor("range", "eager", assign_range, is_own=False),
        NamedAssignor("roundrobin", "eager", assign_round_robin, is_own=False),
        NamedAssignor("sticky", "eager", assign_sticky, is_own=False),
        NamedAssignor("cooperative-sticky", "cooperative", assign_sticky, is_own=False),
    )
}


def assignors_of(settings: ConsumerSettings) -> dict[str, NamedAssignor]:
    """Return the consumer's assignors by name, in order of preference."""
    return {
        one.name: one
        for given in settings.assignors
        for one in [ASSIGNORS[given] if isinstance(given, str) else named_assignor(given)]
    }


def assign(assignor: NamedAssignor, members: Members, partitions: Partitions) -> Assignment:
    """Return the assignment to send: complete, but for partitions that are to be revoked first.

    Raises AssignorError if the assignor raises, or if its result forgets or repeats a partition,
    or has an unknown member or partition.
    """
    try:
        returned = assignor.assign({**members}, {**partitions})
        assignment = _checked(assignor.name, returned, members, partitions)  # it may be lazy
    except AssignorError:
        raise
    except BaseException as error:  # an assignor must not end the thread or its process, either
        raise AssignorError(assignor.name, f"raised {error!r}") from error
    if assignor.protocol == "cooperative":
        owners = owned_partitions(members, partitions)
        for member, assigned in assignment.items():
            assigned[:] = [one for one in assigned if owners.get(one, member) == member]
    return assignment


def _checked(name: str, returned: Any, members: Members, partitions: Partitions) -> Assignment:
    if not isinstance(returned, Mapping):
        kind = type(returned).__name__
        raise AssignorError(name, f"returned {kind}, not a mapping of member ids to partitions")
    assignment: Assignment = {member: [] for member in members}
    readers: dict[TopicPartition, str] = {}
    for member, assigned in returned.items():
        if member not in members:
            raise AssignorError(name, f"assigned partitions to {member!r}, which is no member")
        topics = frozenset(members[member].topics)
        for partition in _partitions(name, member, assigned):
            if partition not in partitions or partition.topic not in topics:
                why = "no partition of its topics"
                raise AssignorError(name, f"assigned {partition} to {member}: {why}")
            if partition in readers:
                twice = f"{readers[partition]} and {member}"
                raise AssignorError(name, f"assigned {partition} twice: to {twice}")
            readers[partition] = member
            assignment[member].append(partition)
    forgotten = [one for one in sorted(partitions) if one not in readers]
    if forgotten:
        raise AssignorError(name, f"assigned to no member: {listed(forgotten)}")
    for assigned in assignment.values():
        assigned.sort()
    return assignment


def _partitions(name: str, member: str, assigned: Any) -> Iterable[TopicPartition]:
    """Yield the partitions of one member. Raises AssignorError for other objects."""
    if not isinstance(assigned, Iterable):
        raise AssignorError(name, f"assigned {assigned!r} to {member}: no list of partitions")
    for partition in assigned:
        is_one = isinstance(partition, TopicPartition)
        if not is_one or not isinstance(partition.partition, SupportsIndex):  # 1.0 == 1
            raise AssignorError(name, f"assigned {partition!r} to {member}: no TopicPartition")
        yield partition
