"""Changes of the voter set, made by the leader (KIP-853).

A leader changes one voter at a time: then any two majorities, of the set before and of the set
after, have a voter in common. It refuses a change until a record of its own epoch is committed, and
while an earlier change is uncommitted: another leader may have made a change that this log lacks
(Raft 4.1, and the fix of its single-server changes of 2015). The sources are KIP-853 and KIP-1186.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from quorumlog.invariants import require, some
from quorumlog.metadata_quorum.core import effects
from quorumlog.metadata_quorum.core.messages import (
    AddVoterRequest,
    RemoveVoterRequest,
    UpdateVoterRequest,
    UpgradeKRaftVersionRequest,
    VoterChangeRequest,
)
from quorumlog.metadata_quorum.core.quorum_state import QuorumState
from quorumlog.metadata_quorum.core.roles import Leader, Progress, Role, VoterChange
from quorumlog.metadata_quorum.core.voter_sets import Voter, VoterSet
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import UNKNOWN_OFFSET, BrokerId, Offset

KRAFT_VERSION_MAX: Final = 1
CAUGHT_UP_WITHIN_MS: Final = 3_600_000  # Kafka: one hour since the last fetch


class Refusal(NamedTuple):
    """The reason to refuse a change; with NONE, the change is already in force."""

    error_code: ErrorCode
    message: str


@dataclass(eq=False)
class VoterChanges:
    """The rules of a leader that changes the voters.

    An allowed change is appended at once. Its response leaves when it is committed, or with an
    error after the request timeout: it may be committed later all the same.
    """

    _state: QuorumState

    # --- requests ---

    def handle_request(self, request_id: int, request: VoterChangeRequest) -> None:
        """Append a change, or refuse it."""
        state = self._state
        match state.role:
            case Leader() as role:
                decided = self._decide(role, request)
                if isinstance(decided, Refusal):
                    state.answer_voter_change(request_id, *decided)
                    return
                self._append(role, decided)
                self._answer_or_wait(role, request_id, request)
            case _:
                message = "this node does not lead the quorum"
                state.answer_voter_change(request_id, ErrorCode.NOT_LEADER_OR_FOLLOWER, message)

    def _answer_or_wait(self, role: Leader, request_id: int, request: VoterChangeRequest) -> None:
        state = self._state
        match request:
            case AddVoterRequest(ack_when_committed=False) | UpdateVoterRequest():
                state.answer_voter_change(request_id, ErrorCode.NONE, "")
            case _:
                timeout_ms = state.settings.controller_quorum_request_timeout_ms
                role.voter_change = VoterChange(
                    request_id=request_id,
                    end_offset=state.log.end_offset,
                    deadline_ms=state.now_ms + timeout_ms,
                )

    def _decide(self, role: Leader, request: VoterChangeRequest) -> VoterSet | Refusal:
        """Return the voter set to append, or the reason to append none."""
        refusal = self._epoch_refusal(request) or self._state_refusal(role, request)
        if refusal is not None:
            return refusal
        if isinstance(request, UpgradeKRaftVersionRequest):
            return self._decide_upgrade(role, request.kraft_version)
        match request:
            case AddVoterRequest(voter=voter):
                return self._decide_add(role, voter)
            case RemoveVoterRequest(voter_id=voter_id, directory_id=directory_id):
                return self._decide_remove(voter_id, directory_id)
            case UpdateVoterRequest(voter=voter):
                return self._decide_update(voter)

    def _epoch_refusal(self, request: VoterChangeRequest) -> Refusal | None:
        epoch = self._state.leader_epoch
        if not isinstance(request, UpdateVoterRequest):
            return None
        if request.current_leader_epoch < epoch:
            return Refusal(ErrorCode.FENCED_LEADER_EPOCH, f"the epoch is {epoch}")
        if request.current_leader_epoch > epoch:
            return Refusal(ErrorCode.UNKNOWN_LEADER_EPOCH, f"the epoch here is {epoch}")
        return None

    def _state_refusal(self, role: Leader, request: VoterChangeRequest) -> Refusal | None:
        """Return the reason why no change can be made now; another attempt may succeed."""
        if not self._has_committed_in_its_epoch(role):
            message = "the leader has not committed a record of its epoch yet: retry"
            return Refusal(ErrorCode.REQUEST_TIMED_OUT, message)
        if self._is_changing(role):
            message = "the previous voter change is not committed yet: retry"
            return Refusal(ErrorCode.REQUEST_TIMED_OUT, message)
        is_upgrade = isinstance(request, UpgradeKRaftVersionRequest)
        if self._state.kraft_version == 0 and not is_upgrade:
            message = "kraft.version is 0: controller.quorum.voters fixes the voters; upgrade it"
            return Refusal(ErrorCode.UNSUPPORTED_VERSION, message)
        return None

    def _has_committed_in_its_epoch(self, role: Leader) -> bool:
        return role.high_watermark != UNKNOWN_OFFSET

    def _is_changing(self, role: Leader) -> bool:
        return self._state.log.voter_sets.last_offset >= role.high_watermark

    def _decide_add(self, role: Leader, voter: Voter) -> VoterSet | Refusal:
        state = self._state
        if voter.voter_id < 0 or not voter.is_well_formed:
            message = f"voter {voter.voter_id} needs a directory id and an address as host:port"
            return Refusal(ErrorCode.INVALID_REQUEST, message)
        known = state.voter_set.get(voter.voter_id)
        if known is not None:
            message = f"node {known.voter_id} is a voter with directory {known.directory_id}"
            return Refusal(ErrorCode.DUPLICATE_VOTER, message)
        progress = role.observers.get(voter.voter_id)
        if progress is None or progress.directory_id != voter.directory_id:
            message = f"node {voter.voter_id} does not fetch with directory {voter.directory_id}"
            return Refusal(ErrorCode.REQUEST_TIMED_OUT, message)
        if not self._has_caught_up(progress):
            message = f"node {voter.voter_id} has not caught up with the leader"
            return Refusal(ErrorCode.REQUEST_TIMED_OUT, message)
        if not self._may_vote(progress):
            message = f"node {voter.voter_id} is new, and may not vote yet"
            return Refusal(ErrorCode.REQUEST_TIMED_OUT, message)
        return state.voter_set.with_voter(voter)

    def _has_caught_up(self, progress: Progress) -> bool:
        """Whether it has held our whole log at some time, and has fetched within the last hour."""
        if progress.caught_up_ms is None:
            return False
        last_ms = some(progress.last_fetch_ms, "a node that has caught up has fetched")
        return last_ms > self._state.now_ms - CAUGHT_UP_WITHIN_MS

    def _may_vote(self, progress: Progress) -> bool:
        """Whether the new voter may vote at once: the next election may need it for a majority."""
        # DEVIATION: Kafka's voters vote with any disk.
        # docs/decisions/0001-voter-changes.md
        return not progress.is_new

    def _decide_remove(self, voter_id: BrokerId, directory_id: str) -> VoterSet | Refusal:
        voters = self._state.voter_set
        if not voters.has_key(voter_id, directory_id):
            message = f"node {voter_id} with directory {directory_id} is not a voter"
            return Refusal(ErrorCode.VOTER_NOT_FOUND, message)
        if len(voters.voters) == 1:
            return Refusal(ErrorCode.INVALID_REQUEST, f"node {voter_id} is the only voter")
        return voters.without(voter_id)

    def _decide_update(self, voter: Voter) -> VoterSet | Refusal:
        voters = self._state.voter_set
        if not voter.is_well_formed:
            message = f"voter {voter.voter_id} needs an address as host:port"
            return Refusal(ErrorCode.INVALID_REQUEST, message)
        if not voters.has_key(voter.voter_id, voter.directory_id):
            message = f"node {voter.voter_id} with directory {voter.directory_id} is not a voter"
            return Refusal(ErrorCode.VOTER_NOT_FOUND, message)
        if voters.get(voter.voter_id) == voter:
            return Refusal(ErrorCode.NONE, "")
        return voters.with_voter(voter)

    def _decide_upgrade(self, role: Leader, kraft_version: int) -> VoterSet | Refusal:
        """Return the configured voters, each with the directory id of its fetches.

        Without the directory id of each, a voter with an emptied disk could vote as before.
        """
        state = self._state
        if kraft_version == state.kraft_version:
            return Refusal(ErrorCode.NONE, "")
        if kraft_version != KRAFT_VERSION_MAX:
            message = (
                f"kraft.version cannot be {kraft_version}: it is {state.kraft_version}, "
                f"the highest is {KRAFT_VERSION_MAX}, and it never falls"
            )
            return Refusal(ErrorCode.INVALID_UPDATE_VERSION, message)
        voters: list[Voter] = []
        for voter in state.configured.voters:
            directory_id = state.directory_id
            if voter.voter_id != state.node_id:
                directory_id = role.followers[voter.voter_id].directory_id
            known = replace(voter, directory_id=directory_id or "")
            if not known.is_well_formed:
                message = f"voter {voter.voter_id} has not sent its directory or address yet: retry"
                return Refusal(ErrorCode.REQUEST_TIMED_OUT, message)
            voters.append(known)
        return VoterSet(tuple(voters))

    # --- the log ---

    def begin_epoch(self, role: Leader) -> None:
        """Append a voter set with this leader's address, if that has changed."""
        state = self._state
        known = state.voter_set.get(state.node_id)
        if state.kraft_version and known is not None and state.address not in {"", known.address}:
            self._append(role, state.voter_set.with_voter(replace(known, address=state.address)))

    def _append(self, role: Leader, voters: VoterSet) -> None:
        """Append a voter set: it is in force from now on. The first set brings kraft.version 1."""
        state, base_offset = self._state, self._state.log.end_offset
        is_first = state.kraft_version == 0
        append = effects.AppendVoters(
            leader_epoch=state.leader_epoch,
            base_offset=base_offset,
            voters=voters,
            sets_kraft_version=is_first,
        )
        state.emit(append)
        offset = Offset(base_offset + is_first)
        state.log.append(Offset(offset + 1), voter_sets=((offset, voters),))
        state.follow_voters()
        self._follow_voters(role)

    def _follow_voters(self, role: Leader) -> None:
        """Move progress between `observers` and `followers` after a change of the voters.

        A new voter keeps its observer's progress: its log was durable. Each follower was a voter
        before, or has fetched with its voter's directory id.
        """
        state = self._state
        if not role.followers:  # it was the only voter: check-quorum starts now
            role.check_quorum_deadline_ms = state.new_check_quorum_deadline_ms()
        known = role.observers | role.followers
        role.followers = {voter: known.pop(voter) for voter in state.other_voters}
        role.observers = known
        role.fetched_voters &= role.followers.keys()

    # --- due actions ---

    def handle_upgrade_decided(self, role: Role) -> None:
        """Record the decision to raise kraft.version; `maybe_upgrade` carries it out."""
        if isinstance(role, Leader):  # else the next controller decides the same
            role.is_upgrade_decided = True

    def maybe_upgrade(self, role: Leader) -> None:
        """Raise kraft.version, if that is decided, as soon as a request for it would succeed."""
        if not role.is_upgrade_decided or self._state.kraft_version > 0:
            return
        decided = self._decide(role, UpgradeKRaftVersionRequest(kraft_version=KRAFT_VERSION_MAX))
        # Refused: a voter has yet to fetch, or nothing is committed in this epoch.
        if isinstance(decided, VoterSet):
            self._append(role, decided)

    def maybe_answer(self, role: Leader) -> None:
        """Answer a change that is committed, or has reached its deadline."""
        state, change = self._state, role.voter_change
        if change is None:
            return
        if change.end_offset <= role.high_watermark:
            role.voter_change = None
            state.answer_voter_change(change.request_id, ErrorCode.NONE, "")
        elif change.deadline_ms <= state.now_ms:
            role.voter_change = None
            message = "the change is not committed yet: it may still be made"
            state.answer_voter_change(change.request_id, ErrorCode.REQUEST_TIMED_OUT, message)

    def is_removed(self, role: Leader) -> bool:
        """Whether this leader has removed itself from the voters, and the removal is committed."""
        return not self._state.is_voter and not self._is_changing(role)

    def deadlines(self, role: Leader) -> Iterator[int]:
        """Yield the deadline of the pending change, in ms."""
        if role.voter_change is not None:
            yield role.voter_change.deadline_ms

    def check_invariants(self, role: Leader) -> None:
        """Raise InvariantViolation with the number of the broken rule (see `Quorum`)."""
        state = self._state
        history = state.log.voter_sets.history
        uncommitted_from = max(role.high_watermark, role.epoch_start_offset + 2)
        changed = [offset for offset, _ in history if offset >= uncommitted_from]
        require(len(changed) <= 1, "13: one change of the voters at a time")
        if len(history) > 1:
            (_, before), (_, after) = history[-2:]
            keys = {(one.voter_id, one.directory_id) for one in before.voters} ^ {
                (one.voter_id, one.directory_id) for one in after.voters
            }
            require(len(keys) <= 1, "13: a change is of one voter at most")
        require(
            state.is_voter or not self.is_removed(role), "14: it was removed, and has to resign"
        )
