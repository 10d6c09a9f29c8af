"""Which partitions a broker is in sync with, eligible for, or leads; and which have no leader.

A decision about one broker looks only at the partitions that it is about, however many there are.
The index is kept record by record. It says nothing that the partitions do not say themselves.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId, PartitionIndex, TopicId

_Sets = dict[TopicId, int]  # a bit for each partition of a topic


class Place(NamedTuple):
    """A partition by the id of its topic."""

    topic_id: TopicId
    partition: PartitionIndex


class Indexed(Protocol):
    """What the index must know of a partition: see `PartitionImage`."""

    @property
    def leader_id(self) -> BrokerId:
        """Return its leader, or NO_LEADER."""

    @property
    def isr(self) -> tuple[BrokerId, ...]:
        """Return the replicas in sync."""

    @property
    def elr(self) -> tuple[BrokerId, ...]:
        """Return the eligible replicas outside the ISR."""

    @property
    def last_known_leader(self) -> BrokerId:
        """Return the last leader of a partition without one, or NO_LEADER."""


class _Roles(NamedTuple):
    """The brokers that a partition is indexed under. NO_LEADER leads one that has no leader."""

    in_sync: tuple[BrokerId, ...] = ()
    eligible: tuple[BrokerId, ...] = ()  # in the ELR, or the last known leader
    leading: tuple[BrokerId, ...] = ()


class PlaceSets:
    """A set of places for each broker. A copy costs what there are brokers, not partitions."""

    def __init__(self, sets: Mapping[BrokerId, _Sets]) -> None:
        self._sets: Final = dict(sets)
        self._own: Final[set[BrokerId]] = set()  # whose sets no copy shares

    def copy(self) -> "PlaceSets":
        """Return a copy; from now on both copy what they change."""
        self._own.clear()
        return PlaceSets(self._sets)

    def of(self, broker_id: BrokerId) -> Iterator[Place]:
        """Yield the places of a broker, topic by topic. Do not change the sets meanwhile."""
        for topic_id, partitions in self._sets.get(broker_id, {}).items():
            yield from (Place(topic_id, index) for index in _indexes(partitions))

    def has_any(self, broker_id: BrokerId) -> bool:
        """Tell whether a broker has a place."""
        return bool(self._sets.get(broker_id))

    def add(self, broker_id: BrokerId, topic_id: TopicId, partitions: int) -> None:
        """Add the partitions whose bits are set."""
        owned = self._owned(broker_id)
        owned[topic_id] = owned.get(topic_id, 0) | partitions

    def remove(self, broker_id: BrokerId, topic_id: TopicId, partitions: int) -> None:
        """Remove the partitions whose bits are set, so far as they are there."""
        owned = self._owned(broker_id)
        left = owned.get(topic_id, 0) & ~partitions
        if left:
            owned[topic_id] = left
        else:
            owned.pop(topic_id, None)

    def remove_topic(self, topic_id: TopicId) -> None:
        """Remove a topic's partitions, of all brokers."""
        for broker_id, sets in list(self._sets.items()):
            if topic_id in sets:
                del self._owned(broker_id)[topic_id]

    def _owned(self, broker_id: BrokerId) -> _Sets:
        if broker_id not in self._own:
            self._own.add(broker_id)
            self._sets[broker_id] = dict(self._sets.get(broker_id, {}))
        return self._sets[broker_id]


class PartitionsByBroker:
    """Three sets of partitions for each broker: in sync, eligible, leading."""

    def __init__(self) -> None:
        self.in_sync = PlaceSets({})
        self.eligible = PlaceSets({})
        self.leading = PlaceSets({})  # under NO_LEADER: those without a leader

    def copy(self) -> "PartitionsByBroker":
        """Return a copy, which costs next to nothing: what one of them changes is copied then."""
        copied = PartitionsByBroker()
        copied.in_sync, copied.eligible = self.in_sync.copy(), self.eligible.copy()
        copied.leading = self.leading.copy()
        return copied

    def note(
        self,
        topic_id: TopicId,
        index: PartitionIndex,
        before: Indexed | None,
        after: Indexed,
    ) -> None:
        """Take over what became of a partition; `before` is None for a new one."""
        was, now = _Roles() if before is None else _roles(before), _roles(after)
        if was == now:
            return
        bit = 1 << index
        for sets, old, new in zip(
            (self.in_sync, self.eligible, self.leading), was, now, strict=True
        ):
            if old == new:
                continue
            for broker_id in old:
                if broker_id not in new:
                    sets.remove(broker_id, topic_id, bit)
            for broker_id in new:
                if broker_id not in old:
                    sets.add(broker_id, topic_id, bit)

    def remove_topic(self, topic_id: TopicId) -> None:
        """Forget a topic's partitions."""
        for sets in (self.in_sync, self.eligible, self.leading):
            sets.remove_topic(topic_id)


def _roles(partition: Indexed) -> _Roles:
    eligible, last = partition.elr, partition.last_known_leader
    if last != NO_LEADER and last not in (*eligible, *partition.isr):
        eligible = (*eligible, last)
    return _Roles(partition.isr, eligible, (partition.leader_id,))


def _indexes(bits: int) -> Iterator[PartitionIndex]:
    first = 0
    while bits:
        word = bits & 0xFFFF_FFFF_FFFF_FFFF  # shifting all of a large set for each bit is slow
        while word:
            lowest = word & -word
            yield PartitionIndex(first + lowest.bit_length() - 1)
            word ^= lowest
        bits >>= 64
        first += 64
