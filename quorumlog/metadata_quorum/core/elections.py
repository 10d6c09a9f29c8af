"""Who may vote for whom, and when a voter stands: pre-votes, votes, and election timeouts.

It refuses a second vote in an epoch, a log that lacks records, and, as a follower that hears its
leader, every pre-vote. Sources: KIP-595 (Vote), KIP-996 (pre-vote); Raft 5.2, 5.4.1.
"""

from collections.abc import Iterator

from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.leadership import Leading
from quorumlog.metadata_quorum.core.messages import NOBODY, VoteRequest, VoteResponse
from quorumlog.metadata_quorum.core.roles import (
    Ballot,
    Candidate,
    Follower,
    Leader,
    Prospective,
    Unattached,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch


class Voting(Leading):
    """The rules of elections."""

    # --- being asked ---

    def _handle_vote_request(self, request_id: int, request: VoteRequest) -> None:
        error_code = self._vote_refusal(request)
        is_granted = False
        if error_code is ErrorCode.NONE:
            if request.pre_vote:
                # DEVIATION: Kafka's voters take over a newer epoch from a pre-vote, too.
                # docs/decisions/0034-an-epoch-is-believed-within-reach.md
                is_granted = self._would_vote(request)
            else:
                if request.replica_epoch > self.leader_epoch:
                    self._become_unattached(request.replica_epoch)
                is_granted = self._votes(request)
        response = VoteResponse(
            error_code=error_code,
            leader_id=self.leader_id,
            leader_epoch=self.leader_epoch,
            vote_granted=is_granted,
        )
        self._emit(effects.SendResponse(request_id=request_id, response=response))
        if error_code is ErrorCode.NONE and request.pre_vote and not is_granted:
            self._maybe_ask_again(request.replica_id)

    def _vote_refusal(self, request: VoteRequest) -> ErrorCode:
        if request.voter_id != self.node_id:
            return ErrorCode.INVALID_VOTER_KEY
        if not {self.node_id, request.replica_id} <= {*self.voters}:
            # DEVIATION: Kafka's voters may change, so it lets strangers vote. Ours may not:
            # docs/decisions/0011-the-quorum-speaks-http-and-cbor.md
            return ErrorCode.INCONSISTENT_VOTER_SET
        newest_log = request.replica_epoch - (not request.pre_vote)
        is_possible = (
            0 <= request.last_offset_epoch <= newest_log
            and request.last_offset >= 0
            and self._is_within_reach(request.replica_epoch)
        )
        if not is_possible or request.replica_id == self.node_id:
            return ErrorCode.INVALID_REQUEST
        if request.replica_epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.NONE

    def _would_vote(self, request: VoteRequest) -> bool:
        """Answer a pre-vote. Nothing follows from it but that the sender may stand: KIP-996.

        The sender's epoch may be newer than ours. It stays the sender's: if the sender wins the
        pre-vote, its candidacy brings a newer epoch; if it loses, the leader learns of its epoch
        from its answer to BeginQuorumEpoch.

        A follower that hears its leader refuses, so that a voter that was cut off does not depose
        it. One whose leader has resigned, or whose leader's process was seen dead, does not hear
        it, whatever it fetched before. That is safe even if it was wrong: a pre-vote changes no
        epoch and no vote, and the election that may follow is decided by real votes alone.
        """
        match self.role:
            case Leader():
                return False
            case _ if not self._takes_part:
                return False
            case Follower(has_fetched=True, is_leader_gone=False):
                return False
            case _:
                return self._is_up_to_date(request)

    def _votes(self, request: VoteRequest) -> bool:
        """Answer a vote; a new one is durable before the answer leaves (Raft 5.2, 5.4.1)."""
        if not isinstance(self.role, Unattached | Prospective) or self.leader_id != NOBODY:
            return False
        if not self._takes_part:
            return False
        if self.voted_id != NOBODY:
            return self.voted_id == request.replica_id
        if not self._is_up_to_date(request):
            return False
        if isinstance(self.role, Unattached):
            role = Unattached(election_deadline_ms=self._new_election_deadline_ms())
            self._become(role, voted_id=request.replica_id)
        else:
            self.role.election_deadline_ms = self._new_election_deadline_ms()
            self._set_election(self.leader_epoch, self.leader_id, request.replica_id)
        return True

    def _is_up_to_date(self, request: VoteRequest) -> bool:
        """Whether its log is not behind ours: epoch first, then offset (Raft 5.4.1)."""
        ours = self.last_epoch, self.log_end_offset
        return (request.last_offset_epoch, request.last_offset) >= ours

    def _maybe_ask_again(self, voter: BrokerId) -> None:
        """Ask again who has just asked in vain: it, too, has lost the leader by now.

        When a leader's process dies, the first voter to notice may ask before the second has
        noticed, and be refused; the second may be behind, and be refused too. At least one of the
        two logs is up to date, so this ends.
        """
        # DEVIATION: Kafka waits out the election timeout.
        # docs/decisions/0009-voters-that-lost-their-leader-help-each-other.md
        if isinstance(self.role, Prospective) and voter in self.role.ballot.refused:
            self.role.ballot.refused.discard(voter)
            self._ask(self.role.ballot, voter)

    # --- asking ---

    def _stand(self) -> None:
        """Ask for pre-votes."""
        deadline_ms = self._new_election_deadline_ms()
        ballot = Ballot(granted={self.node_id})
        self._become(Prospective(election_deadline_ms=deadline_ms, ballot=ballot))
        self._ask_all(ballot)

    def _become_candidate(self) -> None:
        """Vote for ourselves in the next epoch, durably, and ask for votes."""
        deadline_ms = self._new_election_deadline_ms()
        ballot = Ballot(granted={self.node_id})
        self._become(
            Candidate(election_deadline_ms=deadline_ms, ballot=ballot),
            leader_epoch=Epoch(self.leader_epoch + 1),
            voted_id=self.node_id,
        )
        self._ask_all(ballot)

    def _ask_all(self, ballot: Ballot) -> None:
        for voter in self._others:
            self._ask(ballot, voter)

    def _ask(self, ballot: Ballot, voter: BrokerId) -> None:
        request = VoteRequest(
            replica_id=self.node_id,
            replica_epoch=self.leader_epoch,
            voter_id=voter,
            last_offset_epoch=self.last_epoch,
            last_offset=self.log_end_offset,
            pre_vote=isinstance(self.role, Prospective),
        )
        ballot.asked[self._send(voter, request)] = voter

    def _ballot(self) -> Ballot | None:
        return self.role.ballot if isinstance(self.role, Prospective | Candidate) else None

    def _handle_vote_response(self, event: events.ResponseReceived, response: VoteResponse) -> None:
        """Count one answer of the ballot that asked; others are of an older one."""
        is_of_older_epoch = response.leader_epoch < self.leader_epoch
        if is_of_older_epoch and not isinstance(self.role, Prospective):
            return  # only a pre-vote is answered from an older epoch
        if not is_of_older_epoch and not self._learn(response.leader_epoch, response.leader_id):
            return
        ballot = self._ballot()
        if ballot is None or event.request_id not in ballot.asked:
            return
        voter = ballot.asked.pop(event.request_id)
        if response.error_code is ErrorCode.NONE and response.vote_granted:
            ballot.granted.add(voter)
        else:
            ballot.refused.add(voter)

    def _handle_vote_failed(self, request_id: int) -> None:
        ballot = self._ballot()
        if ballot is not None and request_id in ballot.asked:
            ballot.ask_again_ms[ballot.asked.pop(request_id)] = self._retry_ms()

    # --- time, and the count ---

    def _elect(self) -> None:
        """Do what is due in an election."""
        if self._should_stand():
            self._stand()
        if isinstance(self.role, Prospective):
            self._count_pre_votes(self.role)
        if isinstance(self.role, Candidate):
            self._count_votes(self.role)
        ballot = self._ballot()
        if ballot is not None:
            due = [voter for voter, at_ms in ballot.ask_again_ms.items() if at_ms <= self._now_ms]
            for voter in due:
                del ballot.ask_again_ms[voter]
                self._ask(ballot, voter)

    def _stand_deadline_ms(self) -> int | None:
        """When to stand; None: never, in this role."""
        if not self._takes_part or not self._has_newer_epoch:
            return None
        match self.role:
            case Unattached(election_deadline_ms=deadline_ms):
                return deadline_ms
            case Follower(notice_deadline_ms=int(notice_ms), fetch_deadline_ms=fetch_ms):
                return min(notice_ms, fetch_ms)
            case Follower(fetch_deadline_ms=fetch_ms):
                return fetch_ms
            case _:
                return None

    def _should_stand(self) -> bool:
        """Only with a durable log.

        A vote is asked for with the end of the log, and is kept by the voter if this node crashes
        and asks again in the same epoch. The log must not be shorter then.
        """
        # DEVIATION: Kafka flushes within every append. Here an election waits for the flush.
        # docs/decisions/0010-what-a-vote-or-a-fetch-claims-is-on-the-disk.md
        deadline_ms = self._stand_deadline_ms()
        return deadline_ms is not None and deadline_ms <= self._now_ms and self.is_log_durable

    def _count_pre_votes(self, role: Prospective) -> None:
        if len(role.ballot.granted) >= self._majority and self._has_newer_epoch:
            self._become_candidate()
        elif (
            len(role.ballot.refused) >= self._majority or role.election_deadline_ms <= self._now_ms
        ):
            if self.leader_id != NOBODY:
                self._become_follower(self.leader_epoch, self.leader_id)
            else:
                self._become_unattached(self.leader_epoch)

    def _count_votes(self, role: Candidate) -> None:
        if len(role.ballot.granted) >= self._majority:
            self._become_leader(tuple(sorted(role.ballot.granted)))
        elif role.election_deadline_ms <= self._now_ms:
            self._stand()

    def _deadlines(self) -> Iterator[int]:
        yield from super()._deadlines()
        stand_ms = self._stand_deadline_ms()
        if stand_ms is not None and self.is_log_durable:
            yield stand_ms
        if isinstance(self.role, Prospective | Candidate):
            yield self.role.election_deadline_ms
            yield from self.role.ballot.ask_again_ms.values()
