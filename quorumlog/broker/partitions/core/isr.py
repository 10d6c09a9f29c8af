"""The leader's state of its followers, and the ISR that it has proposed to the controller.

Sources: KIP-497 (maximal ISR), KIP-903 and KAFKA-15221 (broker epochs), KAFKA-7152 (an idle
follower stays), KAFKA-7128 (which followers may join).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from quorumlog.metadata_quorum.image import BrokerImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import UNKNOWN_OFFSET, BrokerId, Epoch, Offset


@dataclass(slots=True)
class FollowerProgress:
    """The fetch state of one follower, as the leader last received it in this leader epoch."""

    log_end_offset: Offset = UNKNOWN_OFFSET  # until its first fetch
    log_start_offset: Offset = UNKNOWN_OFFSET  # until a fetch carries it
    broker_epoch: int = -1  # of its last fetch
    caught_up_ms: int | None = None  # when it last held the whole log of the leader
    fetched_ms: int | None = None  # its last fetch
    leader_end_then: Offset = UNKNOWN_OFFSET  # the leader's log end at its last fetch

    def fetched(self, now_ms: int, offset: Offset, broker_epoch: int, leader_end: Offset) -> None:
        """Record a valid fetch. Its offset may be lower than before, after a wiped disk."""
        if offset >= leader_end:
            self.caught_up_ms = now_ms
        elif self.fetched_ms is not None and offset >= self.leader_end_then:
            # It now holds the log as of its last fetch: at that time it was caught up.
            self.caught_up_ms = max(self.caught_up_ms or self.fetched_ms, self.fetched_ms)
        self.log_end_offset, self.broker_epoch = offset, broker_epoch
        self.fetched_ms, self.leader_end_then = now_ms, leader_end

    def is_caught_up(self, now_ms: int, leader_end: Offset, lag_time_max_ms: int) -> bool:
        """Whether the follower holds the whole log, or did at most `lag_time_max_ms` ago."""
        if self.log_end_offset == leader_end:
            return True
        return self.caught_up_ms is not None and now_ms - self.caught_up_ms <= lag_time_max_ms


@dataclass(slots=True, kw_only=True)
class PendingIsr:
    """A proposed ISR that the controller has neither granted nor refused so far.

    The leader repeats it unchanged, with the broker epochs of that time: the controller then
    refuses a member whose process has been replaced.
    """

    partition_epoch: Epoch  # the leader's, at the proposal
    members: tuple[tuple[BrokerId, int], ...]
    is_in_flight: bool = True
    awaits_metadata: bool = False  # the controller has a newer state: do not propose it again


class ProposalOutcome(Enum):
    """The outcome of a proposal, by the response to AlterPartition."""

    COMMITTED = "the controller granted the proposal"
    REFUSED = "the controller refused the proposal for good"
    AWAIT_METADATA = "the controller has newer metadata: wait for the metadata log"
    ASK_AGAIN = "the outcome is unknown"


_REFUSED: Final = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
_AWAIT_METADATA: Final = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.NEW_LEADER_ELECTED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


def outcome_of(error_code: ErrorCode) -> ProposalOutcome:
    """Return the outcome by the controller's error code; an unlisted code leaves it open."""
    if error_code is ErrorCode.NONE:
        return ProposalOutcome.COMMITTED
    if error_code in _REFUSED:
        return ProposalOutcome.REFUSED
    return (
        ProposalOutcome.AWAIT_METADATA
        if error_code in _AWAIT_METADATA
        else ProposalOutcome.ASK_AGAIN
    )


def is_eligible(
    brokers: Mapping[BrokerId, BrokerImage], replica: BrokerId, broker_epoch: int
) -> bool:
    """Whether `replica` may join: alive, not shutting down, and not restarted (KIP-903).

    A restarted process may have lost records that its predecessor had fetched.
    """
    broker = brokers.get(replica)
    if broker is None or broker.fenced or broker.in_controlled_shutdown:
        return False
    return broker_epoch == broker.broker_epoch
