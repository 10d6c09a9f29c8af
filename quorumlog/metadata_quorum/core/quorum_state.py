"""The state of one quorum node: its role, its epoch and vote, its log in outline.

It refuses any change of role that the tables in `roles` do not list. The voter set of the last
Voters record in the log is in force from its append on; without such a record (kraft.version 0),
the configured voters are. Sources: Kafka's `QuorumState`; KIP-853.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, Final

from quorumlog.invariants import require
from quorumlog.metadata_quorum.core import effects
from quorumlog.metadata_quorum.core.effects import Effect
from quorumlog.metadata_quorum.core.log_outline import LogOutline
from quorumlog.metadata_quorum.core.messages import (
    EPOCH_MAX,
    EPOCH_STEP_MAX,
    NOBODY,
    FetchResponse,
    LeaderResponse,
    Request,
    VoterChangeResponse,
)
from quorumlog.metadata_quorum.core.roles import (
    CHANGES_TO_A_NEWER_EPOCH,
    CHANGES_WITHIN_AN_EPOCH,
    OBSERVER_ROLES,
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Role,
    Unattached,
)
from quorumlog.metadata_quorum.core.settings import QuorumSettings
from quorumlog.metadata_quorum.core.timeouts import Timeouts
from quorumlog.metadata_quorum.core.voter_sets import VoterSet
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset


@dataclass(eq=False)
class Membership:
    """The voters in force, by the log of one node, and whether this node is one of them (KIP-853).

    At kraft.version 0 they are the configured voters, and a voter is an id. At 1 they are those of
    the last Voters record, committed or not, and a voter is an id and a directory id.
    """

    _node_id: BrokerId
    _directory_id: str | None
    _configured: VoterSet
    _log: LogOutline

    @property
    def kraft_version(self) -> int:
        """0: the configured voters are in force; 1: the voters in the log."""
        return 0 if self._log.voter_sets.last is None else 1

    @property
    def voter_set(self) -> VoterSet:
        """The voters in force."""
        return self._log.voter_sets.last or self._configured

    @property
    def is_voter(self) -> bool:
        """Whether this node, with its directory, is a voter."""
        return self.has(self._node_id, self._directory_id)

    def has(self, node_id: BrokerId, directory_id: str | None) -> bool:
        """Whether this replica is a voter. At kraft.version 0 the directory does not count."""
        if self.kraft_version == 0:
            return node_id in self.voter_set.ids
        return self.voter_set.has_key(node_id, directory_id)

    def directory_of(self, voter_id: BrokerId) -> str | None:
        """Return the directory id of this voter; None: any directory counts."""
        voter = self.voter_set.get(voter_id) if self.kraft_version else None
        return None if voter is None else voter.directory_id

    @property
    def flushes_log(self) -> bool:
        """Whether this node's fetches claim that its log is durable.

        Those of a node that can become a voter do, too: the leader counts them from then on.
        """
        return self.is_voter or self._directory_id is not None

    @property
    def may_stand(self) -> bool:
        """Whether this node is a voter, or its removal may still be uncommitted.

        Its log may be longer than those of all remaining voters: then no other node can be elected.
        It does not count its own vote (Raft: Ongaro's dissertation, 4.2.2).
        """
        # DEVIATION: Kafka's voters no longer stand once they append their removal.
        # docs/decisions/0001-voter-changes.md
        if self.is_voter or self.kraft_version == 0:
            return self.is_voter
        sets, committed = self._log.voter_sets, self._log.known_committed
        was_configured = sets.at(committed) is None and self._node_id in self._configured.ids
        return was_configured or any(
            voters.has_key(self._node_id, self._directory_id)
            for voters in sets.may_be_in_force(committed)
        )


class QuorumState:
    """The state that every rule reads; the only writer of role, epoch, leader and vote.

    It collects the effects of a step, in order. `random_fraction` returns a number in [0, 1). It
    varies election timeouts, so that voters that lost their leader together do not stand together.
    """

    membership: ClassVar[type[Membership]] = Membership  # a seam for mutants, as is the next
    timeout_rules: ClassVar[type[Timeouts]] = Timeouts

    def __init__(
        self,
        *,
        node_id: BrokerId,
        voters: VoterSet | tuple[BrokerId, ...],
        settings: QuorumSettings,
        random_fraction: Callable[[], float],
        directory_id: str | None = None,
        address: str = "",
        bootstrap: int = 0,
    ) -> None:
        self.node_id: Final = node_id
        self.directory_id: Final = directory_id
        self.address: Final = address
        self.bootstrap_ids: Final = tuple(BrokerId(-2 - index) for index in range(bootstrap))
        self.configured: Final = voters if isinstance(voters, VoterSet) else VoterSet.of_ids(voters)
        self.settings: Final = settings
        self.role: Role = Unattached(election_deadline_ms=None)
        self.leader_epoch = Epoch(0)
        self.leader_id = self.voted_id = NOBODY
        self.voted_directory_id: str | None = None
        self.restored_vote = Epoch(0), NOBODY  # epoch and vote that the disk held at the start
        self.was_voter = False  # of a committed set: KAFKA-19850
        self.is_new = False  # a voter that must not vote yet: decision 2
        self.log: Final = LogOutline()
        self.members: Final = self.membership(node_id, directory_id, self.configured, self.log)
        self.timeouts: Final = self.timeout_rules(settings, random_fraction)
        self.now_ms = 0  # without the time of disk writes
        self.effects: list[Effect] = []
        self._last_request_id = 0
        self._told_voters: VoterSet | None = None
        self._learnt_address = NOBODY, ""  # a leader's id and address, from its peers

    # --- the voters ---

    @property
    def kraft_version(self) -> int:
        """0: the configured voters are in force; 1: the voters in the log (KIP-853)."""
        return self.members.kraft_version

    @property
    def voter_set(self) -> VoterSet:
        """The voters in force."""
        return self.members.voter_set

    @property
    def voters(self) -> tuple[BrokerId, ...]:
        """The ids of the voters in force."""
        return self.voter_set.ids

    @property
    def other_voters(self) -> tuple[BrokerId, ...]:
        """The ids of the voters except this node's."""
        return tuple(voter for voter in self.voter_set.ids if voter != self.node_id)

    @property
    def majority(self) -> int:
        """The number of voters in a majority."""
        return self.voter_set.majority

    @property
    def is_voter(self) -> bool:
        """Whether this node, with its directory, is a voter."""
        return self.members.is_voter

    @property
    def is_alone(self) -> bool:
        """Whether this node is the only voter; not if new: its log may lack the other voters."""
        return self.is_voter and not self.other_voters and not self.is_new

    def follow_voters(self) -> None:
        """Act on the current voter set of the log."""
        voters = self.log.voter_sets.last
        if voters == self._told_voters:
            return
        self._told_voters = voters
        self.emit(effects.VotersChanged(voters=voters))
        if isinstance(self.role, Follower) and not self.takes_part:
            self.role.notice_deadline_ms = None  # it does not stand any more

    @property
    def leader_address(self) -> str:
        """The leader's address; empty: unknown."""
        if self.leader_id == self.node_id and self.address:
            return self.address
        voter = self.voter_set.get(self.leader_id)
        if voter is not None and voter.address:
            return voter.address
        learnt_id, address = self._learnt_address
        return address if learnt_id == self.leader_id else ""

    @property
    def takes_part(self) -> bool:
        """Whether this node may stand, and vote.

        A voter that has lost its disk may have voted in an epoch whose election still runs, and its
        lost records may have counted for a commit.
        """
        # DEVIATION: Kafka's static voters take part with any disk that was formatted for them.
        # docs/decisions/0002-durable-votes.md
        return self.members.may_stand and not self.is_new

    def may_vote(self, *, is_named: bool) -> bool:
        """Whether this node may vote. `is_named`: the candidate names its directory as a voter's.

        The log here may lack its last records: the record that makes this node a voter, or the
        record of kraft.version 1. The election may need this node's vote for a majority (KIP-853).
        """
        return not self.is_new and (self.is_voter or is_named)

    @property
    def has_newer_epoch(self) -> bool:
        """Whether an epoch can follow this one."""
        return self.leader_epoch < EPOCH_MAX

    def is_within_reach(self, epoch: Epoch) -> bool:
        """Whether to accept a peer's epoch: an absurd one would leave no epochs to elect in."""
        return epoch <= min(EPOCH_MAX, self.leader_epoch + EPOCH_STEP_MAX)

    # --- effects ---

    def emit(self, effect: Effect) -> None:
        """Append an effect to those of this step."""
        self.effects.append(effect)

    def send(self, destination: BrokerId, request: Request, *, wait_ms: int = 0) -> int:
        """Send a request that the receiver may hold back for wait_ms; return its id."""
        self._last_request_id += 1
        self.emit(
            effects.SendRequest(
                request_id=self._last_request_id,
                destination=destination,
                request=request,
                timeout_ms=self.settings.controller_quorum_request_timeout_ms + wait_ms,
            )
        )
        return self._last_request_id

    def refuse_fetch(self, request_id: int, error_code: ErrorCode) -> None:
        """Answer a fetch with an error, and with this node's leader and epoch."""
        response = FetchResponse(
            error_code=error_code,
            leader_id=self.leader_id,
            leader_epoch=self.leader_epoch,
            leader_address=self.leader_address,
        )
        self.emit(effects.AnswerFetch(request_id=request_id, response=response))

    def answer_voter_change(self, request_id: int, error_code: ErrorCode, message: str) -> None:
        """Answer a request to change the voters."""
        response = VoterChangeResponse(
            error_code=error_code,
            error_message=message,
            leader_id=self.leader_id,
            leader_epoch=self.leader_epoch,
            leader_address=self.leader_address,
        )
        self.emit(effects.SendResponse(request_id=request_id, response=response))

    def advance_high_watermark(self, committed: Offset) -> None:
        """Raise the high watermark to `committed`; it never falls."""
        if committed > self.log.high_watermark:
            self.log.high_watermark = committed
            self.emit(effects.AdvanceHighWatermark(high_watermark=committed))
            self._maybe_note_membership()

    def _maybe_note_membership(self) -> None:
        """Persist that this node was a voter: it does not add itself a second time.

        One high watermark may commit both its addition and its removal.
        """
        committed = self.log.voter_sets.committed(self.log.high_watermark)
        if not self.was_voter and any(
            voters.has_key(self.node_id, self.directory_id) for voters in committed
        ):
            self.was_voter = True
            self.persist_election()

    # --- deadlines ---

    def retry_ms(self) -> int:
        """Return the time at which to repeat a request that failed now."""
        return self.now_ms + self.settings.controller_quorum_retry_backoff_ms

    def new_fetch_deadline_ms(self) -> int:
        """Return the time one fetch timeout from now."""
        return self.now_ms + self.timeouts.fetch_ms()

    def new_check_quorum_deadline_ms(self) -> int:
        """Return the time by which a majority must fetch: 1.5 fetch timeouts from now."""
        return self.now_ms + self.timeouts.fetch_ms(self.other_voters) * 3 // 2

    def new_election_deadline_ms(self, votes_of: Iterable[BrokerId] = ()) -> int:
        """Return the time one election timeout from now, within which these voters can vote."""
        return self.now_ms + self.timeouts.election_ms(votes_of)

    # --- role, epoch, leader and vote ---

    def become(
        self,
        role: Role,
        *,
        leader_epoch: Epoch | None = None,
        leader_id: BrokerId | None = None,
        voted_id: BrokerId | None = None,
        voted_directory_id: str | None = None,
    ) -> None:
        """Change the role, and the election state with it: the only writer of both.

        Within an epoch, omitted arguments keep their values; a newer epoch has neither leader nor
        vote unless given. The change is durable before any effect that depends on it.
        """
        epoch = self.leader_epoch if leader_epoch is None else leader_epoch
        is_newer = epoch != self.leader_epoch
        changes = CHANGES_TO_A_NEWER_EPOCH if is_newer else CHANGES_WITHIN_AN_EPOCH
        change = f"{type(self.role).__name__} {self.leader_epoch} -> {type(role).__name__} {epoch}"
        require(epoch >= self.leader_epoch, f"legal change: {change}: an epoch never falls")
        require(type(role) in changes[type(self.role)], f"legal change: {change}")
        was_removed = isinstance(self.role, Leader) and isinstance(role, Resigned)
        require(
            self.members.may_stand or was_removed or isinstance(role, OBSERVER_ROLES),
            f"legal change: {change}: an observer only follows",
        )
        leader = (NOBODY if is_newer else self.leader_id) if leader_id is None else leader_id
        voted = (NOBODY if is_newer else self.voted_id) if voted_id is None else voted_id
        directory = self._voted_directory(voted, voted_directory_id, is_newer=is_newer)
        previous, self.role = self.role, role
        match previous:
            case Leader(parked=parked, voter_change=voter_change):
                self.emit(effects.ResignLeadership(leader_epoch=self.leader_epoch))
                self.set_election(epoch, leader, voted, directory)
                for request_id in parked:
                    self.refuse_fetch(request_id, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                if voter_change is not None:
                    self.answer_voter_change(
                        voter_change.request_id,
                        ErrorCode.REQUEST_TIMED_OUT,
                        "the leader resigned: the change may still be made",
                    )
            case _:
                self.set_election(epoch, leader, voted, directory)

    def _voted_directory(
        self, voted_id: BrokerId, directory_id: str | None, *, is_newer: bool
    ) -> str | None:
        if voted_id == NOBODY:
            return None
        if voted_id == self.node_id:
            return self.directory_id
        if directory_id is None and voted_id == self.voted_id and not is_newer:
            return self.voted_directory_id
        return directory_id

    def become_unattached(self, leader_epoch: Epoch, *, deadline_ms: int | None = None) -> None:
        """Wait without a leader. A newer epoch alone does not restart the election timeout."""
        match self.role:
            case _ if deadline_ms is not None or not self.members.may_stand:
                pass
            case (
                Unattached(election_deadline_ms=int(left_ms))
                | Prospective(election_deadline_ms=left_ms)
                | Candidate(election_deadline_ms=left_ms)
                | Resigned(election_deadline_ms=left_ms)
            ) if left_ms > self.now_ms:
                deadline_ms = left_ms
            case _:
                deadline_ms = self.new_election_deadline_ms()
        self.become(Unattached(election_deadline_ms=deadline_ms), leader_epoch=leader_epoch)

    def become_follower(self, leader_epoch: Epoch, leader_id: BrokerId) -> None:
        """Follow another voter, which must answer a fetch within one fetch timeout."""
        follower = Follower(fetch_deadline_ms=self.new_fetch_deadline_ms())
        self.become(follower, leader_epoch=leader_epoch, leader_id=leader_id)

    def may_lead(self, leader_id: BrokerId, address: str) -> bool:
        """Whether to accept a peer's claim that `leader_id` leads.

        The log of this node may lack the record that makes the leader a voter. At kraft.version 0
        only configured voters lead, unless the peer sends an address: its log may be ahead.
        """
        is_stranger_possible = self.kraft_version > 0 or not self.configured.voters or bool(address)
        return leader_id in self.voters or (leader_id >= 0 and is_stranger_possible)

    def learn_from(self, response: LeaderResponse) -> bool:
        """Adopt the epoch and leader of a leader's response; False: as `learn`."""
        if response.error_code is ErrorCode.UNKNOWN_LEADER_EPOCH:
            return False  # its epoch is older
        return self.learn(response.leader_epoch, response.leader_id, response.leader_address)

    def learn(self, leader_epoch: Epoch, leader_id: BrokerId, address: str = "") -> bool:
        """Adopt a peer's epoch and leader; False: they are older, or impossible."""
        is_possible = self.is_within_reach(leader_epoch) and (
            leader_id == NOBODY or self.may_lead(leader_id, address)
        )
        if leader_epoch < self.leader_epoch or not is_possible:
            return False
        if address:
            self._learnt_address = leader_id, address
        is_another = leader_id not in {NOBODY, self.node_id}
        if leader_epoch > self.leader_epoch:
            if is_another:
                self.become_follower(leader_epoch, leader_id)
            else:  # also if the peer names us: this node has lost its disk
                self.become_unattached(leader_epoch)
        elif is_another and self.leader_id == NOBODY:
            self.become_follower(leader_epoch, leader_id)
        else:
            agreed = leader_id in {NOBODY, self.leader_id} or self.leader_id == NOBODY
            require(agreed, f"one leader in epoch {leader_epoch}: {self.leader_id}, {leader_id}")
        return True

    def set_election(
        self,
        epoch: Epoch,
        leader_id: BrokerId,
        voted_id: BrokerId,
        voted_directory_id: str | None = None,
    ) -> None:
        """Change epoch, leader and vote; the change is durable before any later effect."""
        has_new_leader = (epoch, leader_id) != (self.leader_epoch, self.leader_id)
        if not has_new_leader and voted_id == self.voted_id:
            return
        self.leader_epoch, self.leader_id, self.voted_id = epoch, leader_id, voted_id
        self.voted_directory_id = voted_directory_id
        self.persist_election()
        if has_new_leader and leader_id != self.node_id:
            self.emit(effects.FollowLeader(leader_epoch=epoch, leader_id=leader_id))

    def persist_election(self) -> None:
        """Emit one write for successive changes: no message left between them."""
        election = effects.PersistElection(
            leader_epoch=self.leader_epoch,
            leader_id=self.leader_id,
            voted_id=self.voted_id,
            is_new=self.is_new,
            voted_directory_id=self.voted_directory_id,
            was_voter=self.was_voter,
        )
        # DEVIATION: Kafka writes each change on its own.
        # docs/decisions/0002-durable-votes.md
        for last in range(len(self.effects) - 1, -1, -1):
            match self.effects[last]:
                case effects.FollowLeader():
                    continue
                case effects.PersistElection():
                    self.effects[last] = election
                    return
                case _:
                    break
        self.emit(election)
