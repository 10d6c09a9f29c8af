"""The record that changes a partition's ISR, replicas or leader.

Every decision about a partition makes its record here, so that all keep these rules: which replica
may lead, which replica stays eligible outside the ISR (KIP-966), when a reassignment is complete
(KIP-455, KAFKA-15665), and when a leader epoch begins. While all members of ISR and ELR are dead,
the partition has no leader, unless the topic or a request allows an unclean election. If ISR and
ELR are empty, the logs of the last known ELR decide (KIP-966). Both kinds of election may lose
records: the partition is `is_recovering` until its leader has written its first ISR (KIP-704).

# DEVIATION: In Kafka the last known leader leads, even if its log lacks records.
# docs/decisions/0014-whole-logs.md
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Final, NamedTuple

from quorumlog.metadata_quorum.controller import min_insync_replicas
from quorumlog.metadata_quorum.controller_client import LogReport
from quorumlog.metadata_quorum.image.features import LEVEL_OF_LAST_KNOWN_ELR, METADATA_FEATURE
from quorumlog.metadata_quorum.image.model import BrokerImage, PartitionImage
from quorumlog.metadata_quorum.image.partitions_by_broker import Place
from quorumlog.metadata_quorum.image.records import PartitionChange
from quorumlog.metadata_quorum.image.replay import ClusterReplay, Directories, kept_directories
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.settings.kinds import text_of
from quorumlog.settings.topics import TopicConfig
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId, Epoch, PartitionIndex, TopicId


class _Noted(NamedTuple):
    """A report with the broker epoch of its process and the leader epoch of the partition."""

    broker_epoch: int
    leader_epoch: Epoch
    report: LogReport


class LogEvidence:
    """Brokers' reports of their logs for partitions whose ISR and ELR are empty.

    No replica is then known to hold all committed records, so the logs decide: the longest intact
    log wins, by last leader epoch, then end offset, as in Raft (5.4.1). There is no election until
    every replica of the last known ELR has reported: a missing one may hold more records. Soft
    state: a new controller starts without, and the brokers report again. Source: KIP-966, Unclean
    Recovery ("Balanced"), which Apache Kafka has not built.
    """

    def __init__(self, cluster: ClusterReplay) -> None:
        self._cluster: Final = cluster
        self._noted: Final[dict[Place, dict[BrokerId, _Noted]]] = {}

    def note(
        self, broker_id: BrokerId, broker_epoch: int, partition: PartitionImage, report: LogReport
    ) -> None:
        """Record a report about a partition."""
        at = Place(report.topic_id, report.partition)
        noted = _Noted(broker_epoch, partition.leader_epoch, report)
        self._noted.setdefault(at, {})[broker_id] = noted

    def forget(self, at: Place) -> None:
        """Drop the reports about a partition that has a leader, or was deleted."""
        self._noted.pop(at, None)

    def forget_topic(self, topic_id: TopicId) -> None:
        """Drop the reports about the partitions of a deleted topic."""
        for at in [at for at in self._noted if at.topic_id == topic_id]:
            self.forget(at)

    def best(
        self, at: Place, partition: PartitionImage, candidates: Set[BrokerId]
    ) -> BrokerId | None:
        """Return the candidate with the longest reported log; None: no report."""
        reports = self._reports(at, partition)
        ordered = [one for one in partition.replicas if one in candidates and one in reports]
        return max(ordered, key=lambda one: _length(reports[one]), default=None)

    def decided(
        self,
        at: Place,
        partition: PartitionImage,
        last_known_elr: Set[BrokerId],
        candidates: Set[BrokerId],
    ) -> BrokerId:
        """Return the replica to elect without an operator's permission, or NO_LEADER.

        NO_LEADER until all of the last known ELR are candidates and have reported, and if all their
        logs are damaged: records are lost for a reason other than a loss of power.
        """
        reports = self._reports(at, partition)
        if not last_known_elr <= candidates & reports.keys():
            return NO_LEADER
        if not any(reports[one].is_whole for one in last_known_elr):
            return NO_LEADER
        best = self.best(at, partition, candidates)
        return NO_LEADER if best is None else best

    def damage(self, at: Place, partition: PartitionImage) -> list[LogReport]:
        """Return the reports of the last known ELR if all its replicas report damage, or none."""
        reports = self._reports(at, partition)
        found = [reports[one] for one in partition.last_known_elr if one in reports]
        is_all = len(found) == len(partition.last_known_elr)
        return found if is_all and not any(report.is_whole for report in found) else []

    def _reports(self, at: Place, partition: PartitionImage) -> Mapping[BrokerId, LogReport]:
        """Return the reports in this leader epoch, of processes that are still registered."""
        brokers = self._cluster.brokers
        return {
            broker_id: noted.report
            for broker_id, noted in self._noted.get(at, {}).items()
            if noted.leader_epoch == partition.leader_epoch
            and broker_id in brokers
            and brokers[broker_id].broker_epoch == noted.broker_epoch
        }


def _length(report: LogReport) -> tuple[int, int]:
    return report.last_epoch, report.log_end_offset


@dataclass(frozen=True, slots=True)
class Located:
    """A partition with its topic and index."""

    topic_name: str
    topic_id: TopicId
    index: PartitionIndex
    partition: PartitionImage

    @property
    def place(self) -> Place:
        """The topic id and index of the partition."""
        return Place(self.topic_id, self.index)


class Assignment(NamedTuple):
    """The replicas of a partition. `replicas`: the target replicas, then the replicas to remove."""

    replicas: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()

    @property
    def target(self) -> tuple[BrokerId, ...]:
        """Return the target replicas, the preferred leader first."""
        return tuple(replica for replica in self.replicas if replica not in self.removing)


def assignment_of(partition: PartitionImage) -> Assignment:
    """Return the current assignment of a partition."""
    return Assignment(partition.replicas, partition.adding_replicas, partition.removing_replicas)


@dataclass(eq=False)
class PartitionChanges:
    """Makes the records of partition changes; changes no state."""

    _cluster: ClusterReplay
    _settings: ControllerSettings
    _evidence: LogEvidence

    @property
    def has_last_known_elr(self) -> bool:
        """True if partitions record their last known ELR: then every broker reports its logs."""
        return self._cluster.feature_level(METADATA_FEATURE) >= LEVEL_OF_LAST_KNOWN_ELR

    def change(
        self,
        located: Located,
        target_isr: tuple[BrokerId, ...],
        active: Set[BrokerId],
        barred: Set[BrokerId] = frozenset(),
        *,
        prefers_first: bool = False,
        assignment: Assignment | None = None,
        emptied: Set[BrokerId] = frozenset(),
        unclean: bool = False,
        is_recovered: bool = False,
        directories: Directories | None = None,
    ) -> PartitionChange | None:
        """Return the record that sets a partition's ISR and, if possible, a leader; or None.

        The leader stays while it is in the ISR, unless `prefers_first` and the first replica may
        lead. ISR members are active, except a broker that leaves slice by slice. A new leader is
        the first active replica in the ISR or, if that is empty, in the ELR without `barred`.
        `assignment`, `directories`: the new ones. `emptied`: replicas that lost their logs.
        `unclean`: allow any active replica. `is_recovered`: the leader has proposed an ISR.
        """
        partition = located.partition
        directories = partition.directories if directories is None else directories
        active = self._with_log(directories, active)
        after = self.completed(assignment or assignment_of(partition), target_isr)
        isr = tuple(member for member in target_isr if member in after.replicas)
        held = self.holders(partition, after, barred)
        last_known = self.last_known_leader(partition, after, emptied)
        left = () if is_recovered else self.last_known_elr(partition, after, barred, emptied)
        leader = partition.leader_id
        if prefers_first and after.replicas[0] in {*isr} & active:
            leader = after.replicas[0]
        if leader not in isr:
            leader = self.elected(after, isr or tuple(held), active)
        if is_unclean := leader == NO_LEADER:
            last = frozenset() if held else frozenset(left or {last_known} - {NO_LEADER})
            allowed = unclean or self.may_be_unclean(located.topic_name)
            leader = self.elected_uncleanly(located, after, active, left=last, is_allowed=allowed)
            is_unclean = leader != NO_LEADER
        isr = isr if leader in {*isr, NO_LEADER} else (leader,)
        elr = self._elr(located, after, leader, isr, frozenset() if is_unclean else held)
        return _difference(
            located,
            PartitionImage(
                leader_id=leader,
                leader_epoch=partition.leader_epoch,
                partition_epoch=partition.partition_epoch,
                replicas=after.replicas,
                isr=isr,
                elr=elr,
                adding_replicas=after.adding,
                removing_replicas=after.removing,
                last_known_leader=last_known if leader == NO_LEADER else NO_LEADER,
                is_recovering=is_unclean or (partition.is_recovering and not is_recovered),
                directories=kept_directories(directories, after.replicas),
                last_known_elr=tuple(one for one in left if one not in {*isr, *elr}),
            ),
            is_unclean=is_unclean,
        )

    def _with_log(self, directories: Directories, active: Set[BrokerId]) -> Set[BrokerId]:
        """Return the active brokers that can use the log directory of their replica."""
        without = {
            broker_id
            for broker_id, at in directories
            if broker_id in active and at not in self._cluster.brokers[broker_id].directories
        }
        return active - without if without else active

    def _elr(
        self,
        located: Located,
        after: Assignment,
        leader: BrokerId,
        isr: tuple[BrokerId, ...],
        held: Set[BrokerId],
    ) -> tuple[BrokerId, ...]:
        """Return the new ELR: the replicas in `held` that are outside the ISR.

        While the ISR is below min.insync.replicas, no record is committed, so a replica that leaves
        it lacks none (KIP-966). `held` is empty after an unclean election, because the new leader
        may commit records that these replicas lack.
        """
        is_led = leader != NO_LEADER
        if is_led and len(isr) >= self.min_isr(located, leader, len(after.replicas)):
            return ()
        return tuple(replica for replica in after.replicas if replica in held - {*isr})

    def holders(
        self, partition: PartitionImage, after: Assignment, barred: Set[BrokerId]
    ) -> frozenset[BrokerId]:
        """Return the replicas that are known to hold all committed records."""
        return frozenset(({*partition.isr, *partition.elr} - barred) & {*after.replicas})

    def last_known_leader(
        self, partition: PartitionImage, after: Assignment, emptied: Set[BrokerId]
    ) -> BrokerId:
        """Return the leader, or the last leader of a leaderless partition, if it has its log."""
        is_led = partition.leader_id != NO_LEADER
        last = partition.leader_id if is_led else partition.last_known_leader
        return last if last in after.replicas and last not in emptied else NO_LEADER

    def last_known_elr(
        self,
        partition: PartitionImage,
        after: Assignment,
        barred: Set[BrokerId],
        emptied: Set[BrokerId],
    ) -> tuple[BrokerId, ...]:
        """Return the replicas that left ISR and ELR because they may lack records."""
        known = partition.last_known_elr
        if barred and self.has_last_known_elr:
            leaving = barred & {*partition.isr, *partition.elr} - {*known}
            known = (*known, *(one for one in partition.replicas if one in leaving))
        return tuple(one for one in known if one in after.replicas and one not in emptied)

    def may_be_unclean(self, topic_name: str) -> bool:
        """Return whether the topic, the cluster or this controller allows unclean elections."""
        setting = TopicConfig.unclean_leader_election_enable
        ours = {setting.server: text_of(self._settings.unclean_leader_election_enable)}
        altered = self._cluster.broker_configs("")  # for all nodes
        config = TopicConfig(self._cluster.configs(topic_name), {**ours, **altered})
        return config.unclean_leader_election_enable

    def elected_uncleanly(
        self,
        located: Located,
        assignment: Assignment,
        active: Set[BrokerId],
        *,
        left: Set[BrokerId],
        is_allowed: bool,
    ) -> BrokerId:
        """Return a replica that may lack committed records, or NO_LEADER.

        `left`: where ISR and ELR are empty, their last members. If all of these are active
        (KAFKA-19522) and have reported their logs, the replica with the longest log leads without
        permission (KIP-966). Where an unclean election is allowed, the longest reported log of an
        active replica wins, or else the first active replica.
        """
        at, partition = located.place, located.partition
        if left and not self.has_last_known_elr:
            return next((one for one in sorted(left) if one in active), NO_LEADER)
        if left:
            decided = self._evidence.decided(at, partition, left, active)
            if decided != NO_LEADER or not is_allowed:
                return decided
        best = self._evidence.best(at, partition, active) if is_allowed else None
        if best is not None and best in assignment.replicas:
            return best
        return self.elected(assignment, assignment.replicas if is_allowed else (), active)

    def completed(self, assignment: Assignment, isr: tuple[BrokerId, ...]) -> Assignment:
        """Return the assignment, without the reassignment once all target replicas are in sync.

        Not before: else there would be fewer copies than before (KAFKA-15665).
        """
        is_whole = {*assignment.target} <= {*isr}
        return Assignment(assignment.target) if is_whole else assignment

    def elected(
        self, assignment: Assignment, pool: tuple[BrokerId, ...], active: Set[BrokerId]
    ) -> BrokerId:
        """Return the first active replica in `pool`, or NO_LEADER."""
        candidates = (one for one in assignment.replicas if one in pool and one in active)
        return next(candidates, NO_LEADER)

    def min_isr(self, located: Located, leader_id: BrokerId, replicas: int) -> int:
        """Return the min.insync.replicas of the leader, because the leader commits by it."""
        number = min_insync_replicas.of_topic(self._cluster, located.topic_name, leader_id)
        return min(number, replicas)


def can_use_log(partition: PartitionImage, broker: BrokerImage) -> bool:
    """Return whether a broker can use the log directory of its replica (KIP-858)."""
    return partition.directory_of(broker.broker_id) in {None, *broker.directories}


def _difference(
    located: Located, after: PartitionImage, *, is_unclean: bool
) -> PartitionChange | None:
    """Return the record that turns a partition into `after`, except for its epochs; or None.

    Each unclean election writes `is_recovering`, also the second in a row.
    """
    before = located.partition
    if after == before:
        return None
    # A new leader epoch after a removal: the leader must no longer count the removed replica.
    is_new_epoch = after.leader_id != before.leader_id or not {*before.replicas} <= {
        *after.replicas
    }
    last_known, is_recovering = after.last_known_leader, after.is_recovering
    adding, removing = after.adding_replicas, after.removing_replicas
    kept = kept_directories(before.directories, after.replicas)
    last_known_elr = after.last_known_elr
    return PartitionChange(
        topic_id=located.topic_id,
        partition_id=located.index,
        isr=None if after.isr == before.isr else after.isr,
        leader=after.leader_id if is_new_epoch else None,
        elr=None if after.elr == before.elr else after.elr,
        replicas=None if after.replicas == before.replicas else after.replicas,
        adding_replicas=None if adding == before.adding_replicas else adding,
        removing_replicas=None if removing == before.removing_replicas else removing,
        last_known_leader=None if last_known == before.last_known_leader else last_known,
        is_recovering=(
            is_recovering if is_unclean or is_recovering != before.is_recovering else None
        ),
        directories=None if after.directories == kept else after.directories,
        last_known_elr=None if last_known_elr == before.last_known_elr else last_known_elr,
    )
