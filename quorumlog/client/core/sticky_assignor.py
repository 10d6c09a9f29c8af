"""The sticky assignor: members keep their partitions, and as few as needed move.

Rules, the first wins: every partition has a reader; loads are as even as moves of single partitions
can make them; partitions have a reader in a rack of their replicas (KIP-881, as in Kafka racks win
over stickiness); members keep their partitions. A settled assignment is returned unchanged.
Sources: KIP-54 (sticky), KIP-429 (cooperative), Kafka's AbstractStickyAssignor.
"""

from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Final

from quorumlog.client.assignor import Members, Partitions
from quorumlog.wire.codec.identifiers import TopicPartition

_NO_RACKS: Final = frozenset[str]()


def in_order(members: Members) -> list[str]:
    """Sort static members first by instance id, then the others by member id, as in Kafka."""

    def place(member: str) -> tuple[bool, str, str]:
        instance = members[member].instance_id
        return instance is None, instance or "", member

    return sorted(members, key=place)


def readers_by_topic(members: Members) -> dict[str, tuple[str, ...]]:
    """Return each topic's subscribed members, in order; one tuple for topics with the same."""
    readers: dict[str, list[str]] = {}
    for member in in_order(members):
        for topic in dict.fromkeys(members[member].topics):
            readers.setdefault(topic, []).append(member)
    known: dict[tuple[str, ...], tuple[str, ...]] = {}
    return {
        topic: known.setdefault(same, same)
        for topic, same in ((topic, tuple(listed)) for topic, listed in readers.items())
    }


def assign_sticky(members: Members, partitions: Partitions) -> dict[str, list[TopicPartition]]:
    """Return every partition's reader; of two claims to own one the newer generation wins."""
    shares = _Shares(members, partitions)
    for partition, owner in sorted(owned_partitions(members, partitions).items()):
        shares.give(owner, partition)
    shares.give_unowned()
    is_moved = True
    while is_moved:  # ends: a move makes loads more even, or brings partitions nearer with the same
        shares.balance()
        is_moved = shares.near()
    return shares.assignment()


def owned_partitions(members: Members, partitions: Partitions) -> dict[TopicPartition, str]:
    """Return the owner of each partition; of two claims of one generation neither holds."""
    claims: dict[TopicPartition, tuple[int, str]] = {}
    disputed: set[TopicPartition] = set()
    for member in sorted(members):
        subscription = members[member]
        generation, topics = subscription.generation_id, frozenset(subscription.topics)
        for partition in dict.fromkeys(subscription.owned):
            if partition not in partitions or partition.topic not in topics:
                continue
            rival = claims.get(partition, (generation - 1, ""))
            if rival[0] == generation:
                disputed.add(partition)
            elif rival[0] < generation:
                disputed.discard(partition)
                claims[partition] = generation, member
    return {one: member for one, (_, member) in claims.items() if one not in disputed}


@dataclass(frozen=True, slots=True, eq=False)
class _Kind:
    """Partitions that are alike for all members: their possible readers, in order, and racks."""

    readers: tuple[str, ...]
    racks: frozenset[str]


