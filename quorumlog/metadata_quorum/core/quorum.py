"""The Raft core of the metadata log: one node, voter or observer, as a state machine.

A voter always requests pre-votes before votes. At kraft.version 0 the voters are the configured
ones; at 1 the log contains them, and they may change. The package's docstring states the driver's
duties. Sources: KIP-595, KIP-630, KIP-853, KIP-996; Raft sections 4.1, 5.1 to 5.4, and 7.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final, assert_never

from quorumlog.invariants import require
from quorumlog.metadata_quorum.core import events
from quorumlog.metadata_quorum.core.auto_join import AutoJoin
from quorumlog.metadata_quorum.core.effects import Effect
from quorumlog.metadata_quorum.core.elections import Elections
from quorumlog.metadata_quorum.core.events import Event
from quorumlog.metadata_quorum.core.followership import Followership
from quorumlog.metadata_quorum.core.leadership import Leadership
from quorumlog.metadata_quorum.core.messages import (
    NOBODY,
    AddVoterRequest,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RemoveVoterRequest,
    UpdateVoterRequest,
    UpgradeKRaftVersionRequest,
    VoterChangeResponse,
    VoteRequest,
    VoteResponse,
)
from quorumlog.metadata_quorum.core.quorum_state import QuorumState
from quorumlog.metadata_quorum.core.roles import (
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
from quorumlog.metadata_quorum.core.snapshot_downloads import SnapshotDownloads
from quorumlog.metadata_quorum.core.start_role import StartRole
from quorumlog.metadata_quorum.core.voter_changes import VoterChanges
from quorumlog.metadata_quorum.core.voter_sets import VoterSet
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset

Before = tuple[int, int, int, int]
"""The state before the step: leader epoch, high watermark, leader and vote."""


def check_quorum(state: QuorumState, leadership: Leadership, before: Before) -> None:
    """Raise InvariantViolation with the number of the broken rule: see `Quorum`."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The classes that make up a quorum: a seam for mutants, which replace one.

    Mutants also override single methods of one line, such as `_held_by_majority`.
    """

    state: type[QuorumState] = QuorumState
    elections: type[Elections] = Elections
    leadership: type[Leadership] = Leadership
    followership: type[Followership] = Followership
    snapshot_downloads: type[SnapshotDownloads] = SnapshotDownloads
    voter_changes: type[VoterChanges] = VoterChanges
    starting: type[StartRole] = StartRole
    auto_join: type[AutoJoin] = AutoJoin


class Quorum:
    """One node of the quorum; see `step`.

    Invariants (`check_invariants`, after every step and before any effect leaves):
      1. The epoch and the high watermark never fall.
      2. high_watermark <= log_end_offset, flushed_offset <= log_end_offset.
      3. Committed records are never truncated.
      4. A leader, or a resigned leader, is the leader of its epoch; a follower has another leader;
         a candidate has voted for itself and has no leader; an unattached node has no leader.
      5. Within an epoch, neither the leader nor the vote changes once it is set.
      6. A leader has appended a record of its epoch.
      7. Only records of its epoch move a leader's high watermark.
      8. A parked fetch is valid: its fetch offset is not above the log end offset.
      9. No record has a newer epoch than the node.
     10. No record is truncated while a flush is in progress; and a voter that fetches, or stands in
         an election, has a durable log.
     11. An observer only follows; so does a new voter. Neither gives a vote without a directory id;
         with one, its log may lack the record that makes it a voter.
     12. A snapshot contains the records below the log's start; its records are committed.
     13. A leader makes one change of the voters at a time, of one voter at most.
     14. A leader that is no voter has removed itself, and leads until the removal is committed.
     15. A log that has to be durable, and is not, is being flushed.
     16. A node with peers that does not lead has a deadline, or a fetch, a download or a flush
         under way.
    """

    rules: ClassVar[Rules] = Rules()

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
        auto_join: bool = False,
    ) -> None:
        """`voters`: the configured voters, with addresses if the configuration has them.

        `directory_id`: the id of the metadata directory; only a node with one can become a voter,
        and it flushes its log as a voter does. `address`: this node's control listener.
        `bootstrap`: the number of bootstrap addresses, at which the node searches for the leader;
        their ids are -2, -3 and so on. `auto_join`: whether this node requests to become a voter
        (KIP-1186). `random_fraction` returns a number in [0, 1): see `QuorumState`.
        """
        self.state: Final = self.rules.state(
            node_id=node_id,
            voters=voters,
            settings=settings,
            random_fraction=random_fraction,
            directory_id=directory_id,
            address=address,
            bootstrap=bootstrap,
        )
        self._voter_changes: Final = self.rules.voter_changes(self.state)
        self._leadership: Final = self.rules.leadership(self.state, self._voter_changes)
        self._elections: Final = self.rules.elections(self.state, self._leadership)
        self._followership: Final = self.rules.followership(
            self.state, self.rules.snapshot_downloads(self.state)
        )
        self._auto_join: Final = self.rules.auto_join(self.state, is_enabled=auto_join)
        self._starting: Final = self.rules.starting(self.state, self._elections, self._leadership)
        self._has_started = False
        self.node_id: Final = node_id
        self.settings: Final = settings

    # --- for the driver, beside `state`: only these rules change that ---

    def voters_at(self, end_offset: Offset) -> VoterSet | None:
        """Return the voter set of a snapshot that ends at `end_offset`; None: kraft.version is 0.

        `end_offset` is not below the newest snapshot's end, or the log's start.
        """
        return self.state.log.voter_sets.at(end_offset)

    @property
    def is_leader(self) -> bool:
        """Whether this node leads `leader_epoch`."""
        return isinstance(self.state.role, Leader)

    @property
    def log_start(self) -> tuple[Offset, Epoch]:
        """The start offset of the log, and the epoch of the record before it."""
        return self.state.log.start_offset, self.state.log.start_epoch

    @property
    def resignation_pending(self) -> bool:
        """Whether this node has resigned, and a voter has not yet answered its EndQuorumEpoch."""
        role = self.state.role
        return isinstance(role, Resigned) and bool(role.end_epoch_due_ms or role.end_epoch_sent)

    # --- a step ---

    def step(self, now_ms: int, event: Event) -> list[Effect]:
        """Handle one event; return the effects, in order. Raises InvariantViolation: our bug."""
        state = self.state
        if isinstance(event, events.WriteEnded):
            state.timeouts.note_wait(event.took_ms)
            if not event.was_repeated:
                state.timeouts.note_write(event.took_ms)
        state.now_ms = max(state.now_ms, now_ms - state.timeouts.waited_ms)
        state.effects = []
        before = state.leader_epoch, state.log.high_watermark, state.leader_id, state.voted_id
        require(self._has_started != isinstance(event, events.Started), "Started is the first")
        self._handle(event)
        self._do_what_is_due()
        self.check_invariants(before)
        return state.effects

    def next_deadline_ms(self) -> int | None:
        """Return when to feed `Ticked`, at the latest; None: nothing is due."""
        role = self.state.role
        deadlines = (
            *self._leadership.deadlines(role),
            *self._elections.deadlines(role),
            *self._followership.deadlines(role),
            *self._auto_join.deadlines(),
        )
        first_ms = min(deadlines, default=None)
        return None if first_ms is None else first_ms + self.state.timeouts.waited_ms

    def _handle(self, event: Event) -> None:
        role = self.state.role
        match event:
            case events.Started():
                self._handle_started(event)
            case events.Ticked():
                pass  # every step performs the due actions
            case events.RequestReceived():
                self._handle_request(event)
            case events.ResponseReceived():
                self._handle_response(role, event)
            case events.RequestFailed(request_id=request_id):
                self._elections.handle_request_failed(request_id)
                self._followership.handle_request_failed(role, request_id)
                self._leadership.handle_end_quorum_epoch_outcome(request_id, has_answered=False)
            case events.RecordsAppended() | events.UpgradeDecided() | events.ResignRequested():
                self._handle_own_event(role, event)
            case (
                events.LogFlushed()
                | events.WriteEnded()
                | events.SnapshotChecked()
                | events.SnapshotWritten()
                | events.LogStartMoved()
            ):
                self._handle_log_event(role, event)
            case events.PeerProcessDied():
                self._followership.handle_peer_process_died(role, event)
            case _:
                assert_never(event)

    def _handle_own_event(self, role: Role, event: events.OwnEvent) -> None:
        match event:
            case events.RecordsAppended():
                self._leadership.handle_records_appended(role, event)
            case events.UpgradeDecided():
                self._voter_changes.handle_upgrade_decided(role)
            case events.ResignRequested():
                self._leadership.resign(role)
            case _:
                assert_never(event)

    def _handle_log_event(self, role: Role, event: events.LogEvent) -> None:
        match event:
            case events.LogFlushed(flushed_offset=flushed_offset, took_ms=took_ms) as flush:
                self.state.log.flushed(flushed_offset)
                if not flush.was_repeated:
                    self.state.timeouts.note_write(took_ms)
                self._followership.resume(role, took_ms)
            case events.WriteEnded():
                pass  # `step` has subtracted it from the time
            case events.SnapshotChecked():
                self._followership.handle_snapshot_checked(role, event)
            case events.SnapshotWritten(snapshot_id=snapshot_id):
                self.state.log.note_snapshot(snapshot_id)
            case events.LogStartMoved(log_start=log_start):
                self.state.log.move_start(log_start)
            case _:
                assert_never(event)

    def _handle_request(self, event: events.RequestReceived) -> None:
        match event.request:
            case VoteRequest() as request:
                self._elections.handle_vote_request(event.request_id, request)
            case BeginQuorumEpochRequest() as request:
                self._followership.handle_begin_quorum_epoch(event.request_id, request)
            case EndQuorumEpochRequest() as request:
                self._followership.handle_end_quorum_epoch(event.request_id, request)
            case FetchRequest() as request:
                self._leadership.handle_fetch_request(event.request_id, request)
            case FetchSnapshotRequest() as request:
                self._leadership.handle_fetch_snapshot_request(event.request_id, request)
            case (
                AddVoterRequest()
                | RemoveVoterRequest()
                | UpdateVoterRequest()
                | UpgradeKRaftVersionRequest()
            ) as request:
                self._voter_changes.handle_request(event.request_id, request)
            case _:
                assert_never(event.request)

    def _handle_response(self, role: Role, event: events.ResponseReceived) -> None:
        match event.response:
            case VoteResponse() as response:
                self._elections.handle_vote_response(event, response)
            case FetchResponse() as response:
                self._followership.handle_fetch_response(role, event, response)
            case FetchSnapshotResponse() as response:
                self._followership.handle_fetch_snapshot_response(role, event, response)
            case (
                BeginQuorumEpochResponse() | EndQuorumEpochResponse() | VoterChangeResponse()
            ) as response:
                epoch, leader_id = response.leader_epoch, response.leader_id
                self.state.learn(epoch, leader_id, response.leader_address)
                if isinstance(response, EndQuorumEpochResponse):
                    self._leadership.handle_end_quorum_epoch_outcome(
                        event.request_id, has_answered=True
                    )
            case _:
                assert_never(event.response)

    def _do_what_is_due(self) -> None:
        """Perform the due actions of the role, and of each role that follows from it.

        The loop ends: a change of role sets its deadlines later than now. The exceptions are a
        change from `Resigned`, and a single voter, which stands and wins at once.
        """
        done: Role | None = None
        while done is not self.state.role:
            done = self.state.role
            match done:
                case Leader():
                    self._leadership.lead(done)
                case Resigned():
                    self._leadership.end_epoch(done)
                case Unattached() | Follower():
                    self._elections.maybe_stand(done)
                case Prospective():
                    self._elections.count_pre_votes(done)
                case Candidate():
                    self._elections.count_votes(done)
                case _:
                    assert_never(done)
        self._followership.maybe_flush()
        if isinstance(done, Unattached | Follower):
            self._followership.maybe_fetch(done)
        self._auto_join.maybe_ask(self.state.role)

    def _handle_started(self, event: events.Started) -> None:
        self._has_started = True
        self._starting.start(event)

    def check_invariants(self, before: Before) -> None:
        """Raise InvariantViolation with the number of the broken rule."""
        check_quorum(self.state, self._leadership, before)
        self._check_progress()

    def _check_progress(self) -> None:
        """Raise InvariantViolation if the node waits, and neither an event nor a tick will come."""
        log, role = self.state.log, self.state.role
        is_written = not self.state.members.flushes_log or log.is_durable or log.is_flushing
        require(is_written, "15: records that are not durable are being flushed")
        has_peers = bool(self.state.other_voters or self.state.bootstrap_ids)
        if isinstance(role, Leader | Resigned) or not (has_peers and self._has_started):
            return
        is_fetching = isinstance(role, Unattached | Follower) and role.fetch_id is not None
        is_downloading = isinstance(role, Follower) and role.download is not None
        is_busy = is_fetching or is_downloading or log.is_flushing
        require(is_busy or self.next_deadline_ms() is not None, f"16: {role} has a deadline")
