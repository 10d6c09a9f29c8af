"""The leader of a partition and its ISR: elections, fencing, AlterPartition, ElectLeaders.

It refuses an ISR proposal with an old epoch, from a broker that is not the leader, or with a member
that may lack records.
Sources: KIP-497 (AlterPartition), KIP-903 (broker epochs in it), KIP-966 (ELR), KIP-183 and
KIP-460 (ElectLeaders).
"""

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from quorumlog.invariants import some
from quorumlog.metadata_quorum.controller.brokers import active_brokers, broker_epoch_error
from quorumlog.metadata_quorum.controller.decision import Decision
from quorumlog.metadata_quorum.controller.log_loss import ALL_LOST, NO_LOSS, LogLoss, Losses
from quorumlog.metadata_quorum.controller.partition_changes import (
    Located,
    PartitionChanges,
    can_use_log,
)
from quorumlog.metadata_quorum.controller.refusals import check_named
from quorumlog.metadata_quorum.controller_client import ElectionResult, IsrProposal, IsrResult
from quorumlog.metadata_quorum.controller_requests import (
    AlterPartitions,
    AssignReplicas,
    ElectionResults,
    ElectLeaders,
    IsrResults,
    ReportReply,
)
from quorumlog.metadata_quorum.image.model import PartitionImage
from quorumlog.metadata_quorum.image.partitions_by_broker import Place
from quorumlog.metadata_quorum.image.records import PartitionChange
from quorumlog.metadata_quorum.image.replay import ClusterReplay, changed
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId, Epoch, PartitionIndex, TopicId


class Departure(NamedTuple):
    """The changes by which a broker leaves ISRs; `is_whole`: no change remains after these.

    `held_alone`: partitions whose committed records may be complete on this broker only.
    """

    changes: Sequence[PartitionChange]
    held_alone: Sequence[str]
    is_whole: bool


