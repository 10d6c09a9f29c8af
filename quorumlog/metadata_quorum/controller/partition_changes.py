"""The record that gives a partition another ISR, other replicas or another leader.

Every decision about a partition ends here, so that its rules are kept by all: which replica may
lead, which one stays eligible outside the ISR (KIP-966), when a reassignment is complete (KIP-455,
KAFKA-15665), and when a leader epoch begins. While all of ISR and ELR are dead, no broker leads,
unless the topic or a request allows an unclean election. If no broker is known to hold all that is
committed, the logs of the last known ELR decide (KIP-966). Both may lose records, and the partition
says so until its leader has written its first ISR (KIP-704).

# DEVIATION: In Kafka the last known leader leads, whatever is left of its log.
# docs/decisions/0147-a-replica-is-believed-if-its-log-can-be-believed.md
"""

from collections.abc import Set
from dataclasses import dataclass
from typing import Final, NamedTuple

from quorumlog.metadata_quorum.controller import min_insync_replicas
from quorumlog.metadata_quorum.controller.log_evidence import LogEvidence
from quorumlog.metadata_quorum.image.features import LEVEL_OF_LAST_KNOWN_ELR, METADATA_FEATURE
from quorumlog.metadata_quorum.image.model import BrokerImage, PartitionImage
from quorumlog.metadata_quorum.image.partition_change import Directories, kept_directories
from quorumlog.metadata_quorum.image.partitions_by_broker import Place
from quorumlog.metadata_quorum.image.records import PartitionChange
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.settings.kinds import text_of
from quorumlog.settings.topics import TopicConfig
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId, PartitionIndex, TopicId


@dataclass(frozen=True, slots=True)
class Located:
    """A partition with its place."""

    topic_name: str
    topic_id: TopicId
    index: PartitionIndex
    partition: PartitionImage

    @property
    def place(self) -> Place:
        """The partition by the id of its topic."""
        return Place(self.topic_id, self.index)


class Assignment(NamedTuple):
    """The replicas of a partition: `replicas` holds those that it gets, and those that it loses."""

    replicas: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...] = ()
    removing: tuple[BrokerId, ...] = ()

    @property
    def target(self) -> tuple[BrokerId, ...]:
        """Return the replicas that it is to have in the end, the preferred leader first."""
        return tuple(replica for replica in self.replicas if replica not in self.removing)


def assignment_of(partition: PartitionImage) -> Assignment:
    """Return the replicas that a partition has now."""
    return Assignment(partition.replicas, partition.adding_replicas, partition.removing_replicas)


class PartitionChanges:
    """Makes the records; mutates nothing."""

    def __init__(
        self, cluster: ClusterReplay, settings: ControllerSettings, evidence: LogEvidence
    ) -> None:
        self._cluster: Final = cluster
        self._settings: Final = settings
        self._evidence: Final = evidence

    @property
    def has_last_known_elr(self) -> bool:
        """Whether partitions record their last known ELR: every broker reports its logs then."""
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
        """Return the record that gives a partition `target_isr` and, if it can, a leader; or None.

        The leader stays while it is in the ISR; with `prefers_first` only where the first replica
        may not lead. Members of the ISR are active, but for a broker that leaves slice by slice.
        Else the first replica, in order, of the ISR, or, if it is empty, of the ELR without
        `barred`. `assignment`, `directories`: from now on. `emptied`: these have lost their logs.
        `unclean`: any may lead if no other may. `is_recovered`: its leader has proposed an ISR.
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
        """Return those of the active brokers that can use the log directory of the replica."""
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
        """Return who stays eligible outside the ISR.

        Nothing is committed while the ISR is too small: a leaver lacks nothing (KIP-966). `held`:
        none of an unclean leader, because it commits what they do not have.
        """
        is_led = leader != NO_LEADER
        if is_led and len(isr) >= self.min_isr(located, leader, len(after.replicas)):
            return ()
        return tuple(replica for replica in after.replicas if replica in held - {*isr})

    def holders(
        self, partition: PartitionImage, after: Assignment, barred: Set[BrokerId]
    ) -> frozenset[BrokerId]:
        """Return the replicas that are known to hold all that is committed."""
        return frozenset(({*partition.isr, *partition.elr} - barred) & {*after.replicas})

    def last_known_leader(
        self, partition: PartitionImage, after: Assignment, emptied: Set[BrokerId]
    ) -> BrokerId:
        """Return the leader, or the last one of a partition without, if it still has its log."""
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
        """Tell whether a topic, or else this controller, allows unclean elections."""
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

        `left`: where ISR and ELR are empty, those that were in them last. If all of them are alive
        (KAFKA-19522) and have reported their logs, the replica with the longest one needs no
        permission (KIP-966). Where an unclean election is allowed, it is the longest of those that
        are alive and have reported, or else the first replica that is alive.
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
        """Return what is left of a reassignment: nothing once all that stay are in sync.

        Not before: else there would be fewer copies than before (KAFKA-15665).
        """
        is_whole = {*assignment.target} <= {*isr}
        return Assignment(assignment.target) if is_whole else assignment

    def elected(
        self, assignment: Assignment, pool: tuple[BrokerId, ...], active: Set[BrokerId]
    ) -> BrokerId:
        """Return the first replica that is alive and in `pool`, or NO_LEADER."""
        candidates = (one for one in assignment.replicas if one in pool and one in active)
        return next(candidates, NO_LEADER)

    def min_isr(self, located: Located, leader_id: BrokerId, replicas: int) -> int:
        """Return the leader's min.insync.replicas, because the leader decides what is committed."""
        number = min_insync_replicas.of_topic(self._cluster, located.topic_name, leader_id)
        return min(number, replicas)


def can_use_log(partition: PartitionImage, broker: BrokerImage) -> bool:
    """Tell whether a broker can use the log directory in which its replica is (KIP-858)."""
    return partition.directory_of(broker.broker_id) in {None, *broker.directories}


def _difference(
    located: Located, after: PartitionImage, *, is_unclean: bool
) -> PartitionChange | None:
    """Return the record that makes a partition what it is to be; its epochs aside.

    Each unclean election says `is_recovering`, the second one in a row, too.
    """
    before = located.partition
    if after == before:
        return None
    # A replica that was removed must not count for this leader any more, so it leads anew.
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
