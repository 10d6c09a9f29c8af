"""Decisions about many partitions of a broker, slice by slice.

A slice changes few partitions, so that it hardly blocks the event loop. The next slice is decided
on the state after the last slice, once that is committed. A controller that dies between two
slices leaves a legal state, from which the next controller continues.
"""

from collections import deque
from collections.abc import Iterable
from itertools import chain, islice
from typing import ClassVar, Final

from quorumlog.metadata_quorum.controller.log_loss import NO_LOSS, NOT_FLUSHED, Losses
from quorumlog.metadata_quorum.controller.partitions import Departure, PartitionDecisions
from quorumlog.metadata_quorum.image.partitions_by_broker import Place
from quorumlog.metadata_quorum.image.records import Config, MetadataRecord, PartitionChange
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.settings.topics import TopicConfig
from quorumlog.wire.codec.identifiers import BrokerId

_UNCLEAN: Final = TopicConfig.unclean_leader_election_enable
_UNCLEAN_ELECTIONS: Final = frozenset({_UNCLEAN.name, _UNCLEAN.server})


class Slices:
    """Takes brokers out of ISRs, and elects. Soft state: the partitions to elect for."""

    at_once: ClassVar[int] = 500
    """The number of partitions that a slice changes, or checks for an election."""

    def __init__(self, cluster: ClusterReplay, partitions: PartitionDecisions) -> None:
        self._by_broker: Final = cluster.by_broker
        self._partitions: Final = partitions
        self._to_elect: Final = deque[Place]()
        self._looks_at_all = False  # the next `elections` rebuilds `_to_elect`

    def departure(self, broker_id: BrokerId, losses: Losses = NO_LOSS) -> Departure:
        """Take a broker out of one slice of its ISRs; with a loss, also out of ELRs."""
        return self._partitions.decide_departure(broker_id, losses, at_most=self.at_once)

    def departure_of_directories(self, broker_id: BrokerId, failed: Iterable[str]) -> Departure:
        """Take a broker out of one slice of ISRs and ELRs: of its replicas in failed directories.

        Unflushed records may be lost, because the disk failed a request. Replicas of which the
        broker has not yet reported the directory count as well: the next registration does not
        name failed directories, so it could not show their loss.
        """
        places = [at for one in failed for at in self._by_broker.in_directory.of(one)]
        places += self._in_no_known_directory(broker_id)
        return self._partitions.decide_departure(
            broker_id, NOT_FLUSHED, at_most=self.at_once, places=places
        )

    def _in_no_known_directory(self, broker_id: BrokerId) -> list[Place]:
        """Return the broker's ISR and ELR partitions without a reported log directory."""
        places = chain(
            self._by_broker.in_sync.of(broker_id), self._by_broker.eligible.of(broker_id)
        )
        return [at for at in places if self._partitions.directory_of(at, broker_id) is None]

    def has_to_hand_over(self, broker_id: BrokerId) -> bool:
        """Return whether the broker leads, or is in more ISRs than one slice changes."""
        in_sync = islice(self._by_broker.in_sync.of(broker_id), self.at_once + 1)
        return self._by_broker.leading.has_any(broker_id) or len([*in_sync]) > self.at_once

    def note_applied(self, record: MetadataRecord) -> None:
        """Let `elections` check all leaderless partitions after a change of unclean elections.

        `elections` uses the settings of its own time: one request may allow unclean elections for
        the cluster and refuse them for a topic.
        """
        # DEVIATION: Kafka holds them within unclean.leader.election.interval.ms.
        # docs/decisions/0011-eligible-leader-replicas.md
        if isinstance(record, Config) and record.name in _UNCLEAN_ELECTIONS:
            self.note_leaderless()

    @property
    def has_elections(self) -> bool:
        """True while partitions wait for `elections`."""
        return self._looks_at_all or bool(self._to_elect)

    def note_leaderless(self, broker_id: BrokerId | None = None) -> None:
        """Let `elections` check all leaderless partitions, or those that a broker replicates."""
        if broker_id is None:
            self._looks_at_all = True  # repeated calls cause one check
        else:
            self._to_elect.extend(self._partitions.leaderless(broker_id))

    def elections(self, newly_active: frozenset[BrokerId]) -> tuple[PartitionChange, ...]:
        """Elect leaders for one slice; `newly_active` count as active brokers."""
        if self._looks_at_all:
            self._looks_at_all = False
            self._to_elect.clear()
            self._to_elect.extend(self._partitions.leaderless())
        count = min(len(self._to_elect), self.at_once)
        places = [self._to_elect.popleft() for _ in range(count)]
        return tuple(self._partitions.decide_elections(places, newly_active))