@dataclass(eq=False)
class PartitionDecisions:
    """Decides about partitions; changes no state."""

    _cluster: ClusterReplay
    _changes: PartitionChanges

    def decide_departure(
        self,
        broker_id: BrokerId,
        losses: Losses = NO_LOSS,
        *,
        at_most: int | None = None,
        places: Iterable[Place] | None = None,
    ) -> Departure:
        """Take a dead, fenced or stopping broker out of every ISR and leadership.

        With a loss, also out of every ELR, and into the last known ELR if part of its log is left.
        A changed partition is not found again, so that repeated slices of `at_most` changes end.
        `places`: the only partitions to leave.
        """
        active = active_brokers(self._cluster) - {broker_id}
        changes: list[PartitionChange] = []
        changed_alone: list[str] = []
        kept_alone: list[str] = []
        concerned = self._concerned_by(broker_id, losses) if places is None else places
        for located in map(self._located, concerned):
            if len(changes) == at_most:
                return Departure(changes, changed_alone, is_whole=False)
            partition = located.partition
            loss = losses.of(partition, broker_id)
            is_alone = _holders(partition) == {broker_id}
            change = self.departed(located, broker_id, active, loss)
            if change is not None:
                changes.append(change)
            if is_alone and loss is not LogLoss.NOTHING:
                names = kept_alone if change is None else changed_alone
                names.append(f"{located.topic_name}-{located.index}")
        return Departure(changes, changed_alone + kept_alone, is_whole=True)

    def held_alone_by(self, broker_id: BrokerId) -> list[str]:
        """Name the partitions whose committed records may be complete on this broker only."""
        return [
            f"{one.topic_name}-{one.index}"
            for one in map(self._located, self._concerned_by(broker_id, ALL_LOST))
            if _holders(one.partition) == {broker_id}
        ]

    def _concerned_by(self, broker_id: BrokerId, losses: Losses) -> Iterator[Place]:
        by_broker = self._cluster.by_broker
        places = by_broker.in_sync.of(broker_id)
        if losses.may_be_some:
            places = chain(places, by_broker.eligible.of(broker_id))
        return places

    def departed(
        self, located: Located, broker_id: BrokerId, active: Set[BrokerId], loss: LogLoss
    ) -> PartitionChange | None:
        """Return the change by which a broker leaves one partition; None: it has left already."""
        partition = located.partition
        isr = tuple(member for member in partition.isr if member != broker_id)
        is_alone = not {*isr, *partition.elr} - {broker_id}
        emptied = frozenset({broker_id}) if loss.is_total else frozenset()
        stays = loss is LogLoss.NOTHING or (
            # At this metadata level there is no last known ELR to move it to.
            is_alone
            and loss in {LogLoss.UNFLUSHED, LogLoss.UNKNOWN}
            and not self._changes.has_last_known_elr
        )
        if not stays and broker_id in {*partition.isr, *partition.elr}:
            barred = frozenset({broker_id})
            return self._changes.change(located, isr, active, barred=barred, emptied=emptied)
        last = {partition.last_known_leader, *partition.last_known_elr}
        if broker_id in {*partition.isr, *emptied & last}:
            return self._changes.change(located, isr, active, emptied=emptied)
        return None

    def leaderless(self, broker_id: BrokerId | None = None) -> list[Place]:
        """Return the partitions without a leader; with `broker_id`, only those it replicates."""
        places = self._cluster.by_broker.leading.of(NO_LEADER)
        if broker_id is None:
            return [*places]
        return [at for at in places if broker_id in self._located(at).partition.replicas]

    def decide_elections(
        self, places: Iterable[Place], newly_active: Set[BrokerId]
    ) -> list[PartitionChange]:
        """Elect leaders where there still is none; `newly_active` count as active brokers."""
        active = active_brokers(self._cluster) | newly_active
        changes = []
        for at in places:
            name = self._cluster.topic_name(at.topic_id)
            if name is None:
                continue  # the topic was deleted meanwhile
            located = self._located(at)
            if located.partition.leader_id == NO_LEADER:
                changes.append(self._changes.change(located, located.partition.isr, active))
        return [change for change in changes if change is not None]

    def decide_requested(self, request: ElectLeaders) -> Decision[ElectionResults]:
        """Elect preferred leaders that are in sync; a result per partition.

        Unclean: for a partition without a leader, elect one of its active replicas. Raises
        TopicRefused: there are too many partitions.
        """
        check_named(len(request.partitions), "partitions")
        active = active_brokers(self._cluster)
        outcomes: dict[tuple[str, int], tuple[PartitionChange | None, ElectionResult]] = {}
        for at in request.partitions:
            if at not in outcomes:
                outcomes[at] = self._elect(at, active, unclean=request.unclean)
        return Decision(
            response=ElectionResults(results=tuple(outcomes[at][1] for at in request.partitions)),
            records=tuple(change for change, _ in outcomes.values() if change is not None),
        )

    def _elect(
        self, at: tuple[str, int], active: Set[BrokerId], *, unclean: bool
    ) -> tuple[PartitionChange | None, ElectionResult]:
        name, index = at
        topic_id, partition = self._cluster.topic_id(name), self._cluster.partition(name, index)
        if topic_id is None or partition is None:
            missing = f"No such partition as {name}-{index}"
            return None, _not_elected(at, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, missing)
        preferred = partition.replicas[0]
        if partition.leader_id == preferred or (unclean and partition.leader_id != NO_LEADER):
            return None, _not_elected(at, ErrorCode.ELECTION_NOT_NEEDED, None)
        located = Located(name, topic_id, PartitionIndex(index), partition)
        if unclean:
            change = self._changes.change(located, partition.isr, active, unclean=True)
            return change, _elected_uncleanly(at, partition, change)
        if preferred not in partition.isr or preferred not in active:
            return None, _not_elected(
                at,
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                f"broker {preferred}, the preferred leader of {name}-{index}, is not in sync",
            )
        change = self._changes.change(located, partition.isr, active, prefers_first=True)
        return change, _elected(at, partition)

    def decide_assignment(self, request: AssignReplicas) -> Decision[ReportReply]:
        """Record the log directories of a broker's replicas (KIP-858).

        A replica whose directory has failed meanwhile leaves the ISR; it also leaves the ELR unless
        it is the only member of both.
        """
        error_code = broker_epoch_error(self._cluster, request.broker_id, request.broker_epoch)
        if error_code is not ErrorCode.NONE:
            return Decision(response=ReportReply(error_code=error_code))
        active = active_brokers(self._cluster)
        changes: dict[Place, PartitionChange | None] = {}
        for one in request.replicas:
            at = Place(one.topic_id, one.partition)
            located = self.find(at)
            if at not in changes and located is not None:
                changes[at] = self._assigned(located, request.broker_id, one.directory_id, active)
        return Decision(
            response=ReportReply(error_code=ErrorCode.NONE),
            records=tuple(change for change in changes.values() if change is not None),
        )

    def _assigned(
        self, located: Located, broker_id: BrokerId, directory_id: str, active: Set[BrokerId]
    ) -> PartitionChange | None:
        partition = located.partition
        if broker_id not in partition.replicas:
            return None
        known = {**dict(partition.directories), broker_id: directory_id}
        directories = tuple(sorted(known.items()))
        isr, barred = partition.isr, frozenset[BrokerId]()
        if directory_id not in self._cluster.brokers[broker_id].directories:
            isr = tuple(member for member in isr if member != broker_id)
            if {*isr, *partition.elr} - {broker_id}:
                barred = frozenset({broker_id})
        return self._changes.change(located, isr, active, barred=barred, directories=directories)

    def decide_alter(self, request: AlterPartitions) -> Decision[IsrResults]:
        """Grant the valid ISR proposals; each refused proposal gets an error code."""
        error_code = broker_epoch_error(self._cluster, request.broker_id, request.broker_epoch)
        if error_code is not ErrorCode.NONE:
            return Decision(response=IsrResults(error_code=error_code))
        changes, results = [], []
        seen: set[tuple[TopicId, PartitionIndex]] = set()
        for proposal in request.proposals:
            place = (proposal.topic_id, proposal.partition)
            located = self.find(Place(*place))
            if place in seen or located is None:
                is_repeated = place in seen
                absence = ErrorCode.INVALID_REQUEST if is_repeated else ErrorCode.UNKNOWN_TOPIC_ID
                results.append(_refused(proposal, absence))
                continue
            seen.add(place)
            refusal = self._refusal(located.partition, request.broker_id, proposal)
            if refusal is not ErrorCode.NONE:
                results.append(_refused(proposal, refusal))
                if refusal is ErrorCode.INELIGIBLE_REPLICA:
                    changes.append(_new_partition_epoch(located))
                continue
            change, result = self._grant(located, proposal)
            results.append(result)
            if change is not None:
                changes.append(change)
        response = IsrResults(error_code=ErrorCode.NONE, results=tuple(results))
        return Decision(response=response, records=tuple(changes))

    def find(self, at: Place) -> Located | None:
        """Return the partition at a place, or None if it does not exist."""
        name = self._cluster.topic_name(at.topic_id)
        partition = None if name is None else self._cluster.partition(name, at.partition)
        if name is None or partition is None:
            return None
        return Located(name, at.topic_id, at.partition, partition)

    def directory_of(self, at: Place, broker_id: BrokerId) -> str | None:
        """Return the log directory of a broker's replica; None: the broker has not reported it."""
        return self._located(at).partition.directory_of(broker_id)

    def _located(self, at: Place) -> Located:
        name = some(self._cluster.topic_name(at.topic_id), "the index names known topics")
        partition = some(self._cluster.partition(name, at.partition), "and their partitions")
        return Located(name, at.topic_id, at.partition, partition)

    def _refusal(
        self, partition: PartitionImage, broker_id: BrokerId, proposal: IsrProposal
    ) -> ErrorCode:
        """Return the error code of a refusal, or NONE. The checks are in Kafka's order."""
        is_ahead = (
            proposal.leader_epoch > partition.leader_epoch
            or proposal.partition_epoch > partition.partition_epoch
        )
        members = [member for member, _ in proposal.new_isr]
        is_possible = {broker_id} <= {*members} <= {*partition.replicas}
        checks = (
            (is_ahead, ErrorCode.NOT_CONTROLLER),  # its epoch is our successor's (KAFKA-14154)
            (proposal.leader_epoch < partition.leader_epoch, ErrorCode.FENCED_LEADER_EPOCH),
            (broker_id != partition.leader_id, ErrorCode.INVALID_REQUEST),
            (
                proposal.partition_epoch < partition.partition_epoch,
                ErrorCode.INVALID_UPDATE_VERSION,
            ),
            (not is_possible or len({*members}) != len(members), ErrorCode.INVALID_REQUEST),
            (
                proposal.is_recovering and (len(members) > 1 or not partition.is_recovering),
                ErrorCode.INVALID_REQUEST,
            ),
            (
                not all(
                    self._is_eligible(partition, member, epoch)
                    for member, epoch in proposal.new_isr
                ),
                ErrorCode.INELIGIBLE_REPLICA,
            ),
        )
        return next((error_code for fails, error_code in checks if fails), ErrorCode.NONE)

    def _is_eligible(
        self, partition: PartitionImage, broker_id: BrokerId, broker_epoch: int
    ) -> bool:
        """Return False for a broker that has restarted since it was in sync (KAFKA-14617).

        Also for a broker that can no longer use the replica's log directory (KIP-858).
        """
        broker = self._cluster.brokers.get(broker_id)
        if broker is None or broker.fenced or broker.in_controlled_shutdown:
            return False
        if partition.directories and not can_use_log(partition, broker):
            return False
        return broker_epoch == broker.broker_epoch

    def members_without_log(self) -> list[str]:
        """Name the ISR members that cannot use their logs; it reads every partition."""
        return [
            f"3: {name} has broker {member} in {partition.isr}, which cannot use its log"
            for name in self._cluster.topic_names()
            for partition in self._cluster.partitions(name)
            for member in partition.isr
            if not can_use_log(partition, self._cluster.brokers[member])
        ]

    def _grant(
        self, located: Located, proposal: IsrProposal
    ) -> tuple[PartitionChange | None, IsrResult]:
        """Return the change, which may complete a reassignment, and the result after it."""
        wanted = tuple(member for member, _ in proposal.new_isr)
        partition = located.partition
        change = self._changes.change(
            located, wanted, active_brokers(self._cluster), is_recovered=not proposal.is_recovering
        )
        after = partition if change is None else changed(partition, change)
        if after.leader_id != partition.leader_id:
            return change, _refused(proposal, ErrorCode.NEW_LEADER_ELECTED)
        granted = IsrResult(
            topic_id=located.topic_id,
            partition=located.index,
            error_code=ErrorCode.NONE,
            leader_id=after.leader_id,
            leader_epoch=after.leader_epoch,
            partition_epoch=after.partition_epoch,
            isr=after.isr,
        )
        return change, granted


