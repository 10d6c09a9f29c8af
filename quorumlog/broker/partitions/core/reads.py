"""The responses of a replica to clients and followers. They change no state."""

from dataclasses import dataclass
from typing import Final

from quorumlog.broker.partitions.core.data_path import NO_REPLICA, ReadEnd
from quorumlog.broker.partitions.core.deletions import TO_HIGH_WATERMARK
from quorumlog.broker.partitions.core.divergence import judge_fetch
from quorumlog.broker.partitions.core.effects import AnswerFetch
from quorumlog.broker.partitions.core.events import FollowerFetched
from quorumlog.broker.partitions.core.partition_state import PartitionState
from quorumlog.broker.partitions.core.roles import Leader
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_EPOCH, UNKNOWN_OFFSET, BrokerId, Epoch, Offset

_NONE: Final = ErrorCode.NONE  # an attribute of an enum costs a call
RECORDS: Final = AnswerFetch(error_code=ErrorCode.NONE)
"""The answer that most fetches get: always this object."""


@dataclass(frozen=True, slots=True)
class Reads:
    """Request checks. Sources: KIP-107 (deletions), 320 (epochs), 392 (racks), 966 (min ISR)."""

    _state: PartitionState

    def append_refusal(self, acks: int) -> ErrorCode:
        """Return the error of an append with these `acks`, or NONE if it is allowed."""
        role = self._state.role
        if not isinstance(role, Leader):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if acks == -1 and len(role.isr) < self._state.min_insync_replicas:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return _NONE

    def commit_outcome(self) -> ErrorCode:
        """Return the outcome of an acks=all produce below the high watermark."""
        role = self._state.role
        if not isinstance(role, Leader):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if len(role.maximal_isr) < self._state.min_insync_replicas:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return _NONE

    def is_sole_replica(self) -> bool:
        """Whether this replica leads and its high watermark depends on no follower."""
        role = self._state.role
        return isinstance(role, Leader) and len(role.maximal_isr) == 1

    def epoch_refusal(self, leader_epoch: Epoch, *, leader_only: bool = True) -> ErrorCode:
        """Return the error of a request in `leader_epoch`, or NONE; NO_EPOCH: any (KIP-320).

        Without `leader_only` a follower in that epoch serves as well.
        """
        state = self._state
        if leader_epoch > state.leader_epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if NO_EPOCH < leader_epoch < state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if leader_only and not isinstance(state.role, Leader):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE

    def judge_read(
        self,
        leader_epoch: Epoch,
        fetch_offset: Offset,
        last_fetched_epoch: Epoch,
        *,
        leader_only: bool = True,
    ) -> AnswerFetch:
        """Check a fetch of a consumer or of a follower."""
        refusal = self.epoch_refusal(leader_epoch, leader_only=leader_only)
        if refusal is not ErrorCode.NONE:
            return AnswerFetch(error_code=refusal)
        state = self._state
        error_code, diverging = judge_fetch(
            state.epochs,
            fetch_offset=fetch_offset,
            last_fetched_epoch=last_fetched_epoch,
            log_start_offset=state.log_start_offset,
            log_end_offset=state.log_end_offset,
        )
        if error_code is ErrorCode.NONE and diverging is None:
            return RECORDS
        if diverging is not None and not state.is_leader:
            # DEVIATION: a follower that is behind lacks newer epochs, so it reports no truncation
            # to consumers. docs/decisions/0019-fetch-sessions.md
            return AnswerFetch(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        return AnswerFetch(error_code=error_code, diverging=diverging)

    def read_end(self, end: ReadEnd) -> Offset:
        """Return the offset (exclusive) where a read to this end stops, on any replica.

        For LAST_STABLE it is the high watermark; `OpenTransactions` lowers it further.
        """
        state = self._state
        return state.log_end_offset if end is ReadEnd.LOG_END else state.high_watermark

    def preferred_replica(self, rack: str, fetch_offset: Offset) -> BrokerId:
        """Return the replica to read from in `rack`; NO_REPLICA: from this leader (KIP-392).

        The replica is in sync and holds the offset; of several, it has the largest log end.
        """
        state = self._state
        if not isinstance(state.role, Leader) or self._is_in_rack(state.broker_id, rack):
            return NO_REPLICA
        candidates = [
            (progress.log_end_offset, -replica)
            for replica, progress in state.role.followers.items()
            if replica in state.role.isr
            and self._is_in_rack(replica, rack)
            and progress.log_start_offset <= fetch_offset <= progress.log_end_offset
        ]
        return BrokerId(-max(candidates)[1]) if candidates else NO_REPLICA

    def is_in_sync(self, replica: BrokerId) -> bool:
        """Whether this broker leads, and its last committed ISR contains `replica`."""
        role = self._state.role
        return isinstance(role, Leader) and replica in role.isr

    def _is_in_rack(self, replica: BrokerId, rack: str) -> bool:
        broker = self._state.brokers.get(replica)
        return broker is not None and not broker.fenced and broker.rack == rack

    def judge_follower(self, event: FollowerFetched) -> AnswerFetch:
        """Check a follower's fetch by its epochs and its offset, in any role."""
        state = self._state
        if (  # as most: of the leader's epoch, and the follower holds all of its log
            event.leader_epoch == state.leader_epoch
            and event.fetch_offset == state.log_end_offset
            and event.last_fetched_epoch == state.epochs.latest_epoch
            and isinstance(state.role, Leader)
        ):
            return RECORDS
        return self.judge_read(event.leader_epoch, event.fetch_offset, event.last_fetched_epoch)

    def judge_deletion(self, offset: int, policy: ErrorCode) -> tuple[ErrorCode, Offset]:
        """Return whether records below `offset` may be deleted, and the resolved offset (KIP-107).

        -1 is the high watermark; `policy` is the refusal by the topic's settings, or NONE.
        """
        high_watermark = self._state.high_watermark
        if not isinstance(self._state.role, Leader):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, UNKNOWN_OFFSET
        if policy is not ErrorCode.NONE:
            return policy, UNKNOWN_OFFSET
        required = high_watermark if offset == TO_HIGH_WATERMARK else Offset(offset)
        if not 0 <= required <= high_watermark:
            return ErrorCode.OFFSET_OUT_OF_RANGE, UNKNOWN_OFFSET
        return ErrorCode.NONE, required

    def low_watermark(self) -> Offset:
        """Return the least durable log start of all live replicas; -1 until each has sent one."""
        return min(self._state.kept_log_start_offset, self.followers_low_watermark())

    def followers_low_watermark(self) -> Offset:
        """Return the least log start of the live followers; without followers the log end.

        A fenced broker does not count: it adopts our log start when it returns.
        """
        state = self._state
        low_watermark = state.log_end_offset
        if isinstance(state.role, Leader):
            for replica, progress in state.role.followers.items():
                broker = state.brokers.get(replica)
                if broker is not None and not broker.fenced:
                    low_watermark = min(low_watermark, progress.log_start_offset)
        return low_watermark
