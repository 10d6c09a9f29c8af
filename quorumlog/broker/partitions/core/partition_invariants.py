"""The invariants of a replica, checked after every step, in production too."""

from dataclasses import dataclass
from typing import Final

from quorumlog.broker.partitions.core.partition_state import PartitionState
from quorumlog.broker.partitions.core.roles import Leader
from quorumlog.invariants import require
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset

_NOBODY: Final[frozenset[BrokerId]] = frozenset()


Marks = tuple[Epoch, Epoch, Offset, Offset, frozenset[BrokerId]]
"""The values that the invariants compare before and after a step: leader epoch, partition epoch,
log end, high watermark, maximal ISR."""


@dataclass(frozen=True, slots=True)
class PartitionInvariants:
    """Invariants, checked after every step, before the caller performs any effect.

    1. Epochs never decrease. Offsets decrease only by a truncation, never on a leader.
    2. kept_log_start_offset <= log_start_offset <= high_watermark <= log_end_offset.
    3. A leader is in its isr; isr <= maximal_isr <= replicas.
    4. When a leader raises high_watermark, all of maximal_isr holds the records below it.
    5. A replica that joins maximal_isr holds all below high_watermark and below the epoch's start.
    6. high_watermark does not rise on a leader whose isr is below min.insync.replicas.
    7. flushed_offset <= log_end_offset; if acknowledgements wait for flushes, high_watermark does
       not rise above flushed_offset on a leader.
    8. A member of the ISR or the ELR never truncates below its high_watermark.
    9. After a tick, a pending ISR proposal is in flight, or newer metadata is awaited.
    """

    _state: PartitionState

    def marks(self) -> Marks:
        """Return the values that `check` compares; call it before the step."""
        state = self._state
        role = state.role
        return (
            state.leader_epoch,
            state.partition_epoch,
            state.log_end_offset,
            state.high_watermark,
            role.maximal_isr if isinstance(role, Leader) else _NOBODY,
        )

    def check_ticked(self) -> None:
        """Raise InvariantViolation if a tick has not repeated a proposal of unknown outcome."""
        role = self._state.role
        pending = role.pending if isinstance(role, Leader) else None
        is_repeated = pending is None or pending.is_in_flight or pending.awaits_metadata
        require(is_repeated, "9: a tick repeats an ISR proposal")

    def check(self, before: Marks, *, truncates: bool = False, cuts: bool = False) -> None:
        """Raise InvariantViolation with the number of the violated rule.

        `truncates`: the log has been cut or begun anew; `cuts`: it has been cut.
        """
        state = self._state
        role = state.role
        high_watermark, log_end_offset = state.high_watermark, state.log_end_offset
        leader_epoch, partition_epoch, former_end, former_watermark, _ = before
        if not (
            leader_epoch <= state.leader_epoch
            and partition_epoch <= state.partition_epoch
            and (
                (former_end <= log_end_offset and former_watermark <= high_watermark)
                or (truncates and not isinstance(role, Leader))
            )
        ):
            require(False, f"1: epochs and offsets never decrease ({before} {self.marks()})")
        if not (
            state.kept_log_start_offset
            <= state.log_start_offset
            <= high_watermark
            <= log_end_offset
        ):
            require(False, "2: kept log start <= log start <= high watermark <= log end")
        if cuts and state.is_member and high_watermark < former_watermark:
            require(False, "8: a member's high watermark does not fall")
        if state.flushed_offset > log_end_offset:
            require(False, "7: flushed offset <= log end")
        if isinstance(role, Leader):
            self._check_leader(role, before)

    def _check_leader(self, role: Leader, before: Marks) -> None:
        state = self._state
        isr, maximal_isr, followers = role.isr, role.maximal_isr, role.followers
        if not (state.broker_id in isr and (isr is maximal_isr or isr <= maximal_isr)):
            require(False, "3: leader in isr <= maximal_isr")
        high_watermark = state.high_watermark
        leader_epoch, partition_epoch, _, former_watermark, former_isr = before
        rose = high_watermark > former_watermark
        is_new = maximal_isr is not former_isr or state.partition_epoch != partition_epoch
        if not (rose or is_new):
            return
        joined = is_new and state.leader_epoch == leader_epoch and maximal_isr != former_isr
        if is_new and not maximal_isr - {state.broker_id} <= followers.keys():
            require(False, "3: maximal_isr <= replicas")
        floor = max(high_watermark, role.epoch_start)
        for member, progress in followers.items():
            if progress.log_end_offset >= floor or member not in maximal_isr:
                continue
            if rose and progress.log_end_offset < high_watermark:
                require(False, "4: every member of the maximal ISR has all committed records")
            elif (
                joined
                and member not in former_isr
                and state.partition_epoch == partition_epoch
                and progress.log_end_offset < floor
            ):
                require(False, "5: a replica that joins the ISR has all committed records")
        if rose and len(isr) < state.min_insync_replicas:
            require(False, "6: the high watermark rises only with min.insync.replicas in sync")
        if rose and high_watermark > state.counted_offset:
            require(False, "7: high watermark <= counted offset of the leader")
