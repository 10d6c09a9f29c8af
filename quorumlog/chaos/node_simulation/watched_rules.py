"""Wraps the rules of a replica to notify the oracle of each step and each read."""

from collections.abc import Callable
from dataclasses import replace

from quorumlog.broker.partitions.core.data_path import ReadEnd
from quorumlog.broker.partitions.core.partition import PartitionRules
from quorumlog.broker.partitions.core.partition_invariants import Marks
from quorumlog.broker.partitions.core.partition_state import PartitionState
from quorumlog.wire.codec.identifiers import BrokerId, Offset, TopicPartition

Violated = Callable[[str], None]


def watched(
    rules: PartitionRules, changed: dict[int, PartitionState], violated: Violated
) -> PartitionRules:
    """Return the rules, wrapped. `changed` gets each changed state, by its identity."""

    class Watched(rules.invariants):  # type: ignore[name-defined,misc]  # a class by value
        __slots__ = ()

        def check(self, before: Marks, *, truncates: bool = False, cuts: bool = False) -> None:
            super().check(before, truncates=truncates, cuts=cuts)
            changed[id(self._state)] = self._state

    class WatchedServing(rules.serving):  # type: ignore[name-defined,misc]  # as above
        __slots__ = ()

        def read_end(self, end: ReadEnd) -> Offset:
            offset: Offset = super().read_end(end)
            state = self._state
            if end is ReadEnd.HIGH_WATERMARK and offset > state.high_watermark:
                violated(
                    f"committed-served: node {state.broker_id} serves consumers up to {offset}"
                    f", and its high watermark is {state.high_watermark}"
                )
            return offset

    class WatchedThrottle(rules.throttle):  # type: ignore[name-defined,misc]  # as above
        def next_fetch_ms(
            self, at: TopicPartition, follower_id: BrokerId, size: int, now_ms: int
        ) -> int:
            due_ms: int = super().next_fetch_ms(at, follower_id, size, now_ms)
            partition = self._image().partition(at)
            is_other = follower_id != self._broker_id  # else it moves between directories
            is_held_up = due_ms > now_ms and partition is not None and is_other
            if is_held_up and follower_id in partition.isr:
                violated(
                    f"in-sync-served: {at.topic}-{at.partition}: node {self._broker_id} "
                    f"throttles node {follower_id}, which is in sync"
                )
            return due_ms

    return replace(rules, invariants=Watched, serving=WatchedServing, throttle=WatchedThrottle)
