"""Places the replicas of new partitions: striped over the brokers, leaders spread evenly.

Partition p starts one broker after partition p - 1. After each round of the ring, the followers
move on by one, so that the death of a broker spreads its leaderships over all others. A fenced
broker is used only when the others do not suffice. Racks are ignored.
"""

from collections.abc import Sequence

from quorumlog.invariants import require
from quorumlog.wire.codec.identifiers import BrokerId


def place_replicas(
    usable: Sequence[BrokerId],
    fenced: Sequence[BrokerId],
    *,
    partitions: int,
    replication_factor: int,
    first_partition: int = 0,
    start: int,
) -> list[tuple[BrokerId, ...]]:
    """Return the replicas of each partition, the preferred leader first.

    `start` is any number >= 0, random for each topic. There is at least one usable broker, and
    `replication_factor` is at most the number of brokers.
    """
    require(len(usable) > 0, "an unfenced broker leads each new partition")
    require(replication_factor <= len(usable) + len(fenced), "a broker holds one replica of each")
    near = min(replication_factor, len(usable))
    placed = []
    for partition in range(first_partition, first_partition + partitions):
        replicas = _stripe(usable, partition, start, near)
        replicas += _stripe(fenced, partition, start, replication_factor - near)
        placed.append(tuple(replicas))
    return placed


def _stripe(ring: Sequence[BrokerId], partition: int, start: int, count: int) -> list[BrokerId]:
    size = len(ring)
    if count == 0:
        return []
    first = (start + partition) % size
    shift = start // size + partition // size
    return [
        ring[first],
        *(ring[(first + 1 + (shift + i) % (size - 1)) % size] for i in range(count - 1)),
    ]
