"""What a quorum node is: its role, its epoch and vote, its log in outline; and the legal changes.

It refuses any change that the tables in `roles` do not list. Source: Kafka's `QuorumState`.
"""

from collections.abc import Callable, Iterator
from typing import Final

from quorumlog.invariants import require
from quorumlog.metadata_quorum.core import effects
from quorumlog.metadata_quorum.core.effects import Effect
from quorumlog.metadata_quorum.core.messages import (
    EPOCH_MAX,
    EPOCH_STEP_MAX,
    NOBODY,
    FetchResponse,
    Request,
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
from quorumlog.storage.core.leader_epochs import LeaderEpochs
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset


class QuorumState:
    """State shared by all rules, and the only writers of role, epoch and vote.

    `random_fraction` returns a number in [0, 1): for election timeouts, so that voters that lost
    their leader together do not stand together.
    """

    def __init__(
        self,
        *,
        node_id: BrokerId,
        voters: tuple[BrokerId, ...],
        settings: QuorumSettings,
        random_fraction: Callable[[], float],
    ) -> None:
        self.node_id: Final = node_id
        self.voters: Final = tuple(sorted({*voters}))
        self.settings: Final = settings
        self.is_voter: Final = node_id in self.voters
        self.role: Role = Unattached(election_deadline_ms=None)
        self.leader_epoch = Epoch(0)
        self.leader_id = self.voted_id = NOBODY
        self.log_end_offset = self.flushed_offset = self.high_watermark = Offset(0)
        self.epochs = LeaderEpochs()
        self._others: Final = tuple(voter for voter in self.voters if voter != node_id)
        self._majority: Final = len(self.voters) // 2 + 1
        self._random_fraction: Final = random_fraction
        self._now_ms = 0
        self._effects: list[Effect] = []
        self._last_request_id = 0
        self.is_new = False  # a voter that must not vote yet: decision 36
        self._has_started = self._is_flushing = False
        self._fetch_id: int | None = None  # of the one that is under way
        self._fetch_after_ms = 0
        self._probes_in_vain = 0  # since an observer has fetched last
        self._probed = 0  # how many voters were asked in turn who the leader is

    @property
    def is_leader(self) -> bool:
        """Whether this node leads `leader_epoch`."""
        return isinstance(self.role, Leader)

    @property
    def last_epoch(self) -> Epoch:
        """The epoch of the last record; 0 if there is none."""
        return Epoch(max(self.epochs.latest_epoch, 0))

    @property
    def is_log_durable(self) -> bool:
        """Whether power loss would take nothing from the log."""
        return self.flushed_offset == self.log_end_offset

    def _emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def _send(self, destination: BrokerId, request: Request, *, wait_ms: int = 0) -> int:
        """Send a request that the receiver may hold back for wait_ms; return its id."""
        self._last_request_id += 1
        self._emit(
            effects.SendRequest(
                request_id=self._last_request_id,
                destination=destination,
                request=request,
                timeout_ms=self.settings.controller_quorum_request_timeout_ms + wait_ms,
            )
        )
        return self._last_request_id

    def _answer_fetch(
        self,
        request_id: int,
        response: FetchResponse,
        *,
        records_from: int = 0,
        records_to: int = 0,
    ) -> None:
        answer = effects.AnswerFetch(
            request_id=request_id,
            response=response,
            records_from=Offset(records_from),
            records_to=Offset(records_to),
        )
        self._emit(answer)

    def _refuse_fetch(self, request_id: int, error_code: ErrorCode) -> None:
        response = FetchResponse(
            error_code=error_code, leader_id=self.leader_id, leader_epoch=self.leader_epoch
        )
        self._answer_fetch(request_id, response)

    def _retry_ms(self) -> int:
        return self._now_ms + self.settings.controller_quorum_retry_backoff_ms

    def _new_election_deadline_ms(self) -> int:
        """One election timeout from now: uniform in [T, 2T)."""
        timeout_ms = self.settings.controller_quorum_election_timeout_ms
        return self._now_ms + timeout_ms + int(timeout_ms * self._random_fraction())

    def _become(
        self,
        role: Role,
        *,
        leader_epoch: Epoch | None = None,
        leader_id: BrokerId | None = None,
        voted_id: BrokerId | None = None,
    ) -> None:
        """Change the role, and the election state with it: the only writer of both.

        Within an epoch, what is not given stays; a newer epoch has neither leader nor vote unless
        given. What changed is durable before anything else happens because of it.
        """
        epoch = self.leader_epoch if leader_epoch is None else leader_epoch
        is_newer = epoch != self.leader_epoch
        changes = CHANGES_TO_A_NEWER_EPOCH if is_newer else CHANGES_WITHIN_AN_EPOCH
        change = f"{type(self.role).__name__} {self.leader_epoch} -> {type(role).__name__} {epoch}"
        require(epoch >= self.leader_epoch, f"legal change: {change}: an epoch never falls")
        require(type(role) in changes[type(self.role)], f"legal change: {change}")
        require(
            self.is_voter or isinstance(role, OBSERVER_ROLES),
            f"legal change: {change}: an observer only follows",
        )
        leader = (NOBODY if is_newer else self.leader_id) if leader_id is None else leader_id
        voted = (NOBODY if is_newer else self.voted_id) if voted_id is None else voted_id
        previous = self.role
        if isinstance(previous, Leader):
            self._emit(effects.ResignLeadership(leader_epoch=self.leader_epoch))
        self.role, self._fetch_id, self._fetch_after_ms = role, None, 0
        self._set_election(epoch, leader, voted)
        if isinstance(previous, Leader):
            for request_id in previous.parked:
                self._refuse_fetch(request_id, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _set_election(self, epoch: Epoch, leader_id: BrokerId, voted_id: BrokerId) -> None:
        has_new_leader = (epoch, leader_id) != (self.leader_epoch, self.leader_id)
        if not has_new_leader and voted_id == self.voted_id:
            return
        self.leader_epoch, self.leader_id, self.voted_id = epoch, leader_id, voted_id
        self._persist_election()
        if has_new_leader and leader_id != self.node_id:
            self._emit(effects.FollowLeader(leader_epoch=epoch, leader_id=leader_id))

    def _persist_election(self) -> None:
        election = effects.PersistElection(
            leader_epoch=self.leader_epoch,
            leader_id=self.leader_id,
            voted_id=self.voted_id,
            is_new=self.is_new,
        )
        self._persist(election)

    def _persist(self, election: effects.PersistElection) -> None:
        """Order one write for all changes that nobody could have seen apart."""
        # DEVIATION: Kafka writes each change on its own.
        # docs/decisions/0010-what-a-vote-or-a-fetch-claims-is-on-the-disk.md
        last = len(self._effects) - 1
        while last >= 0 and isinstance(self._effects[last], effects.FollowLeader):
            last -= 1
        if last >= 0 and isinstance(self._effects[last], effects.PersistElection):
            self._effects[last] = election
        else:
            self._emit(election)

    def _become_unattached(self, leader_epoch: Epoch, *, deadline_ms: int | None = None) -> None:
        """Wait, without a leader. A mere newer epoch does not restart an election timeout."""
        match self.role:
            case _ if deadline_ms is not None or not self.is_voter:
                pass
            case (
                Unattached(election_deadline_ms=int(left_ms))
                | Prospective(election_deadline_ms=left_ms)
                | Candidate(election_deadline_ms=left_ms)
                | Resigned(election_deadline_ms=left_ms)
            ) if left_ms > self._now_ms:
                deadline_ms = left_ms
            case _:
                deadline_ms = self._new_election_deadline_ms()
        self._become(Unattached(election_deadline_ms=deadline_ms), leader_epoch=leader_epoch)

    def _become_follower(self, leader_epoch: Epoch, leader_id: BrokerId) -> None:
        deadline_ms = self._now_ms + self.settings.controller_quorum_fetch_timeout_ms
        follower = Follower(fetch_deadline_ms=deadline_ms)
        self._become(follower, leader_epoch=leader_epoch, leader_id=leader_id)

    def _learn(self, leader_epoch: Epoch, leader_id: BrokerId) -> bool:
        """Act on the epoch and leader that a peer knows; False: it is behind, or makes no sense."""
        is_possible = self._is_within_reach(leader_epoch) and leader_id in {NOBODY, *self.voters}
        if leader_epoch < self.leader_epoch or not is_possible:
            return False
        is_another = leader_id not in {NOBODY, self.node_id}
        if leader_epoch > self.leader_epoch:
            if is_another:
                self._become_follower(leader_epoch, leader_id)
            else:  # also if it says that we lead: this node has lost its disk
                self._become_unattached(leader_epoch)
        elif is_another and self.leader_id == NOBODY:
            self._become_follower(leader_epoch, leader_id)
        else:
            agreed = leader_id in {NOBODY, self.leader_id} or self.leader_id == NOBODY
            require(agreed, f"one leader in epoch {leader_epoch}: {self.leader_id}, {leader_id}")
        return True

    def _is_within_reach(self, epoch: Epoch) -> bool:
        """Whether a peer may be in this epoch: an absurd one would leave no epochs to elect in."""
        return epoch <= min(EPOCH_MAX, self.leader_epoch + EPOCH_STEP_MAX)

    @property
    def _takes_part(self) -> bool:
        """Whether this node may vote and stand.

        A voter that has lost its disk may have voted in an epoch that others still elect in, and
        have held records that are committed because it did.
        """
        # DEVIATION: Kafka's static voters take part with any disk that was formatted for them.
        # docs/decisions/0036-a-voter-without-its-past-does-not-vote.md
        return self.is_voter and not self.is_new

    @property
    def _has_newer_epoch(self) -> bool:
        """Whether there is an epoch after this one."""
        return self.leader_epoch < EPOCH_MAX

    def _deadlines(self) -> Iterator[int]:
        """When something is due; each rule adds its own."""
        yield from ()
