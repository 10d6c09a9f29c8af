"""Elections: pre-votes, votes, and when a voter stands.

A voter refuses a second vote in an epoch, and a candidate whose log lacks records. A follower with
a live leader refuses every pre-vote. Sources: KIP-595 (Vote), KIP-996 (pre-vote); Raft 5.2, 5.4.1.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.leadership import Leadership
from quorumlog.metadata_quorum.core.messages import NOBODY, VoteRequest, VoteResponse
from quorumlog.metadata_quorum.core.quorum_state import QuorumState
from quorumlog.metadata_quorum.core.roles import (
    Ballot,
    Candidate,
    Follower,
    Leader,
    Prospective,
    Role,
    Unattached,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch


@dataclass(eq=False)
class Elections:
    """The rules of elections. A candidate that wins hands over to `Leadership`."""

    _state: QuorumState
    _leadership: Leadership

    # --- vote requests from peers ---

    def handle_vote_request(self, request_id: int, request: VoteRequest) -> None:
        """Answer a vote or a pre-vote; a granted vote is durable before the response leaves."""
        state = self._state
        error_code = self._refusal(request)
        is_granted = False
        if error_code is ErrorCode.NONE:
            if request.pre_vote:
                # DEVIATION: Kafka's voters adopt a newer epoch from a pre-vote, too.
                # docs/decisions/0004-quorum-protocol.md
                is_granted = self._would_vote(state.role, request)
            else:
                if request.replica_epoch > state.leader_epoch:
                    state.become_unattached(request.replica_epoch)
                is_granted = self._vote(state.role, request)
        response = VoteResponse(
            error_code=error_code,
            leader_id=state.leader_id,
            leader_epoch=state.leader_epoch,
            vote_granted=is_granted,
            leader_address=state.leader_address,
            write_ms=state.timeouts.write_ms,
        )
        state.emit(effects.SendResponse(request_id=request_id, response=response))
        if error_code is ErrorCode.NONE and request.pre_vote and not is_granted:
            self._maybe_ask_again(state.role, request.replica_id)

    def _refusal(self, request: VoteRequest) -> ErrorCode:
        state = self._state
        is_other_directory = request.voter_directory_id not in {None, state.directory_id}
        if request.voter_id != state.node_id or is_other_directory:
            return ErrorCode.INVALID_VOTER_KEY
        if state.kraft_version > 0 and request.replica_directory_id is None:
            # Its release counts the configured voters, and ignores those in the log.
            return ErrorCode.INVALID_VOTER_KEY
        knows_both = {state.node_id, request.replica_id} <= {*state.voters}
        is_named = request.voter_directory_id is not None
        if state.kraft_version == 0 and not knows_both and not is_named:
            # DEVIATION: Kafka's voters also answer unknown nodes at kraft.version 0.
            # docs/decisions/0004-quorum-protocol.md
            return ErrorCode.INCONSISTENT_VOTER_SET
        newest_log = request.replica_epoch - (not request.pre_vote)
        is_possible = (
            0 <= request.last_offset_epoch <= newest_log
            and request.last_offset >= 0
            and state.is_within_reach(request.replica_epoch)
        )
        if not is_possible or request.replica_id == state.node_id:
            return ErrorCode.INVALID_REQUEST
        if request.replica_epoch < state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.NONE

    def _would_vote(self, role: Role, request: VoteRequest) -> bool:
        """Decide on a pre-vote. A granted one has one consequence: the sender may stand (KIP-996).

        The sender's epoch may be newer than ours; we do not adopt it. If the sender wins the
        pre-vote, its candidacy brings a newer epoch; if it loses, its response to BeginQuorumEpoch
        brings its epoch to the leader.

        A follower that has fetched from its leader refuses, so that a voter that was cut off does
        not depose the leader. A follower whose leader has resigned, or whose leader's process died,
        does not refuse for an earlier fetch. That is safe on a false alarm, too: a pre-vote changes
        no epoch and no vote, and only real votes decide the election that may follow.
        """
        match role:
            case Leader():
                return False
            case _ if not self._may_vote(request):
                return False
            case Follower(has_fetched=True, is_leader_gone=False):
                return False
            case _:
                return self._is_up_to_date(request)

    def _vote(self, role: Role, request: VoteRequest) -> bool:
        """Decide on a vote (Raft 5.2, 5.4.1)."""
        state = self._state
        if state.leader_id != NOBODY or not self._may_vote(request):
            return False
        candidate = request.replica_id, request.replica_directory_id
        match role:
            case Unattached() | Prospective() if state.voted_id != NOBODY:
                is_same_directory = state.voted_directory_id in {None, candidate[1]}
                return state.voted_id == candidate[0] and is_same_directory
            case Unattached() | Prospective() if not self._is_up_to_date(request):
                return False
            case Unattached():
                deadline_ms = state.new_election_deadline_ms() if state.members.may_stand else None
                voter = Unattached(election_deadline_ms=deadline_ms)
                state.become(voter, voted_id=candidate[0], voted_directory_id=candidate[1])
                return True
            case Prospective():
                role.election_deadline_ms = state.new_election_deadline_ms()
                state.set_election(state.leader_epoch, state.leader_id, *candidate)
                return True
            case _:
                return False

    def _may_vote(self, request: VoteRequest) -> bool:
        return self._state.may_vote(is_named=request.voter_directory_id is not None)

    def _is_up_to_date(self, request: VoteRequest) -> bool:
        """Whether the sender's log is not behind ours: epoch first, then offset (Raft 5.4.1)."""
        ours = self._state.log.last_epoch, self._state.log.end_offset
        return (request.last_offset_epoch, request.last_offset) >= ours

    def _maybe_ask_again(self, role: Role, voter: BrokerId) -> None:
        """Repeat our pre-vote request to a voter whose pre-vote we refuse: it lost the leader, too.

        When a leader's process dies, the first voter to notice may send its request before the
        second has noticed, and be refused; the second may be behind, and be refused too. A ballot
        repeats its request once for each voter: two that may not vote for each other must not
        repeat it for ever.
        """
        # DEVIATION: Kafka waits out the election timeout.
        # docs/decisions/0003-elections.md
        if isinstance(role, Prospective) and voter in role.ballot.refused - role.ballot.asked_again:
            role.ballot.asked_again.add(voter)
            role.ballot.refused.discard(voter)
            self._ask(role, voter)

    # --- vote requests to peers ---

    def _stand(self) -> None:
        """Become prospective, and request pre-votes."""
        deadline_ms = self._state.new_election_deadline_ms()
        ballot = self.new_ballot()
        role = Prospective(election_deadline_ms=deadline_ms, ballot=ballot)
        self._state.become(role)
        self.ask_all(role)

    def _become_candidate(self, pre_votes: set[BrokerId]) -> None:
        """Vote for ourselves in the next epoch, durably, and request votes.

        The deadline allows for the disks of the voters that granted pre-votes: their responses
        contain the duration of a write.
        """
        state = self._state
        deadline_ms = state.new_election_deadline_ms(sorted(pre_votes))
        role = Candidate(election_deadline_ms=deadline_ms, ballot=self.new_ballot())
        newer = Epoch(state.leader_epoch + 1)
        state.become(role, leader_epoch=newer, voted_id=state.node_id)
        self.ask_all(role)

    def new_ballot(self) -> Ballot:
        """Return a ballot: with this node's vote if it is a voter, otherwise without votes."""
        state = self._state
        return Ballot(granted={state.node_id} if state.is_voter else set())

    def ask_all(self, role: Prospective | Candidate) -> None:
        """Request a pre-vote, or a vote, from every other voter."""
        for voter in self._state.other_voters:
            self._ask(role, voter)

    def _ask(self, role: Prospective | Candidate, voter: BrokerId) -> None:
        state = self._state
        request = VoteRequest(
            replica_id=state.node_id,
            replica_epoch=state.leader_epoch,
            voter_id=voter,
            last_offset_epoch=state.log.last_epoch,
            last_offset=state.log.end_offset,
            pre_vote=isinstance(role, Prospective),
            replica_directory_id=state.directory_id,
            voter_directory_id=state.members.directory_of(voter),
        )
        role.ballot.asked[state.send(voter, request)] = voter

    def _ask_where_due(self, role: Prospective | Candidate) -> None:
        due_ms, now_ms = role.ballot.ask_again_ms, self._state.now_ms
        for voter in [voter for voter, at_ms in due_ms.items() if at_ms <= now_ms]:
            del due_ms[voter]
            self._ask(role, voter)

    def handle_vote_response(self, event: events.ResponseReceived, response: VoteResponse) -> None:
        """Count a response to a request of this ballot; ignore responses to earlier ballots."""
        state = self._state
        state.timeouts.note_peer(event.source, response.write_ms)
        if response.leader_epoch >= state.leader_epoch:
            if not state.learn(response.leader_epoch, response.leader_id, response.leader_address):
                return
        elif not isinstance(state.role, Prospective):
            return  # only pre-votes get responses from an older epoch
        role = state.role
        if isinstance(role, Prospective | Candidate) and event.request_id in role.ballot.asked:
            is_granted = response.error_code is ErrorCode.NONE and response.vote_granted
            voters = role.ballot.granted if is_granted else role.ballot.refused
            voters.add(role.ballot.asked.pop(event.request_id))

    def handle_request_failed(self, request_id: int) -> None:
        """Schedule the request again, if it was one for a vote."""
        role = self._state.role
        if isinstance(role, Prospective | Candidate) and request_id in role.ballot.asked:
            voter = role.ballot.asked.pop(request_id)
            role.ballot.ask_again_ms[voter] = self._state.retry_ms()

    # --- deadlines, and the count ---

    def maybe_stand(self, role: Unattached | Follower) -> None:
        """Stand when the wait for a leader is over; only with a durable log.

        A vote request contains the log end offset, and the voter keeps its vote if this node
        crashes and repeats the request in the same epoch. The log must not be shorter then.
        """
        # DEVIATION: Kafka flushes within every append. Here an election waits for the flush.
        # docs/decisions/0002-durable-votes.md
        deadline_ms = self._stand_deadline_ms(role)
        if (
            deadline_ms is not None
            and deadline_ms <= self._state.now_ms
            and self._state.log.is_durable
        ):
            self._stand()

    def _stand_deadline_ms(self, role: Unattached | Follower) -> int | None:
        """Return when to stand; None: never, in this role."""
        if not self._state.takes_part or not self._state.has_newer_epoch:
            return None
        match role:
            case Unattached(election_deadline_ms=deadline_ms):
                return deadline_ms
            case Follower(notice_deadline_ms=int(notice_ms), fetch_deadline_ms=fetch_ms):
                return min(notice_ms, fetch_ms)
            case Follower(fetch_deadline_ms=fetch_ms):
                return fetch_ms

    def count_pre_votes(self, role: Prospective) -> None:
        """Become a candidate with a majority; give up if it is out of reach, or at the deadline."""
        state, ballot = self._state, role.ballot
        is_lost = len(ballot.refused) >= state.majority or role.election_deadline_ms <= state.now_ms
        if len(ballot.granted) >= state.majority and state.has_newer_epoch:
            self._become_candidate(ballot.granted)
        elif is_lost and state.leader_id != NOBODY:
            state.become_follower(state.leader_epoch, state.leader_id)
        elif is_lost:
            state.become_unattached(state.leader_epoch)
        else:
            self._ask_where_due(role)

    def count_votes(self, role: Candidate) -> None:
        """Lead with the votes of a majority; request pre-votes again at the deadline."""
        if len(role.ballot.granted) >= self._state.majority:
            self._leadership.begin(tuple(sorted(role.ballot.granted)))
        elif role.election_deadline_ms <= self._state.now_ms:
            self._stand()
        else:
            self._ask_where_due(role)

    def deadlines(self, role: Role) -> Iterator[int]:
        """Yield the times at which these rules are due, in ms."""
        match role:
            case Unattached() | Follower():
                stand_ms = self._stand_deadline_ms(role)
                if stand_ms is not None and self._state.log.is_durable:
                    yield stand_ms
            case (
                Prospective(election_deadline_ms=deadline_ms, ballot=ballot)
                | Candidate(election_deadline_ms=deadline_ms, ballot=ballot)
            ):
                yield deadline_ms
                yield from ballot.ask_again_ms.values()
            case _:
                pass
