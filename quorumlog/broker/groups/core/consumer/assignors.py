"""The assignors `uniform` and `range` of the coordinator: which member gets which partition.

Pure functions of the members and of the partition counts of their topics. Every partition of an
existing subscribed topic goes to exactly one subscriber. Racks are ignored. Sources: KIP-848
(server-side assignors), Kafka's UniformAssignor, RangeAssignor.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

from sortedcontainers import SortedSet

from quorumlog.broker.groups.core.consumer.partitions import (
    Partitions,
    TopicIdPartition,
    partitions_of,
)
from quorumlog.wire.codec.identifiers import TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSubscription:
    """A member's subscription; `target`: its part of the previous target."""

    topic_ids: frozenset[TopicId]
    instance_id: str | None
    target: Partitions


Members = Mapping[str, MemberSubscription]
Counts = Mapping[TopicId, int]
Assignment = dict[str, Partitions]
Assign = Callable[[Members, Counts], Assignment]
Load = tuple[int, int]  # (partitions, place of the member): the poorest member has the smallest


def in_order(members: Members) -> list[str]:
    """Sort static members first by instance id, then the others by member id, as in Kafka."""

    def place(member_id: str) -> tuple[bool, str, str]:
        instance_id = members[member_id].instance_id
        return instance_id is None, instance_id or "", member_id

    return sorted(members, key=place)


def assign_range(members: Members, counts: Counts) -> Assignment:
    """Give each subscriber of a topic neighbouring partitions; the first subscribers get one more.

    Topics of equal size with the same subscribers are split alike.
    """
    assignment: dict[str, list[TopicIdPartition]] = {member_id: [] for member_id in members}
    readers: dict[TopicId, list[str]] = {}
    for member_id in in_order(members):
        for topic_id in members[member_id].topic_ids:
            readers.setdefault(topic_id, []).append(member_id)
    for topic_id in sorted(readers.keys() & counts.keys()):
        share, extra = divmod(counts[topic_id], len(readers[topic_id]))
        start = 0
        for place, member_id in enumerate(readers[topic_id]):
            end = start + share + (place < extra)
            assignment[member_id] += partitions_of(topic_id, range(start, end))
            start = end
    return {member_id: frozenset(partitions) for member_id, partitions in assignment.items()}


def assign_uniform(members: Members, counts: Counts) -> Assignment:
    """Keep the previous target, then move as few partitions as possible to even the loads.

    With equal subscriptions the loads differ by at most one. With other subscriptions, no partition
    has a subscriber with at least two partitions fewer than its owner.
    """
    uniform = _Uniform(members, counts)
    uniform.keep()
    uniform.hand_out()
    uniform.balance()
    return {member_id: uniform.result(place) for place, member_id in enumerate(uniform.order)}


class _Class:
    """The members with the same subscription, and their loads in order."""

    def __init__(self, topic_ids: frozenset[TopicId]) -> None:
        self.topic_ids: Final = topic_ids
        self.places: Final[list[int]] = []
        self.loads: SortedSet[Load] = SortedSet()

    @property
    def poorest(self) -> Load:
        """The smallest load, with the place of its member."""
        return self.loads[0]


