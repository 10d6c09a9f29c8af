"""What one replica remembers, whatever its role, and the invariants over it."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from quorumlog.broker.partitions.core.divergence import EpochHistory
from quorumlog.broker.partitions.core.effects import Effect
from quorumlog.broker.partitions.core.roles import LEGAL_CHANGES, Leader, Role, Unassigned
from quorumlog.invariants import require
from quorumlog.metadata_quorum.image import BrokerImage
from quorumlog.wire.codec.identifiers import NO_EPOCH, NO_LEADER, BrokerId, Epoch, Offset

NO_EFFECTS: Final[Sequence[Effect]] = ()
_NOBODY: Final[frozenset[BrokerId]] = frozenset()


class Marks(NamedTuple):
    """What the invariants compare before and after a step."""

    leader_epoch: Epoch
    partition_epoch: Epoch
    log_end_offset: Offset
    high_watermark: Offset
    maximal_isr: frozenset[BrokerId]


class PartitionState:
    """The state of one replica of one partition.

    Invariants (`check_invariants`, after every step and before any effect is performed):
      1. Epochs never decrease. Offsets decrease only by a truncation, never on a leader.
      2. kept_log_start_offset <= log_start_offset <= high_watermark <= log_end_offset.
      3. A leader is in its isr; isr <= maximal_isr <= replicas.
      4. When a leader raises high_watermark, all of maximal_isr holds what is below it.
      5. Who joins maximal_isr holds all below high_watermark and below the epoch's start.
      6. high_watermark does not rise on a leader whose isr is below min.insync.replicas.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        epochs: EpochHistory,
        *,
        replica_lag_time_max_ms: int,
        log_start_offset: Offset = Offset(0),
        log_end_offset: Offset = Offset(0),
        high_watermark: Offset = Offset(0),
    ) -> None:
        self.broker_id: Final = broker_id
        self.epochs: Final = epochs
        self.replica_lag_time_max_ms: Final = replica_lag_time_max_ms
        self.role: Role = Unassigned()
        self.leader_id = NO_LEADER
        self.leader_epoch = self.partition_epoch = NO_EPOCH
        self.min_insync_replicas = 1
        self.brokers: Mapping[BrokerId, BrokerImage] = {}
        self.log_start_offset, self.log_end_offset = log_start_offset, log_end_offset
        self.kept_log_start_offset = log_start_offset  # that of a log opened now
        # A checkpoint may be ahead of a log that lost its tail, or behind one that lost its head.
        self.high_watermark = max(min(high_watermark, log_end_offset), log_start_offset)

    @property
    def is_leader(self) -> bool:
        """Whether this replica leads."""
        return isinstance(self.role, Leader)

    @property
    def has_followers(self) -> bool:
        """Whether this replica leads others."""
        return isinstance(self.role, Leader) and bool(self.role.followers)

    def _become(self, role: Role) -> None:
        """Change the role: the only writer of `self.role`."""
        change = f"{type(self.role).__name__} -> {type(role).__name__}"
        require(type(role) in LEGAL_CHANGES[type(self.role)], f"legal change: {change}")
        self.role = role

    def _handle_log_start_kept(self, log_start_offset: Offset) -> None:
        """Take note, unless the log was cut below it meanwhile."""
        kept = min(log_start_offset, self.log_start_offset)
        self.kept_log_start_offset = max(self.kept_log_start_offset, kept)

    def _marks(self) -> Marks:
        role = self.role
        maximal_isr = role.maximal_isr if isinstance(role, Leader) else _NOBODY
        return Marks(
            self.leader_epoch,
            self.partition_epoch,
            self.log_end_offset,
            self.high_watermark,
            maximal_isr,
        )

    def check_invariants(self, before: Marks, *, truncates: bool = False) -> None:
        """Raise InvariantViolation with the number of the rule that does not hold."""
        leads = isinstance(self.role, Leader)
        if not (
            before.leader_epoch <= self.leader_epoch
            and before.partition_epoch <= self.partition_epoch
            and (
                (truncates and not leads)
                or (
                    before.log_end_offset <= self.log_end_offset
                    and before.high_watermark <= self.high_watermark
                )
            )
        ):
            require(False, f"1: epochs and offsets never decrease ({before} {self._marks()})")
        if not (
            self.kept_log_start_offset
            <= self.log_start_offset
            <= self.high_watermark
            <= self.log_end_offset
        ):
            require(False, "2: kept log start <= log start <= high watermark <= log end")
        if isinstance(self.role, Leader):
            self._check_leader(self.role, before)

    def _check_leader(self, role: Leader, before: Marks) -> None:
        isr, maximal_isr, followers = role.isr, role.maximal_isr, role.followers
        if not (self.broker_id in isr and isr <= maximal_isr):
            require(False, "3: leader in isr <= maximal_isr")
        high_watermark = self.high_watermark
        rose = high_watermark > before.high_watermark
        joined = self.leader_epoch == before.leader_epoch and maximal_isr != before.maximal_isr
        floor = max(high_watermark, role.epoch_start)
        for member in maximal_isr:
            if member == self.broker_id:
                continue
            progress = followers.get(member)
            if progress is None:
                require(False, "3: maximal_isr <= replicas")
            elif rose and progress.log_end_offset < high_watermark:
                require(False, "4: the maximal ISR holds what is committed")
            elif (
                joined
                and member not in before.maximal_isr
                and self.partition_epoch == before.partition_epoch
                and progress.log_end_offset < floor
            ):
                require(False, "5: who joins the ISR holds what is committed")
        if rose and len(isr) < self.min_insync_replicas:
            require(False, "6: nothing is committed below min.insync.replicas")
