"""The order of Java's HashMap, in which Kafka answers: some clients compare whole responses.

A map iterates over its buckets, and within a bucket in the order of insertion. The bucket is the
hash, mixed, modulo the number of buckets, which doubles when three quarters are used.
Source: java.util.HashMap, String.hashCode and Objects.hash, by Java's specification.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from quorumlog.broker.coordination.core.partition_hash import java_string_hash

K = TypeVar("K")
BUCKETS: Final = 16  # of a map created without a capacity
_MASK: Final = 0xFFFFFFFF


def in_map_order(
    keys: Iterable[K], *, hash_of: Callable[[K], int], buckets: int = BUCKETS
) -> list[K]:
    """Return distinct keys in the iteration order of a map, after insertion in the given order.

    `buckets`: the capacity with which the map is created.
    """
    inserted = list(keys)
    size = 1
    while size < buckets:
        size *= 2
    while len(inserted) > size * 3 // 4:
        size *= 2

    def bucket(key: K) -> int:
        value = hash_of(key) & _MASK
        return (value ^ value >> 16) & (size - 1)

    return sorted(inserted, key=bucket)


def names_in_map_order(names: Iterable[str], *, buckets: int = BUCKETS) -> list[str]:
    """Return `in_map_order` of strings."""
    return in_map_order(names, hash_of=java_string_hash, buckets=buckets)


def entity_hash(entity: Sequence[tuple[str, str | None]]) -> int:
    """Return the hash of a ClientQuotaEntity: of a map from types to names; None hashes to 0."""
    pairs = (
        java_string_hash(kind) ^ (0 if name is None else java_string_hash(name))
        for kind, name in entity
    )
    return 31 + sum(pairs)