class _Uniform:
    """One computation. A member is identified by its place in `order`.

    Members with the same subscription form a class. The poorest subscriber of a topic is found
    among few classes, so a move takes time logarithmic in the number of members.
    """

    def __init__(self, members: Members, counts: Counts) -> None:
        self._counts = counts
        self.order: Final = in_order(members)
        self._members = [members[member_id] for member_id in self.order]
        self._held: list[dict[TopicId, list[TopicIdPartition]]] = [{} for _ in self.order]
        self._load = [0] * len(self.order)
        self._changed = [False] * len(self.order)
        self._is_sorted = False
        self._given: dict[TopicId, set[int]] = {topic_id: set() for topic_id in counts}
        classes: dict[frozenset[TopicId], _Class] = {}
        self._class_of: list[_Class] = []
        for place, member in enumerate(self._members):
            own = classes.setdefault(member.topic_ids, _Class(member.topic_ids))
            own.places.append(place)
            self._class_of.append(own)
        self._classes: Final = [*classes.values()]

    def keep(self) -> None:
        """Give every member the valid part of its target; the first of two claims wins."""
        for place, member in enumerate(self._members):
            held = self._held[place]
            for partition in member.target:
                topic_id, index = partition
                if topic_id in member.topic_ids and index < self._counts.get(topic_id, 0):
                    given = self._given[topic_id]
                    if index not in given:
                        given.add(index)
                        held.setdefault(topic_id, []).append(partition)
                        self._load[place] += 1
            self._changed[place] = self._load[place] != len(member.target)
        for one in self._classes:
            one.loads = SortedSet((self._load[place], place) for place in one.places)

    def hand_out(self) -> None:
        """Give free partitions to the poorest subscribers; topics of few subscribers first."""
        readers: dict[TopicId, list[_Class]] = {}
        for one in self._classes:
            for topic_id in one.topic_ids & self._counts.keys():
                readers.setdefault(topic_id, []).append(one)
        choice = {
            topic_id: sum(len(one.places) for one in found) for topic_id, found in readers.items()
        }
        for topic_id in sorted(readers, key=lambda topic_id: (choice[topic_id], topic_id)):
            given, count = self._given[topic_id], self._counts[topic_id]
            for index in range(count) if len(given) < count else ():
                if index not in given:
                    _, poor = min(one.poorest for one in readers[topic_id])
                    self._give(poor, TopicIdPartition(topic_id, index))

    def balance(self) -> None:
        """Move single partitions from the richest to the poorest while that evens the loads.

        Every move lowers the sum of the squares of the loads, so the moves come to an end.
        """
        moved = True
        while moved:
            moved = False
            richest = [(-load, place) for place, load in enumerate(self._load)]
            heapify(richest)
            while richest:
                noted_load, place = heappop(richest)
                if -noted_load != self._load[place]:
                    heappush(richest, (-self._load[place], place))  # its load changed meanwhile
                elif self._move_one(place):
                    moved = True
                    heappush(richest, (-self._load[place], place))

    def _move_one(self, rich: int) -> bool:
        """Move a partition to the poorest member that may have it, if that evens the loads."""
        held = self._held[rich]
        for (load, poor), one in sorted(
            ((one.poorest, one) for one in self._classes), key=lambda choice: choice[0]
        ):
            if self._load[rich] - load <= 1:
                return False
            movable = one.topic_ids & held.keys()
            if movable:
                topic_id = min(movable)
                self._sort_once()
                partition = held[topic_id].pop()
                if not held[topic_id]:
                    del held[topic_id]
                self._count(rich, -1)
                self._give(poor, partition)
                return True
        return False

    def _sort_once(self) -> None:
        """Sort each member's partitions by topic: a move takes the last, whatever the set order.

        The time of a move does not depend on the number of the member's partitions.
        """
        if not self._is_sorted:
            self._is_sorted = True
            for held in self._held:
                for partitions in held.values():
                    partitions.sort()

    def _give(self, place: int, partition: TopicIdPartition) -> None:
        self._held[place].setdefault(partition.topic_id, []).append(partition)
        self._count(place, 1)

    def _count(self, place: int, change: int) -> None:
        loads, load = self._class_of[place].loads, self._load[place]
        loads.remove((load, place))
        loads.add((load + change, place))
        self._load[place] = load + change
        self._changed[place] = True

    def result(self, place: int) -> Partitions:
        """Return the partitions of the member."""
        if not self._changed[place]:
            return self._members[place].target
        return frozenset(one for held in self._held[place].values() for one in held)


def assignors(names: Sequence[str]) -> Mapping[str, Assign]:
    """Return the assignors of these names (`group.consumer.assignors`), the default first.

    Raises KeyError: there is no assignor of that name.
    """
    return {name: ASSIGNORS[name] for name in names}


ASSIGNORS: Final[Mapping[str, Assign]] = {"uniform": assign_uniform, "range": assign_range}
