"""An index of partitions: in sync, eligible or led, by broker and by log directory.

It also lists the partitions without a leader. With it, the cost of a decision about a broker
depends only on that broker's partitions. Each record updates the index, which holds no state beyond
the partitions themselves.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId, PartitionIndex, TopicId

if TYPE_CHECKING:
    from quorumlog.metadata_quorum.image.model import PartitionImage

_Sets = dict[TopicId, int]  # a bit for each partition of a topic
_Key = TypeVar("_Key", BrokerId, str)


class Place(NamedTuple):
    """A partition by topic id and index."""

    topic_id: TopicId
    partition: PartitionIndex


class PlaceSets(Generic[_Key]):
    """A set of places for each broker or directory. The cost of a copy grows with their number."""

    def __init__(self, sets: Mapping[_Key, _Sets]) -> None:
        self._sets: Final[dict[_Key, _Sets]] = dict(sets)
        self._own: Final[set[_Key]] = set()  # keys whose sets are not shared with a copy

    def copy(self) -> "PlaceSets[_Key]":
        """Return a copy. From now on, both copy a key's set before they change it."""
        self._own.clear()
        return PlaceSets(self._sets)

    def of(self, key: _Key) -> Iterator[Place]:
        """Yield the places of a key, topic by topic. The sets must not change meanwhile."""
        for topic_id, partitions in self._sets.get(key, {}).items():
            yield from (Place(topic_id, index) for index in _indexes(partitions))

    def has_any(self, key: _Key) -> bool:
        """Return whether a key has a place."""
        return bool(self._sets.get(key))

    def add(self, key: _Key, topic_id: TopicId, partitions: int) -> None:
        """Add the partitions whose bits are set."""
        owned = self._owned(key)
        owned[topic_id] = owned.get(topic_id, 0) | partitions

    def remove(self, key: _Key, topic_id: TopicId, partitions: int) -> None:
        """Remove the partitions whose bits are set; absent partitions are ignored."""
        owned = self._owned(key)
        left = owned.get(topic_id, 0) & ~partitions
        if left:
            owned[topic_id] = left
        else:
            owned.pop(topic_id, None)

    def remove_topic(self, topic_id: TopicId) -> None:
        """Remove a topic's partitions from all keys."""
        for key, sets in list(self._sets.items()):
            if topic_id in sets:
                del self._owned(key)[topic_id]

    def _owned(self, key: _Key) -> _Sets:
        if key not in self._own:
            self._own.add(key)
            self._sets[key] = dict(self._sets.get(key, {}))
        return self._sets[key]


class PartitionsByBroker:
    """Three sets of partitions for each broker: in sync, eligible, leading.

    `in_directory`: for each log directory, the in-sync and eligible partitions with logs in it.
    """

    def __init__(self) -> None:
        self.in_sync = PlaceSets[BrokerId]({})
        self.eligible = PlaceSets[BrokerId]({})
        self.leading = PlaceSets[BrokerId]({})  # NO_LEADER: the leaderless partitions
        self.in_directory = PlaceSets[str]({})

    def copy(self) -> "PartitionsByBroker":
        """Return a cheap copy: sets are copied when one of the two changes them."""
        copied = PartitionsByBroker()
        copied.in_sync, copied.eligible = self.in_sync.copy(), self.eligible.copy()
        copied.leading, copied.in_directory = self.leading.copy(), self.in_directory.copy()
        return copied

    def note(
        self,
        topic_id: TopicId,
        index: PartitionIndex,
        before: "PartitionImage | None",
        after: "PartitionImage",
    ) -> None:
        """Update the index after a change of a partition; `before` is None for a new partition."""
        bit = 1 << index
        was_in_sync = () if before is None else before.isr
        was_eligible = () if before is None else _eligible(before)
        now_eligible = _eligible(after)
        if was_in_sync != after.isr:
            _move(self.in_sync, topic_id, bit, was_in_sync, after.isr)
        if was_eligible != now_eligible:
            _move(self.eligible, topic_id, bit, was_eligible, now_eligible)
        if before is None or before.leader_id != after.leader_id:
            led = () if before is None else (before.leader_id,)
            _move(self.leading, topic_id, bit, led, (after.leader_id,))
        if after.directories or (before is not None and before.directories):
            held = () if before is None else _directories(before, was_eligible)
            _move(self.in_directory, topic_id, bit, held, _directories(after, now_eligible))

    def remove_topic(self, topic_id: TopicId) -> None:
        """Remove a topic's partitions."""
        for sets in (self.in_sync, self.eligible, self.leading):
            sets.remove_topic(topic_id)
        self.in_directory.remove_topic(topic_id)


def _move(
    sets: PlaceSets[_Key], topic_id: TopicId, bit: int, old: tuple[_Key, ...], new: tuple[_Key, ...]
) -> None:
    for key in old:
        if key not in new:
            sets.remove(key, topic_id, bit)
    for key in new:
        if key not in old:
            sets.add(key, topic_id, bit)


def _directories(partition: "PartitionImage", eligible: tuple[BrokerId, ...]) -> tuple[str, ...]:
    """Return the log directories of the replicas that are in sync or eligible."""
    holders = (*partition.isr, *eligible)
    return tuple(at for broker_id, at in partition.directories if broker_id in holders)


def _eligible(partition: "PartitionImage") -> tuple[BrokerId, ...]:
    """Return the brokers in the ELR and the last known ELR, and the last known leader."""
    eligible, last = (*partition.elr, *partition.last_known_elr), partition.last_known_leader
    if last != NO_LEADER and last not in (*eligible, *partition.isr):
        return (*eligible, last)
    return eligible


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
