"""The leader of a partition and its ISR: elections, fencing, AlterPartition, ElectLeaders.

It refuses an ISR proposed on an older view, by another than the leader, or with a member that may
have lost records. Elections are clean: with ISR and ELR all dead, a partition stays leaderless.
Sources: KIP-497 (AlterPartition), KIP-903 (broker epochs in it), KIP-966 (ELR), KIP-183 and
KIP-460 (ElectLeaders).
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Final

from quorumlog.metadata_quorum.controller.brokers import active_brokers, broker_epoch_error
from quorumlog.metadata_quorum.controller.log_loss import LogLoss
from quorumlog.metadata_quorum.controller.refusals import TopicRefused, check_named
from quorumlog.metadata_quorum.controller.requests import (
    AlterPartitions,
    Decision,
    ElectionResults,
    ElectLeaders,
    IsrResults,
)
from quorumlog.metadata_quorum.controller_client import (
    ElectionResult,
    IsrProposal,
    IsrResult,
)
from quorumlog.metadata_quorum.image.model import PartitionImage
from quorumlog.metadata_quorum.image.records import PartitionChange
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.settings.topics import TopicConfig
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId, Epoch, PartitionIndex, TopicId


@dataclass(frozen=True, slots=True)
class Located:
    """A partition with its place."""

    topic_name: str
    topic_id: TopicId
    index: PartitionIndex
    partition: PartitionImage


class PartitionDecisions:
    """Decides about partitions; mutates nothing."""

    def __init__(self, cluster: ClusterReplay) -> None:
        self._cluster: Final = cluster

    def decide_departure(
        self, broker_id: BrokerId, loss: LogLoss = LogLoss.NOTHING
    ) -> list[PartitionChange]:
        """Take a broker out of every ISR and leadership: it is dead, fenced or about to stop.

        With a loss, out of every ELR too. One that may lack what was not flushed stays in those
        that would be empty without it: no broker is known to have more.
        """
        active = active_brokers(self._cluster) - {broker_id}
        changes = []
        for located in self._every_partition():
            partition = located.partition
            isr = tuple(member for member in partition.isr if member != broker_id)
            is_alone = not {*isr, *partition.elr} - {broker_id}
            is_barred = loss is LogLoss.EVERYTHING or (loss is LogLoss.UNFLUSHED and not is_alone)
            if is_barred and broker_id in {*partition.isr, *partition.elr}:
                changes.append(self._change(located, isr, active, barred=frozenset({broker_id})))
            elif broker_id in partition.isr:
                changes.append(self._change(located, isr, active))
        return [change for change in changes if change is not None]

    def decide_elections(self, newly_active: Set[BrokerId]) -> list[PartitionChange]:
        """Elect for partitions without a leader, as if `newly_active` were active, too."""
        active = active_brokers(self._cluster) | newly_active
        leaderless = (
            one for one in self._every_partition() if one.partition.leader_id == NO_LEADER
        )
        changes = (self._change(one, one.partition.isr, active) for one in leaderless)
        return [change for change in changes if change is not None]

    def decide_requested(self, request: ElectLeaders) -> Decision[ElectionResults]:
        """Elect preferred leaders where they are in sync; a result per partition."""
        try:
            check_named(len(request.partitions), "partitions")
        except TopicRefused as refusal:
            refused = tuple(map(refusal.election_result_of, request.partitions))
            return Decision(response=ElectionResults(results=refused))
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
        if unclean:  # not there yet: see the README
            return None, _not_elected(
                at,
                ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
                "this controller elects no leader that may lack committed records",
            )
        located = Located(name, topic_id, PartitionIndex(index), partition)
        if preferred not in partition.isr:
            return None, _not_elected(
                at,
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                f"broker {preferred}, the preferred leader of {name}-{index}, is not in sync",
            )
        change = self._change(located, partition.isr, active, prefers_first=True)
        leader_epoch = Epoch(partition.leader_epoch + 1)
        elected = ElectionResult(
            topic=name, partition=index, error_code=ErrorCode.NONE, leader_epoch=leader_epoch
        )
        return change, elected

    def held_alone_by(self, broker_id: BrokerId) -> list[str]:
        """Name the partitions of which no other broker is known to hold all committed records."""
        return [
            f"{self._cluster.topic_name(one.topic_id)}-{one.index}"
            for one in self._every_partition()
            if {*one.partition.isr, *one.partition.elr} == {broker_id}
        ]

    def decide_alter(self, request: AlterPartitions) -> Decision[IsrResults]:
        """Grant the ISRs that may be granted; every other one gets its reason."""
        error_code = broker_epoch_error(self._cluster, request.broker_id, request.broker_epoch)
        if error_code is not ErrorCode.NONE:
            return Decision(response=IsrResults(error_code=error_code))
        changes, results = [], []
        seen: set[tuple[TopicId, int]] = set()
        for proposal in request.proposals:
            place = (proposal.topic_id, proposal.partition)
            located = self._locate(proposal)
            if place in seen or located is None:
                results.append(_refused(proposal, _absence(place in seen)))
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

    def _locate(self, proposal: IsrProposal) -> Located | None:
        name = self._cluster.topic_name(proposal.topic_id)
        partition = None if name is None else self._cluster.partition(name, proposal.partition)
        if name is None or partition is None:
            return None
        return Located(name, proposal.topic_id, proposal.partition, partition)

    def _every_partition(self) -> Iterator[Located]:
        for name in self._cluster.topic_names():
            topic_id = self._cluster.topic_id(name)
            if topic_id is None:
                continue
            for index, partition in enumerate(self._cluster.partitions(name)):
                yield Located(name, topic_id, PartitionIndex(index), partition)

    def _refusal(
        self, partition: PartitionImage, broker_id: BrokerId, proposal: IsrProposal
    ) -> ErrorCode:
        """Return the reason for a refusal, or NONE. The checks are in Kafka's order."""
        is_ahead = (
            proposal.leader_epoch > partition.leader_epoch
            or proposal.partition_epoch > partition.partition_epoch
        )
        members = [member for member, _ in proposal.new_isr]
        is_possible = {broker_id} <= {*members} <= {*partition.replicas}
        checks = (
            (is_ahead, ErrorCode.NOT_CONTROLLER),  # it knows our successor's (KAFKA-14154)
            (proposal.leader_epoch < partition.leader_epoch, ErrorCode.FENCED_LEADER_EPOCH),
            (broker_id != partition.leader_id, ErrorCode.INVALID_REQUEST),
            (
                proposal.partition_epoch < partition.partition_epoch,
                ErrorCode.INVALID_UPDATE_VERSION,
            ),
            (not is_possible or len({*members}) != len(members), ErrorCode.INVALID_REQUEST),
            (
                not all(self._is_eligible(member, epoch) for member, epoch in proposal.new_isr),
                ErrorCode.INELIGIBLE_REPLICA,
            ),
        )
        return next((error_code for fails, error_code in checks if fails), ErrorCode.NONE)

    def _is_eligible(self, broker_id: BrokerId, broker_epoch: int) -> bool:
        """Refuse a broker that has restarted since it was in sync (KAFKA-14617)."""
        broker = self._cluster.brokers.get(broker_id)
        if broker is None or broker.fenced or broker.in_controlled_shutdown:
            return False
        return broker_epoch == broker.broker_epoch

    def _grant(
        self, located: Located, proposal: IsrProposal
    ) -> tuple[PartitionChange | None, IsrResult]:
        isr = tuple(member for member, _ in proposal.new_isr)
        change = self._change(located, isr, active_brokers(self._cluster))
        partition = located.partition
        granted = IsrResult(
            topic_id=located.topic_id,
            partition=located.index,
            error_code=ErrorCode.NONE,
            leader_id=partition.leader_id,
            leader_epoch=partition.leader_epoch,
            partition_epoch=Epoch(partition.partition_epoch + (change is not None)),
            isr=isr,
        )
        return change, granted

    def _change(
        self,
        located: Located,
        target_isr: tuple[BrokerId, ...],
        active: Set[BrokerId],
        barred: Set[BrokerId] = frozenset(),
        *,
        prefers_first: bool = False,
    ) -> PartitionChange | None:
        """Return the record that gives a partition `target_isr` and, if it can, a leader.

        The leader stays while it is in the ISR, whose members are all active; with `prefers_first`
        only where the first replica is not in it. Else the first replica, in order, of the ISR;
        else, when that is empty, of the ELR, in which no broker of `barred` stays. None: nothing
        changes.
        """
        partition = located.partition
        isr, leader = target_isr, partition.leader_id
        if prefers_first and partition.replicas[0] in isr:
            leader = partition.replicas[0]
        held = {*partition.isr, *partition.elr} - barred
        if leader not in isr:
            pool = isr or held
            leader = next((r for r in partition.replicas if r in pool and r in active), NO_LEADER)
            if not isr and leader != NO_LEADER:
                isr = (leader,)
        # Nothing is committed while the ISR is too small: a leaver lacks nothing (KIP-966).
        commits = leader != NO_LEADER and len(isr) >= self._min_isr(located, leader)
        elr = () if commits else tuple(r for r in partition.replicas if r in held - {*isr})
        if (leader, isr, elr) == (partition.leader_id, partition.isr, partition.elr):
            return None
        return PartitionChange(
            topic_id=located.topic_id,
            partition_id=located.index,
            isr=None if isr == partition.isr else isr,
            leader=None if leader == partition.leader_id else leader,
            elr=None if elr == partition.elr else elr,
        )

    def _min_isr(self, located: Located, leader_id: BrokerId) -> int:
        """Return the leader's min.insync.replicas, because the leader decides what is committed.

        # DEVIATION: Kafka takes the active controller's own value for topics that have none.
        # docs/decisions/0019-the-elr-goes-by-the-leaders-min-insync-replicas.md
        """
        setting = TopicConfig.min_insync_replicas
        leaders = {setting.server: str(self._cluster.brokers[leader_id].min_insync_replicas)}
        config = TopicConfig(self._cluster.configs(located.topic_name), leaders)
        return min(config.min_insync_replicas, len(located.partition.replicas))


def _absence(is_repeated: bool) -> ErrorCode:
    return ErrorCode.INVALID_REQUEST if is_repeated else ErrorCode.UNKNOWN_TOPIC_ID


def _new_partition_epoch(located: Located) -> PartitionChange:
    """Return the record that voids every copy of a proposal which the leader now takes back.

    A copy may still be on its way. It would be granted once its member is eligible again, although
    the leader has committed without that member.

    # DEVIATION: Kafka answers and changes nothing.
    # docs/decisions/0016-a-refused-isr-proposal-is-void.md
    """
    return PartitionChange(topic_id=located.topic_id, partition_id=located.index)


def _not_elected(at: tuple[str, int], error_code: ErrorCode, message: str | None) -> ElectionResult:
    return ElectionResult(
        topic=at[0], partition=at[1], error_code=error_code, error_message=message
    )


def _refused(proposal: IsrProposal, error_code: ErrorCode) -> IsrResult:
    return IsrResult(
        topic_id=proposal.topic_id, partition=proposal.partition, error_code=error_code
    )
