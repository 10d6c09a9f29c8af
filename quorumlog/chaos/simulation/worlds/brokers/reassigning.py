"""Moves partitions of the simulated brokers at random, and checks how each move ends.

- While it is under way, the old replicas remain.
- When it ends, exactly the target replicas remain, all in sync.
- When it is cancelled, exactly the old replicas remain.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from quorumlog.chaos.simulation.kernel.randomness import Rng
from quorumlog.chaos.simulation.kernel.rules import check
from quorumlog.metadata_quorum.controller.requests import AlterReassignments, ReassignmentResults
from quorumlog.metadata_quorum.controller_client import Reassignment
from quorumlog.metadata_quorum.image import PartitionImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, TopicPartition

_AGAIN_SHARE: Final = 0.5  # of the requests: for a partition that is moving
_CANCELLED_SHARE: Final = 0.5  # of those: cancel the move
_ALL_SHARE: Final = 0.25  # of the requests: may place replicas on all brokers


class Reassigning:
    """Records the old and the target replicas of each partition that moves."""

    def __init__(self) -> None:
        self._before: Final[dict[TopicPartition, frozenset[int]]] = {}
        self._wanted: Final[dict[TopicPartition, frozenset[int]]] = {}
        self._asked: tuple[TopicPartition, frozenset[int]] | None = None

    def draw(
        self,
        rng: Rng,
        partitions: Mapping[TopicPartition, PartitionImage],
        broker_ids: Sequence[int],
        *,
        least: int,
    ) -> AlterReassignments:
        """Return a request for one partition, with at least `least` target replicas."""
        moving = [at for at in sorted(partitions) if partitions[at].is_reassigned]
        at = rng.choice(moving if moving and rng.random() < _AGAIN_SHARE else sorted(partitions))
        order = [BrokerId(broker_id) for broker_id in broker_ids]
        rng.shuffle(order)
        most = len(order) if rng.random() < _ALL_SHARE else max(len(order) - 1, 1)
        count = rng.randrange(min(least, most), most + 1)
        target: tuple[BrokerId, ...] | None = tuple(order[:count])
        if partitions[at].is_reassigned and rng.random() < _CANCELLED_SHARE:
            target = None
        self._asked = at, frozenset(target or self._before[at])
        wanted = Reassignment(topic=at.topic, partition=at.partition, replicas=target)
        return AlterReassignments(wanted=(wanted,))

    def answered(self, response: object) -> None:
        """Record the response to the last request."""
        if self._asked is None or not isinstance(response, ReassignmentResults):
            return
        at, wanted = self._asked
        if response.results[0].error_code is ErrorCode.NONE:
            self._wanted[at] = wanted
        self._asked = None

    def forget(self, at: TopicPartition) -> None:
        """Forget a deleted partition: a re-created one is a new partition."""
        self._before.pop(at, None)
        self._wanted.pop(at, None)

    def show(self, at: TopicPartition, partition: PartitionImage) -> None:
        """Check the current metadata of a partition."""
        replicas = frozenset(partition.replicas)
        before = self._before.setdefault(at, replicas)
        if partition.is_reassigned:
            kept = f"reassign-keeps: {at} has {sorted(replicas)}, and had {sorted(before)}"
            check(before <= replicas, kept)
            return
        wanted = self._wanted.pop(at, before)
        if self._asked is not None and self._asked[0] == at:
            wanted = self._asked[1]  # it may end before the response arrives
        if replicas == before:
            return
        ended = f"reassign-ends: {at} is on {sorted(replicas)}, ISR {sorted(partition.isr)}, and"
        is_whole = replicas == wanted and replicas <= {*partition.isr}
        check(is_whole, f"{ended} was to move from {sorted(before)} to {sorted(wanted)}")
        self._before[at] = replicas
