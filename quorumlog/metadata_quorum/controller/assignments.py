"""The replicas of new partitions: from the request, or placed by the controller.

It refuses assignments with an unregistered broker, a repeated broker, or no active broker.
Source: KIP-4; Kafka's `ReplicationControlManager.validateManualPartitionAssignment`.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from quorumlog.invariants import require
from quorumlog.metadata_quorum.controller.brokers import active_brokers
from quorumlog.metadata_quorum.controller.refusals import TopicRefused, check_partitions
from quorumlog.metadata_quorum.image.records import MetadataRecord, Partition
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, PartitionIndex, TopicId


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
    """Stripe new partitions over the brokers; return the replicas of each, the leader first.

    Partition p starts one broker after partition p - 1. After each round of the ring, the followers
    shift by one, so that the death of a broker spreads its leaderships over all others. The ring
    takes one broker of each rack in turn, and a partition gets no second replica in a rack while
    another rack has none; brokers without a rack count as one rack. Fenced brokers are used only
    when the unfenced brokers do not suffice. Source: KIP-36; Kafka's `StripedReplicaPlacer`.
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


Replicas = tuple[BrokerId, ...]  # of one partition, the preferred leader first


@dataclass(eq=False)
class Assignments:
    """Assigns new partitions; changes no state. `random_bytes(n)` returns n random bytes."""

    _cluster: ClusterReplay
    _random_bytes: Callable[[int], bytes]

    def place(
        self, partitions: int, replication_factor: int, *, first_partition: int = 0
    ) -> list[Replicas]:
        """Return the replicas of `partitions` new partitions. Raises TopicRefused.

        `first_partition`: the index of the first of them.
        """
        check_partitions(partitions)
        usable = sorted(active_brokers(self._cluster))
        registered = len(self._cluster.brokers)
        problem = None
        if not usable:
            problem = "All brokers are currently fenced."
        elif replication_factor > registered:
            problem = (
                f"The target replication factor of {replication_factor} cannot be reached "
                f"because only {registered} broker(s) are registered."
            )
        if problem is not None:
            raise TopicRefused(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"Unable to replicate the partition {replication_factor} time(s): {problem}",
            )
        return place_replicas(
            usable,
            sorted({*self._cluster.brokers} - {*usable}),
            partitions=partitions,
            replication_factor=replication_factor,
            first_partition=first_partition,
            start=int.from_bytes(self._random_bytes(4), "big"),
            racks={b.broker_id: b.rack for b in self._cluster.brokers.values()},
        )

    def check(
        self, assignments: Sequence[Replicas], replication_factor: int, *, first_partition: int = 0
    ) -> None:
        """Raise TopicRefused for an invalid assignment.

        Each needs `replication_factor` distinct, registered brokers, at least one of them active.
        """
        check_partitions(len(assignments))
        active = active_brokers(self._cluster)
        for index, replicas in enumerate(assignments, start=first_partition):
            problem = replicas_problem(self._cluster, replicas)
            if problem is None and len(replicas) != replication_factor:
                problem = (
                    f"Partition {index} has {len(replicas)} replicas, but the topic's replication "
                    f"factor is {replication_factor}."
                )
            if problem is None and active.isdisjoint(replicas):
                problem = (
                    "All brokers specified in the manual partition assignment for partition "
                    f"{index} are fenced or in controlled shutdown."
                )
            if problem is not None:
                raise TopicRefused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)

    def records(
        self, topic_id: TopicId, assignments: Sequence[Replicas], *, first_partition: int = 0
    ) -> list[MetadataRecord]:
        """Return the records of new partitions, with the active replicas as ISR."""
        active = active_brokers(self._cluster)
        records: list[MetadataRecord] = []
        for index, replicas in enumerate(assignments, start=first_partition):
            isr = tuple(replica for replica in replicas if replica in active)
            partition_id = PartitionIndex(index)
            records.append(
                Partition(
                    topic_id=topic_id,
                    partition_id=partition_id,
                    replicas=replicas,
                    isr=isr,
                    leader=isr[0],
                )
            )
        return records


def replicas_problem(cluster: ClusterReplay, replicas: Replicas) -> str | None:
    """Return the problem with these replicas of a partition, or None."""
    if not replicas:
        return "The manual partition assignment includes an empty replica list."
    if len({*replicas}) != len(replicas):
        return "The manual partition assignment includes a broker more than once."
    unknown = next((r for r in replicas if r not in cluster.brokers), None)
    if unknown is not None:
        return (
            f"The manual partition assignment includes broker {unknown}, "
            "but no such broker is registered."
        )
    return None
