"""The checks of one quorum node's state after every step: the numbered rules of `Quorum`.

A node that breaks a rule stops before any effect leaves: to continue would do more harm.
"""

from typing import assert_never

from quorumlog.invariants import require
from quorumlog.metadata_quorum.core.leadership import Leadership
from quorumlog.metadata_quorum.core.messages import NOBODY
from quorumlog.metadata_quorum.core.quorum_state import QuorumState
from quorumlog.metadata_quorum.core.roles import (
    OBSERVER_ROLES,
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Unattached,
)

Before = tuple[int, int, int, int]
"""The state before the step: leader epoch, high watermark, leader and vote."""


def check_quorum(state: QuorumState, leadership: Leadership, before: Before) -> None:
    """Raise InvariantViolation with the number of the broken rule."""
    log = state.log
    epoch, high_watermark, leader_id, voted_id = before
    is_rising = epoch <= state.leader_epoch and high_watermark <= log.high_watermark
    require(is_rising, "1: the epoch and the high watermark never fall")
    ends = max(log.high_watermark, log.flushed_offset)
    require(ends <= log.end_offset, "2: committed and durable records are in the log")
    is_held = log.start_offset <= log.high_watermark
    require(is_held, "12: the records below the log's start are committed")
    if epoch == state.leader_epoch:
        require(leader_id in {NOBODY, state.leader_id}, "5: one leader in an epoch")
        require(voted_id in {NOBODY, state.voted_id}, "5: one vote in an epoch")
    require(log.last_epoch <= state.leader_epoch, "9: no record is of a newer epoch")
    if not state.takes_part:
        was_removed = state.kraft_version > 0 and isinstance(state.role, Leader | Resigned)
        is_observing = isinstance(state.role, OBSERVER_ROLES) or was_removed
        # A controller that became a mere broker keeps its vote as a former voter.
        is_old_vote = (state.leader_epoch, state.voted_id) == state.restored_vote
        may_have_vote = is_old_vote or state.directory_id is not None
        gives_no_vote = state.voted_id == NOBODY or may_have_vote
        require(is_observing and gives_no_vote, "11: an observer only follows")
    _check_role(state, leadership)


def _check_role(state: QuorumState, leadership: Leadership) -> None:
    role = state.role
    says_durable = False  # whether its messages claim a durable log
    match role:
        case Leader():
            leadership.check_invariants(role)
        case Resigned():
            require(state.leader_id == state.node_id, "4: it led this epoch")
        case Follower(fetch_id=fetch_id):
            is_led = state.leader_id not in {NOBODY, state.node_id}
            require(is_led, "4: a follower has another leader")
            says_durable = state.members.flushes_log and fetch_id is not None
        case Candidate():
            is_free = state.voted_id == state.node_id and state.leader_id == NOBODY
            require(is_free, "4: a candidate has its own vote and no leader")
            says_durable = True
        case Prospective():
            require(state.leader_id != state.node_id, "4: it does not lead")
            says_durable = True
        case Unattached(fetch_id=fetch_id):
            require(state.leader_id == NOBODY, "4: an unattached node has no leader")
            says_durable = state.members.flushes_log and fetch_id is not None
        case _:
            assert_never(role)
    is_true = state.log.is_durable or not says_durable
    require(is_true, "10: a voter that fetches or stands has a durable log")