class _Shares:
    """The partitions of each member, by kind.

    Work grows with members, kinds and moves, not with partitions: one `_Kind` has all topics with
    the same readers, as have most groups.
    """

    def __init__(self, members: Members, partitions: Partitions) -> None:
        self._members: Final = members
        self._order: Final = in_order(members)
        self._load: Final = dict.fromkeys(self._order, 0)
        self._kinds: Final = self._kinds_of(partitions)
        self._held: Final[dict[str, dict[_Kind, list[TopicPartition]]]] = {
            member: {} for member in self._order
        }
        self._unowned: Final = {one: None for one in self._kinds if self._kinds[one].readers}

    def _kinds_of(self, partitions: Partitions) -> dict[TopicPartition, _Kind]:
        member_racks = {member.rack for member in self._members.values()} - {None}
        every_rack = frozenset[str]().union(*partitions.values())
        matters = member_racks & every_rack and any(
            racks != every_rack for racks in partitions.values()
        )
        readers = readers_by_topic(self._members)
        pools = {same: number for number, same in enumerate(dict.fromkeys(readers.values()))}
        pool_of = {topic: pools[same] for topic, same in readers.items()}
        known: dict[tuple[int, frozenset[str]], _Kind] = {}  # one object for each kind
        kinds = {}
        for partition, racks in partitions.items():
            topic = partition.topic
            key = pool_of.get(topic, -1), racks if matters else _NO_RACKS
            if key not in known:
                known[key] = _Kind(readers.get(topic, ()), key[1])
            kinds[partition] = known[key]
        return kinds

    def _is_far(self, member: str, kind: _Kind) -> bool:
        rack = self._members[member].rack
        return rack is not None and bool(kind.racks) and rack not in kind.racks

    def give(self, member: str, partition: TopicPartition) -> None:
        """Add a partition to a member's share."""
        self._held[member].setdefault(self._kinds[partition], []).append(partition)
        self._load[member] += 1
        self._unowned.pop(partition, None)

    def _move(self, kind: _Kind, giver: str, taker: str) -> None:
        held = self._held[giver]
        partition = held[kind].pop()
        if not held[kind]:
            del held[kind]
        self._load[giver] -= 1
        self.give(taker, partition)

    def give_unowned(self) -> None:
        """Give each partition without an owner to the reader with the smallest share.

        Partitions with few possible readers come first.
        """
        heaps: dict[_Kind, list[tuple[int, bool, int, str]]] = {}
        for partition in sorted(
            self._unowned, key=lambda one: (len(self._kinds[one].readers), one)
        ):
            kind = self._kinds[partition]
            heap = heaps.get(kind)
            if heap is None:
                heap = heaps[kind] = [
                    (self._load[one], self._is_far(one, kind), place, one)
                    for place, one in enumerate(kind.readers)
                ]
                heapify(heap)
            while heap[0][0] != (load := self._load[heap[0][3]]):  # it grew since
                heapreplace(heap, (load, *heap[0][1:]))
            self.give(heap[0][3], partition)

    def balance(self) -> None:
        """Move single partitions until no move makes two members' loads more even."""
        pools = dict.fromkeys(kind.readers for kind in dict.fromkeys(self._kinds.values()))
        is_moved = True
        while is_moved:
            is_moved = False
            for readers in filter(None, pools):
                while self._balance_once(readers):
                    is_moved = True

    def _balance_once(self, readers: tuple[str, ...]) -> bool:
        poorest = min(readers, key=self._load.__getitem__)
        givers = [
            (self._load[member], member)
            for member in readers
            if any(kind.readers is readers for kind in self._held[member])
        ]
        load, richest = max(givers, default=(0, ""), key=lambda one: one[0])
        if load - self._load[poorest] <= 1:
            return False
        kinds = [kind for kind in self._held[richest] if kind.readers is readers]

        def fitness(kind: _Kind) -> int:
            return self._is_far(richest, kind) - self._is_far(poorest, kind)

        self._move(max(kinds, key=fitness), richest, poorest)
        return True

    def near(self) -> bool:
        """Bring partitions near to their readers, with the same loads. True if any moved."""
        is_moved = False
        for member in self._order:
            for kind in [kind for kind in self._held[member] if self._is_far(member, kind)]:
                while kind in self._held[member] and self._bring_near(member, kind):
                    is_moved = True
        return is_moved

    def _bring_near(self, member: str, kind: _Kind) -> bool:
        """Move a far partition, or swap it, to a reader in its rack: more partitions are near."""
        for reader in kind.readers:
            if self._is_far(reader, kind) or reader == member:
                continue
            if self._load[member] == self._load[reader] + 1:  # the loads change places
                self._move(kind, member, reader)
                return True
            for back in self._held[reader]:
                is_worse = self._is_far(member, back) and not self._is_far(reader, back)
                if member in back.readers and not is_worse:
                    self._move(back, reader, member)
                    self._move(kind, member, reader)
                    return True
        return False

    def assignment(self) -> dict[str, list[TopicPartition]]:
        """Return each member's partitions, sorted."""
        return {
            member: sorted(one for same in held.values() for one in same)
            for member, held in self._held.items()
        }
