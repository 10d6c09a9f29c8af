"""The leader's view of its followers, and the ISR that it has proposed to the controller.

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
    """The leader's knowledge of one follower, in this leader epoch."""

    log_end_offset: Offset = UNKNOWN_OFFSET  # until it fetches
    log_start_offset: Offset = UNKNOWN_OFFSET  # until it says
    broker_epoch: int = -1  # of its last fetch
    caught_up_ms: int | None = None  # when it last held all that we had
    fetched_ms: int | None = None  # its last fetch
    leader_end_then: Offset = UNKNOWN_OFFSET  # our log end at its last fetch

    def fetched(self, now_ms: int, offset: Offset, broker_epoch: int, leader_end: Offset) -> None:
        """Note a valid fetch. Its offset may be lower than before: its disk was wiped."""
        if offset >= leader_end:
            self.caught_up_ms = now_ms
        elif self.fetched_ms is not None and offset >= self.leader_end_then:
            # It now holds what we had at its last fetch: it had caught up with that moment.
            self.caught_up_ms = max(self.caught_up_ms or self.fetched_ms, self.fetched_ms)
        self.log_end_offset, self.broker_epoch = offset, broker_epoch
        self.fetched_ms, self.leader_end_then = now_ms, leader_end

    def is_caught_up(self, now_ms: int, leader_end: Offset, lag_time_max_ms: int) -> bool:
        """Whether it holds all, however long ago it fetched, or did so a short while ago."""
        if self.log_end_offset == leader_end:
            return True
        return self.caught_up_ms is not None and now_ms - self.caught_up_ms <= lag_time_max_ms


@dataclass(slots=True, kw_only=True)
class PendingIsr:
    """A proposed ISR that is not yet known to be granted or refused.

    The leader repeats it word for word, with its members' epochs of that time, so that a member
    that a later process has replaced is refused.
    """

    partition_epoch: Epoch  # ours, when asking
    members: tuple[tuple[BrokerId, int], ...]
    is_in_flight: bool = True
    awaits_metadata: bool = False  # the controller knows a newer state: do not ask again


class ProposalOutcome(Enum):
    """What an answer to AlterPartition means for the proposal."""

    COMMITTED = "the controller granted it"
    REFUSED = "it was not granted and will not be"
    AWAIT_METADATA = "the controller knows something that we do not: the metadata log will tell"
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
    """Return the meaning of the controller's answer; an unlisted code leaves the outcome open."""
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
    """Whether `replica` may join: alive, staying, and the same process as fetched (KIP-903).

    A process that restarted may have lost what its former self had fetched.
    """
    broker = brokers.get(replica)
    if broker is None or broker.fenced or broker.in_controlled_shutdown:
        return False
    return broker_epoch == broker.broker_epoch
