"""Chooses a record's partition: murmur2 of the key, as Java's client; sticky without a key.

Sources: org.apache.kafka.common.utils.Utils.murmur2, KIP-480 and KIP-794 (sticky partitioning).
"""

from collections.abc import Sequence
from typing import Final

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Hash to unsigned 32 bits. All Kafka clients need the same hash, or keys move partitions."""
    length = len(data)
    whole = length & ~3
    h = _SEED ^ length
    for position in range(0, whole, 4):
        k = int.from_bytes(data[position : position + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = h * _M & _MASK ^ k
    if whole != length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_for_key(key: bytes, partition_count: int) -> int:
    """Return a keyed record's partition among all of the topic's, available or not."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class StickyPartition:
    """The current partition for one topic's records without a key.

    It stays the same for `batch_size` bytes, so that batches fill, then changes. This is KIP-794's
    uniform rule: slow brokers do not attract more load than fast brokers.
    """

    __slots__ = ("_batch_size", "_bytes_left", "current")

    def __init__(self, batch_size: int) -> None:
        self._batch_size: Final = max(batch_size, 1)
        self._bytes_left = 0
        self.current = -1

    def needs_choice(self) -> bool:
        """Return whether `choose` must be called before `current` is used."""
        return self._bytes_left <= 0

    def choose(self, candidates: Sequence[int], random_fraction: float) -> None:
        """Choose one of `candidates` (not empty), not the same as before if there are others.

        `random_fraction` in [0, 1) selects the candidate.
        """
        others = [partition for partition in candidates if partition != self.current]
        pool = others or candidates
        self.current = pool[int(random_fraction * len(pool))]
        self._bytes_left = self._batch_size

    def used(self, size_in_bytes: int) -> None:
        """Count a record that went to `current`."""
        self._bytes_left -= size_in_bytes

    def give_up(self) -> None:
        """Require a new choice: `current` has no leader."""
        self._bytes_left = 0
