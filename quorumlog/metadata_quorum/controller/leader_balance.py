"""Hands leaderships back to preferred replicas periodically: auto.leader.rebalance.enable.

A broker is out of balance when other brokers lead more than a percentage of the partitions for
which it is the preferred leader. Only a preferred replica in the ISR gets a leadership. The check
of all partitions is cut into slices, so that it never blocks the controller for long.
"""

from collections import Counter
from itertools import islice
from typing import Final

from quorumlog.metadata_quorum.controller.brokers import active_brokers
from quorumlog.metadata_quorum.controller.decision import Decision
from quorumlog.metadata_quorum.controller.partition_changes import Located, PartitionChanges
from quorumlog.metadata_quorum.image.records import PartitionChange
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.wire.codec.identifiers import BrokerId, PartitionIndex

LOOKED_AT_AT_ONCE: Final = 1000  # partitions
ELECTED_AT_ONCE: Final = 500
Place = tuple[str, int]


class LeaderBalance:
    """The time of the next check, and the progress of the current one."""

    def __init__(
        self,
        cluster: ClusterReplay,
        changes: PartitionChanges,
        settings: ControllerSettings,
        now_ms: int,
    ) -> None:
        self._cluster: Final = cluster
        self._changes: Final = changes
        self._percentage: Final = settings.leader_imbalance_per_broker_percentage
        self._interval_ms: Final = settings.leader_imbalance_check_interval_seconds * 1000
        self._is_enabled: Final = settings.auto_leader_rebalance_enable
        self._due_ms = now_ms + self._interval_ms
        self._topics: list[str] = []  # still to check
        self._first = 0  # next partition of the last topic in the list
        self._preferred: Counter[BrokerId] = Counter()
        self._away: dict[BrokerId, list[Place]] = {}
        self._to_elect: list[Place] = []

    def next_ms(self) -> int | None:
        """Return when the next slice is due; None: balancing is off."""
        return self._due_ms if self._is_enabled else None

    def decide(self, now_ms: int) -> Decision[None]:
        """Do one slice: check some partitions, or elect preferred leaders for some."""
        if self._to_elect:
            some, self._to_elect = _cut(self._to_elect)
            records = tuple(change for at in some if (change := self._elect(at)) is not None)
            self._maybe_rest(now_ms)
            return Decision(response=None, records=records)
        if not self._topics:
            self._topics, self._first = [*self._cluster.topic_names()], 0
            self._preferred.clear()
            self._away.clear()
        self._look()
        if not self._topics:
            for broker_id, places in sorted(self._away.items()):
                if len(places) * 100 > self._preferred[broker_id] * self._percentage:
                    self._to_elect += places
        self._maybe_rest(now_ms)
        return Decision(response=None)

    def _maybe_rest(self, now_ms: int) -> None:
        if not (self._topics or self._to_elect):
            self._due_ms = now_ms + self._interval_ms

    def _look(self) -> None:
        left = LOOKED_AT_AT_ONCE
        while self._topics and left > 0:
            name = self._topics[-1]
            count = self._cluster.partition_count(name)
            end = min(count, self._first + left)
            partitions = self._cluster.partitions(name) if count else ()
            for index, partition in islice(enumerate(partitions), self._first, end):
                preferred = partition.replicas[0]
                self._preferred[preferred] += 1
                if partition.leader_id != preferred:
                    self._away.setdefault(preferred, []).append((name, index))
            left -= max(end - self._first, 1)
            self._first = end
            if end >= count:
                self._topics.pop()
                self._first = 0

    def _elect(self, at: Place) -> PartitionChange | None:
        name, index = at
        topic_id, partition = self._cluster.topic_id(name), self._cluster.partition(name, index)
        if topic_id is None or partition is None or partition.replicas[0] not in partition.isr:
            return None
        located = Located(name, topic_id, PartitionIndex(index), partition)
        active = active_brokers(self._cluster)
        return self._changes.change(located, partition.isr, active, prefers_first=True)


def _cut(places: list[Place]) -> tuple[list[Place], list[Place]]:
    return places[:ELECTED_AT_ONCE], places[ELECTED_AT_ONCE:]
