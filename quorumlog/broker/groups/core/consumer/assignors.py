"""Which member gets which partition: the assignors `uniform` and `range` of the coordinator.

Pure functions of the members and of the partition counts of their topics. Partitions of topics that
do not exist are given to nobody; every other subscribed partition is given to exactly one member.
Racks are ignored. Sources: KIP-848 (server-side assignors), Kafka's UniformAssignor, RangeAssignor.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final

from sortedcontainers import SortedSet

from quorumlog.broker.groups.core.consumer.partitions import (
    NO_PARTITIONS,
    Partitions,
    TopicIdPartition,
)
from quorumlog.wire.codec.identifiers import TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSubscription:
    """What a member wants; `target`: what it was to have until now."""

    topic_ids: frozenset[TopicId]
    instance_id: str | None = None
    target: Partitions = NO_PARTITIONS


Members = Mapping[str, MemberSubscription]
Counts = Mapping[TopicId, int]
Assignment = dict[str, Partitions]
Assign = Callable[[Members, Counts], Assignment]
Load = tuple[int, int]  # (number of partitions, place of the member): the poorest is the smallest


def in_order(members: Members) -> list[str]:
    """Sort static members first by instance id, then the others by member id, as in Kafka."""

    def place(member_id: str) -> tuple[bool, str, str]:
        instance_id = members[member_id].instance_id
        return instance_id is None, instance_id or "", member_id

    return sorted(members, key=place)


def assign_range(members: Members, counts: Counts) -> Assignment:
    """Topic by topic: neighbouring partitions to each subscriber, the first get one more.

    So topics of equal size with the same subscribers are partitioned alike.
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
            assignment[member_id] += [
                TopicIdPartition(topic_id, index) for index in range(start, end)
            ]
            start = end
    return {member_id: frozenset(partitions) for member_id, partitions in assignment.items()}


def assign_uniform(members: Members, counts: Counts) -> Assignment:
    """Keep the target, then move as few partitions as make the loads as even as can be.

    With equal subscriptions the loads differ by one at most. With others, no single partition can
    go to a member that has two fewer than its owner.
    """
    uniform = _Uniform(members, counts)
    uniform.keep()
    uniform.hand_out()
    uniform.balance()
    return {
        member_id: frozenset(
            TopicIdPartition(topic_id, index)
            for topic_id, indexes in uniform.held[place].items()
            for index in indexes
        )
        for place, member_id in enumerate(uniform.order)
    }


class _Uniform:
    """One computation. Members of equal subscriptions are one class, whose loads are in order.

    The poorest subscriber of a topic is the poorest of few classes, so that a move costs the
    logarithm of the members, not their number.
    """

    def __init__(self, members: Members, counts: Counts) -> None:
        self._members, self._counts = members, counts
        self.order: Final = in_order(members)
        self.held: Final[list[dict[TopicId, list[int]]]] = [{} for _ in self.order]
        self._load = [0] * len(self.order)
        classes: dict[frozenset[TopicId], SortedSet[Load]] = {}
        self._class_of: list[SortedSet[Load]] = []
        for place, member_id in enumerate(self.order):
            loads = classes.setdefault(members[member_id].topic_ids, SortedSet())
            loads.add((0, place))
            self._class_of.append(loads)
        self._readers: dict[TopicId, list[SortedSet[Load]]] = {}
        for topic_ids, loads in classes.items():
            for topic_id in topic_ids & counts.keys():
                self._readers.setdefault(topic_id, []).append(loads)

    def _give(self, place: int, topic_id: TopicId, index: int) -> None:
        self.held[place].setdefault(topic_id, []).append(index)
        self._count(place, 1)

    def _count(self, place: int, change: int) -> None:
        loads, load = self._class_of[place], self._load[place]
        loads.remove((load, place))
        loads.add((load + change, place))
        self._load[place] = load + change

    def _poorest(self, topic_id: TopicId) -> Load:
        readers = self._readers[topic_id]
        return readers[0][0] if len(readers) == 1 else min(loads[0] for loads in readers)

    def keep(self) -> None:
        """Give every member what is left of its target; of two claims the first counts."""
        self._given: set[TopicIdPartition] = set()
        for place, member_id in enumerate(self.order):
            member = self._members[member_id]
            for partition in sorted(member.target - self._given):
                topic_id, index = partition
                if topic_id in member.topic_ids and index < self._counts.get(topic_id, 0):
                    self._given.add(partition)
                    self._give(place, topic_id, index)

    def hand_out(self) -> None:
        """Give what nobody has to the poorest; topics of few subscribers first."""
        by_choice = sorted(
            self._readers,
            key=lambda topic_id: (sum(map(len, self._readers[topic_id])), topic_id),
        )
        for topic_id in by_choice:
            for index in range(self._counts[topic_id]):
                if TopicIdPartition(topic_id, index) not in self._given:
                    self._give(self._poorest(topic_id)[1], topic_id, index)

    def balance(self) -> None:
        """Move single partitions from the richest to the poorest while that evens the loads.

        Every move lowers the sum of the squares of the loads, so there is an end.
        """
        moved = True
        while moved:
            moved = False
            richest = [(-load, place) for place, load in enumerate(self._load)]
            heapify(richest)
            while richest:
                noted_load, place = heappop(richest)
                if -noted_load != self._load[place]:
                    heappush(richest, (-self._load[place], place))  # it got some meanwhile
                elif self._move_one(place):
                    moved = True
                    heappush(richest, (-self._load[place], place))

    def _move_one(self, rich: int) -> bool:
        """Move one partition of this member to the poorest that may have one, if that is fairer."""
        choices = [
            (*self._poorest(topic_id), topic_id)
            for topic_id, indexes in self.held[rich].items()
            if indexes
        ]
        if not choices:
            return False
        load, poor, topic_id = min(choices)
        if self._load[rich] - load <= 1:
            return False
        index = self.held[rich][topic_id].pop()
        self._count(rich, -1)
        self._give(poor, topic_id, index)
        return True


def assignors(names: Sequence[str]) -> Mapping[str, Assign]:
    """Return the assignors of these names (`group.consumer.assignors`), the default one first.

    Raises KeyError: there is no assignor of that name.
    """
    return {name: ASSIGNORS[name] for name in names}


ASSIGNORS: Final[Mapping[str, Assign]] = {"uniform": assign_uniform, "range": assign_range}