def _holders(partition: PartitionImage) -> set[BrokerId]:
    """Return ISR and ELR, which hold all committed records; if empty, the last known ELR."""
    return {*partition.isr, *partition.elr} or {*partition.last_known_elr}


def _new_partition_epoch(located: Located) -> PartitionChange:
    """Return the record that voids every copy of a refused proposal.

    The leader withdraws the proposal, but a copy may still be on its way. That copy would be
    granted once its member is eligible again, although the leader has committed without it.

    # DEVIATION: Kafka answers and changes nothing.
    # docs/decisions/0010-isr-proposals.md
    """
    return PartitionChange(topic_id=located.topic_id, partition_id=located.index)


def _not_elected(at: tuple[str, int], error_code: ErrorCode, message: str | None) -> ElectionResult:
    return ElectionResult(
        topic=at[0], partition=at[1], error_code=error_code, error_message=message
    )


def _elected(at: tuple[str, int], partition: PartitionImage) -> ElectionResult:
    (topic, index), epoch = at, Epoch(partition.leader_epoch + 1)
    return ElectionResult(
        topic=topic, partition=index, error_code=ErrorCode.NONE, leader_epoch=epoch
    )


def _elected_uncleanly(
    at: tuple[str, int], partition: PartitionImage, change: PartitionChange | None
) -> ElectionResult:
    if change is not None and change.leader is not None:
        return _elected(at, partition)
    message = f"no replica of {at[0]}-{at[1]} is alive: start one of {[*partition.replicas]}"
    return _not_elected(at, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, message)


def _refused(proposal: IsrProposal, error_code: ErrorCode) -> IsrResult:
    return IsrResult(
        topic_id=proposal.topic_id, partition=proposal.partition, error_code=error_code
    )
