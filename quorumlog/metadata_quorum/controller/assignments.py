"""The replicas of new partitions: from the request, or placed by the controller.

It refuses assignments with an unregistered broker, a repeated broker, or no active broker.
Source: KIP-4; Kafka's `ReplicationControlManager.validateManualPartitionAssignment`.
"""

from collections.abc import Callable, Sequence
from typing import Final

from quorumlog.metadata_quorum.controller.brokers import active_brokers
from quorumlog.metadata_quorum.controller.placement import place_replicas
from quorumlog.metadata_quorum.controller.refusals import TopicRefused, check_partitions
from quorumlog.metadata_quorum.image.records import MetadataRecord, Partition
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, PartitionIndex, TopicId

Replicas = tuple[BrokerId, ...]  # of one partition, the preferred leader first


class Assignments:
    """Assigns new partitions; changes no state. `random_bytes(n)` returns n random bytes."""

    def __init__(self, cluster: ClusterReplay, random_bytes: Callable[[int], bytes]) -> None:
        self._cluster: Final = cluster
        self._random_bytes: Final = random_bytes

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
