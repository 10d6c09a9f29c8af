"""Places the replicas of new partitions: striped over the brokers, leaders spread evenly.

Partition p starts one broker after partition p - 1. After each round of the ring, the followers
shift by one, so that the death of a broker spreads its leaderships over all others. Fenced brokers
are used only when the unfenced brokers do not suffice.

The ring takes one broker of each rack in turn, and a partition gets no second replica in a rack
while another rack has none. Brokers without a rack count as one rack.
Source: KIP-36; Kafka's `StripedReplicaPlacer`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest

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
    racks: Mapping[BrokerId, str | None] | None = None,
) -> list[tuple[BrokerId, ...]]:
    """Return the replicas of each partition, the preferred leader first.

    `start` is any number >= 0, random for each topic. There is at least one usable broker, and
    `replication_factor` is at most the number of brokers. `racks`: broker -> rack; None: no racks.
    """
    require(len(usable) > 0, "an unfenced broker leads each new partition")
    require(replication_factor <= len(usable) + len(fenced), "a broker holds one replica of each")
    near = min(replication_factor, len(usable))
    rack_of = racks or dict.fromkeys((*usable, *fenced))
    rings = [_ring(usable, rack_of), _ring(fenced, rack_of)]
    has_racks = len({rack_of[broker_id] for ring in rings for broker_id in ring}) > 1
    placed = []
    for partition in range(first_partition, first_partition + partitions):
        replicas: list[BrokerId] = []
        for ring, count in zip(rings, (near, replication_factor - near), strict=True):
            stripe = _stripe(ring, partition, start, len(ring) if has_racks and count else count)
            replicas += _spread(stripe, count, rack_of, replicas) if has_racks else stripe
        placed.append(tuple(replicas))
    return placed


def _ring(broker_ids: Sequence[BrokerId], rack_of: Mapping[BrokerId, str | None]) -> list[BrokerId]:
    """Return the brokers in ring order: one broker of each rack in turn."""
    by_rack: dict[str | None, list[BrokerId]] = {}
    for broker_id in broker_ids:
        by_rack.setdefault(rack_of[broker_id], []).append(broker_id)
    rounds = zip_longest(*by_rack.values())
    return [broker_id for one in rounds for broker_id in one if broker_id is not None]


def _spread(
    stripe: Sequence[BrokerId],
    count: int,
    rack_of: Mapping[BrokerId, str | None],
    others: Sequence[BrokerId],
) -> list[BrokerId]:
    """Return `count` brokers of `stripe`, each from a rack with the fewest replicas so far."""
    in_rack = Counter(rack_of[broker_id] for broker_id in others)
    left, chosen = list(stripe), []
    for _ in range(count):
        broker_id = min(left, key=lambda one: in_rack[rack_of[one]])  # the first, on a tie
        left.remove(broker_id)
        chosen.append(broker_id)
        in_rack[rack_of[broker_id]] += 1
    return chosen


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
