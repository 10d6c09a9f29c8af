"""Who leads a partition and who is in sync: elections, fencing, AlterPartition.

It refuses an ISR proposed on an older view, by another than the leader, or with a member that may
have lost records. Elections are clean: with ISR and ELR all dead, a partition stays leaderless.
Sources: KIP-497 (AlterPartition), KIP-903 (broker epochs in it), KIP-966 (ELR).
"""

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from typing import Final

from quorumlog.metadata_quorum.controller.brokers import active_brokers, broker_epoch_error
from quorumlog.metadata_quorum.controller.requests import AlterPartitions, Decision, IsrResults
from quorumlog.metadata_quorum.controller_client import IsrProposal, IsrResult
from quorumlog.metadata_quorum.image.model import PartitionImage
from quorumlog.metadata_quorum.image.records import PartitionChange
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId, Epoch, PartitionIndex, TopicId

MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """A partition with its place and the least number of in-sync replicas it is to have."""

    topic_id: TopicId
    index: PartitionIndex
    partition: PartitionImage
    min_isr: int


class PartitionDecisions:
    """Decides about partitions; mutates nothing."""

    def __init__(self, cluster: ClusterReplay, *, min_insync_replicas: int) -> None:
        self._cluster: Final = cluster
        self._min_insync_replicas: Final = min_insync_replicas

    def decide_departure(self, broker_id: BrokerId) -> list[PartitionChange]:
        """Take a broker out of every ISR and leadership: it is dead, fenced or about to stop."""
        active = active_brokers(self._cluster) - {broker_id}

        def without(partition: PartitionImage) -> tuple[BrokerId, ...]:
            return tuple(member for member in partition.isr if member != broker_id)

        return self._changes(
            lambda partition: broker_id in {partition.leader_id, *partition.isr}, without, active
        )

    def decide_elections(self, newly_active: Set[BrokerId]) -> list[PartitionChange]:
        """Elect where nobody leads, as if the brokers in `newly_active` were active too."""
        active = active_brokers(self._cluster) | newly_active
        return self._changes(
            lambda partition: partition.leader_id == NO_LEADER,
            lambda partition: partition.isr,
            active,
        )

    def decide_alter(self, request: AlterPartitions) -> Decision[IsrResults]:
        """Grant the ISRs that may be granted; say of each other one why not."""
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
        return self._located(name, proposal.topic_id, proposal.partition, partition)

    def _located(
        self, name: str, topic_id: TopicId, index: int, partition: PartitionImage
    ) -> Located:
        configured = self._cluster.configs(name).get(MIN_INSYNC_REPLICAS)
        least = self._min_insync_replicas if configured is None else int(configured)
        return Located(
            topic_id=topic_id,
            index=PartitionIndex(index),
            partition=partition,
            min_isr=min(least, len(partition.replicas)),
        )

    def _all(self) -> Iterator[Located]:
        for name in self._cluster.topic_names():
            topic_id = self._cluster.topic_id(name)
            if topic_id is None:
                continue
            for index, partition in enumerate(self._cluster.partitions(name)):
                yield self._located(name, topic_id, index, partition)

    def _changes(
        self,
        concerns: Callable[[PartitionImage], bool],
        target_isr: Callable[[PartitionImage], tuple[BrokerId, ...]],
        active: Set[BrokerId],
    ) -> list[PartitionChange]:
        found = (located for located in self._all() if concerns(located.partition))
        changes = (change_partition(one, target_isr(one.partition), active) for one in found)
        return [change for change in changes if change is not None]

    def _refusal(
        self, partition: PartitionImage, broker_id: BrokerId, proposal: IsrProposal
    ) -> ErrorCode:
        """Return why not, or NONE. The order is Kafka's: callers see which check fails first."""
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
        """Refuse who restarted since it was in sync: it may have lost records (KAFKA-14617)."""
        broker = self._cluster.brokers.get(broker_id)
        if broker is None or broker.fenced or broker.in_controlled_shutdown:
            return False
        return broker_epoch in {-1, broker.broker_epoch}

    def _grant(
        self, located: Located, proposal: IsrProposal
    ) -> tuple[PartitionChange | None, IsrResult]:
        isr = tuple(member for member, _ in proposal.new_isr)
        change = change_partition(located, isr, active_brokers(self._cluster))
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


def change_partition(
    located: Located, target_isr: tuple[BrokerId, ...], active: Set[BrokerId]
) -> PartitionChange | None:
    """Return the record that gives a partition `target_isr` and, if it can, an active leader.

    The leader stays while it is in the ISR, whose members are all active. Else the first replica,
    in order, of the ISR; else, when the ISR is empty, of the ELR. None: nothing changes.
    """
    partition = located.partition
    isr, elr = target_isr, _eligible(located, target_isr)
    leader = partition.leader_id
    if leader not in isr:
        pool = isr or elr
        leader = next((r for r in partition.replicas if r in pool and r in active), NO_LEADER)
        if not isr and leader != NO_LEADER:
            isr = (leader,)
            elr = _eligible(located, isr)
    if (leader, isr, elr) == (partition.leader_id, partition.isr, partition.elr):
        return None
    return PartitionChange(
        topic_id=located.topic_id,
        partition_id=located.index,
        isr=None if isr == partition.isr else isr,
        leader=None if leader == partition.leader_id else leader,
        elr=None if elr == partition.elr else elr,
    )


def _eligible(located: Located, isr: tuple[BrokerId, ...]) -> tuple[BrokerId, ...]:
    """Return who may lead beside the ISR: nothing is committed while it is too small (KIP-966).

    # DEVIATION: Kafka drops a member that restarted without a clean shutdown. A killed process
    # loses nothing that it had written, so ours stays:
    # docs/decisions/0006-eligible-leader-replicas-keep-who-was-killed.md
    """
    if len(isr) >= located.min_isr:
        return ()
    partition = located.partition
    held = {*partition.isr, *partition.elr} - {*isr}
    return tuple(replica for replica in partition.replicas if replica in held)


def _absence(is_repeated: bool) -> ErrorCode:
    return ErrorCode.INVALID_REQUEST if is_repeated else ErrorCode.UNKNOWN_TOPIC_ID


def _refused(proposal: IsrProposal, error_code: ErrorCode) -> IsrResult:
    return IsrResult(
        topic_id=proposal.topic_id, partition=proposal.partition, error_code=error_code
    )
