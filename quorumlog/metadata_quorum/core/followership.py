"""Followership: finding the leader, fetching from it, and truncating records that it lacks.

A follower refuses records that do not continue its log or have a newer epoch than its own, and
never truncates committed records. Sources: KIP-595 (Fetch, Begin- and EndQuorumEpoch); KAFKA-12460,
KAFKA-18723.
"""

from collections.abc import Iterator
from typing import Final

from quorumlog.invariants import require
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.messages import (
    NOBODY,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    DivergingEpoch,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
    FetchSnapshotResponse,
)
from quorumlog.metadata_quorum.core.quorum_state import QuorumState
from quorumlog.metadata_quorum.core.roles import Download, Follower, Prospective, Role, Unattached
from quorumlog.metadata_quorum.core.snapshot_downloads import SnapshotDownloads
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset


class Followership:
    """The rules of a follower, voter or observer, and of a node that looks for its leader."""

    def __init__(self, state: QuorumState, snapshots: SnapshotDownloads) -> None:
        self._state: Final = state
        self._snapshots: Final = snapshots
        self._fruitless_fetches = 0  # of an observer, since the last successful fetch
        self._probes = 0  # fetches to voters in turn, in search of the leader

    # --- requests of a leader ---

    def handle_begin_quorum_epoch(self, request_id: int, request: BeginQuorumEpochRequest) -> None:
        """Follow the leader that sent the request."""
        state = self._state
        address = request.leader_address
        error_code = self._leader_refusal(request.leader_id, request.leader_epoch, address)
        if request.voter_directory_id not in {None, state.directory_id}:
            error_code = ErrorCode.INVALID_VOTER_KEY
        if error_code is ErrorCode.NONE:
            state.learn(request.leader_epoch, request.leader_id, address)
            if isinstance(state.role, Prospective):  # it stood although the leader is alive
                state.become_follower(state.leader_epoch, state.leader_id)
        self._answer(request_id, BeginQuorumEpochResponse, error_code)

    def handle_end_quorum_epoch(self, request_id: int, request: EndQuorumEpochRequest) -> None:
        """Schedule an election after the leader resigned: sooner if it prefers this voter."""
        state = self._state
        error_code = self._leader_refusal(request.leader_id, request.leader_epoch)
        if error_code is ErrorCode.NONE:
            state.learn(request.leader_epoch, request.leader_id)
            role = state.role
            if isinstance(role, Follower):
                # DEVIATION: Kafka's followers refuse pre-votes until they stand themselves.
                # docs/decisions/0003-elections.md
                role.is_leader_gone = True
                wait_ms = self._successor_wait_ms(request.preferred_candidates)
                role.fetch_deadline_ms = min(role.fetch_deadline_ms, state.now_ms + wait_ms)
        self._answer(request_id, EndQuorumEpochResponse, error_code)

    def _answer(
        self,
        request_id: int,
        kind: type[BeginQuorumEpochResponse | EndQuorumEpochResponse],
        error_code: ErrorCode,
    ) -> None:
        state = self._state
        response = kind(
            error_code=error_code,
            leader_id=state.leader_id,
            leader_epoch=state.leader_epoch,
            leader_address=state.leader_address,
        )
        state.emit(effects.SendResponse(request_id=request_id, response=response))

    def _leader_refusal(
        self, leader_id: BrokerId, leader_epoch: Epoch, address: str = ""
    ) -> ErrorCode:
        is_other = leader_id != self._state.node_id
        may_lead = is_other and self._state.may_lead(leader_id, address)
        if not may_lead or not self._state.is_within_reach(leader_epoch):
            return ErrorCode.INVALID_REQUEST
        if leader_epoch < self._state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.NONE

    def _successor_wait_ms(self, preferred_candidates: tuple[BrokerId, ...]) -> int:
        """Return the wait: 0 for the first candidate, then doubling up to max/2; else max."""
        max_ms = self._state.settings.controller_quorum_election_backoff_max_ms
        if self._state.node_id not in preferred_candidates:
            return max_ms
        position = preferred_candidates.index(self._state.node_id)
        return max_ms >> (len(preferred_candidates) - position) if position else 0

    def handle_peer_process_died(self, role: Role, event: events.PeerProcessDied) -> None:
        """Start an election early if no process listens at the leader's address.

        Each voter waits a short time by its rank among the remaining voters, so that two do not
        split the vote. A fetch response from the leader cancels the election. A node that cannot
        stand fetches from other voters at once.
        """
        # DEVIATION: Kafka waits for the fetch timeout.
        # docs/decisions/0006-dead-and-silent-brokers.md
        # docs/decisions/0003-elections.md
        state = self._state
        is_enabled = state.settings.controller_quorum_dead_process_notice_enable
        if isinstance(role, Follower) and is_enabled and event.node_id == state.leader_id:
            role.is_leader_gone = True
            if not state.takes_part:
                self._fetch_elsewhere(role)
            elif role.notice_deadline_ms is None:
                role.notice_deadline_ms = state.now_ms + self._stagger_ms()

    def _stagger_ms(self) -> int:
        state = self._state
        stagger_ms = state.settings.controller_quorum_dead_process_stagger_ms
        left = [voter for voter in state.voters if voter != state.leader_id]
        rank = left.index(state.node_id) if state.node_id in left else len(left)
        return stagger_ms * rank + stagger_ms // 3

    # --- flushes ---

    def maybe_flush(self) -> None:
        """Flush a voter's log: its fetch offset, vote and commit claim durable records."""
        log = self._state.log
        if self._state.members.flushes_log and not log.is_durable and not log.is_flushing:
            log.is_flushing = True
            self._state.emit(effects.FlushLog(log_end_offset=log.end_offset))

    def resume(self, role: Role, flush_ms: int) -> None:
        """Extend the fetch deadline by a flush: the node could not send a fetch meanwhile."""
        if isinstance(role, Follower) and not role.is_leader_gone:
            role.fetch_deadline_ms += flush_ms

    # --- fetches ---

    def maybe_fetch(self, role: Unattached | Follower) -> None:
        """Send a fetch if it is due: to the leader, or to any voter in search of the leader."""
        self._maybe_give_up_leader(role)
        if self._may_fetch(role) and role.fetch_after_ms <= self._state.now_ms:
            self._fetch(role)

    def _maybe_give_up_leader(self, role: Unattached | Follower) -> None:
        """Make a node that cannot stand fetch from other voters when its leader is silent."""
        if not isinstance(role, Follower) or self._state.takes_part:
            return
        if role.fetch_deadline_ms <= self._state.now_ms:
            role.fetch_deadline_ms = self._state.new_fetch_deadline_ms()
            role.is_leader_gone = True
            self._fetch_elsewhere(role)

    def _fetch_elsewhere(self, role: Follower) -> None:
        role.fetch_id, role.fetch_after_ms = None, self._state.now_ms

    def _may_fetch(self, role: Unattached | Follower) -> bool:
        # DEVIATION: Kafka flushes within every append. Here a fetch waits for the flush.
        # docs/decisions/0002-durable-votes.md
        return role.fetch_id is None and bool(self._ring()) and self._is_acknowledgement_true()

    def _ring(self) -> tuple[BrokerId, ...]:
        """Return the nodes to which to send fetches in turn, in search of the leader.

        The voters here may be outdated, so the bootstrap addresses are among them. So is a leader
        that is no voter here: it has removed itself, or the log here lacks the record that adds it.
        The only voter of a quorum searches for no other node: it will lead.
        """
        state = self._state
        known = () if state.is_alone else state.other_voters + state.bootstrap_ids
        leads_unknown = state.leader_id not in {NOBODY, state.node_id, *known}
        return (*known, state.leader_id) if leads_unknown else known

    def _is_acknowledgement_true(self) -> bool:
        """Whether a fetch may be sent: a voter's fetch claims that its whole log is durable."""
        return not self._state.members.flushes_log or self._state.log.is_durable

    def _fetch(self, role: Unattached | Follower) -> None:
        state = self._state
        match role:
            case Follower(is_leader_gone=False, download=Download() as download):
                role.fetch_id = self._snapshots.fetch(download)
                return
            case Follower(is_leader_gone=False):
                max_wait_ms = state.settings.controller_quorum_fetch_max_wait_ms
            case _:
                max_wait_ms = 0
        request = FetchRequest(
            replica_id=state.node_id,
            current_leader_epoch=state.leader_epoch,
            fetch_offset=state.log.end_offset,
            last_fetched_epoch=state.log.last_epoch,
            max_wait_ms=max_wait_ms,
            high_watermark=state.log.high_watermark,
            replica_directory_id=state.directory_id,
            replica_is_new=state.is_new,
            write_ms=state.timeouts.write_ms,
        )
        role.fetch_id = state.send(self._fetch_destination(role), request, wait_ms=max_wait_ms)

    def _fetch_destination(self, role: Unattached | Follower) -> BrokerId:
        """Return the leader; without a leader, or if it is silent, the voters in turn."""
        match role:
            case Follower(is_leader_gone=is_gone) if self._state.takes_part or not is_gone:
                return self._state.leader_id
            case _:
                self._probes += 1
                ring = self._ring()
                return ring[self._probes % len(ring)]

    def _fetch_again_later(self, role: Unattached | Follower) -> None:
        """Schedule the next fetch after a wait.

        A voter without a leader waits longer: the leader will send BeginQuorumEpoch. An observer
        doubles its wait until a fetch succeeds: the voters hold an election meanwhile.
        """
        state = self._state
        backoff_ms = state.settings.controller_quorum_retry_backoff_ms
        election_timeout_ms = state.settings.controller_quorum_election_timeout_ms
        if state.is_voter and isinstance(role, Unattached):
            backoff_ms = election_timeout_ms // 10
        elif not state.takes_part:
            longest_ms = max(backoff_ms, election_timeout_ms // 4)
            backoff_ms = min(backoff_ms << min(self._fruitless_fetches, 16), longest_ms)
            self._fruitless_fetches += 1
        role.fetch_after_ms = state.now_ms + backoff_ms

    def handle_request_failed(self, role: Role, request_id: int) -> None:
        """Schedule another fetch, if the failed request was the fetch in progress."""
        if isinstance(role, Unattached | Follower) and role.fetch_id == request_id:
            role.fetch_id = None
            self._fetch_again_later(role)

    def handle_fetch_response(
        self, role: Role, event: events.ResponseReceived, response: FetchResponse
    ) -> None:
        """Append or truncate; ignore the response to an earlier fetch."""
        if isinstance(role, Unattached | Follower) and role.fetch_id == event.request_id:
            role.fetch_id = None
            is_usable = self._use_fetch_response(event, response)
            if self._is_follower_after(role, is_usable=is_usable):
                self._state.advance_high_watermark(self._committed_here(response))
                self._maybe_take_part(response)

    def handle_fetch_snapshot_response(
        self, role: Role, event: events.ResponseReceived, response: FetchSnapshotResponse
    ) -> None:
        """Write the bytes to the draft; ignore the response to an earlier fetch."""
        if isinstance(role, Unattached | Follower) and role.fetch_id == event.request_id:
            role.fetch_id = None
            self._is_follower_after(role, is_usable=self._snapshots.use(event, response))

    def handle_snapshot_checked(self, role: Role, event: events.SnapshotChecked) -> None:
        """Install a whole snapshot; otherwise fetch from the leader again, later."""
        self._state.log.is_checking = False
        if not isinstance(role, Follower) or role.download is None:
            return
        if role.download.snapshot_id == event.snapshot_id:
            role.download = None
            self._fetch_elsewhere(role)  # the pending response belongs to the finished download
            role.fetch_deadline_ms = self._state.new_fetch_deadline_ms()
            if event.is_whole:
                self._snapshots.install(event.snapshot_id, event.voters)
            else:
                self._fetch_again_later(role)

    def _is_follower_after(self, before: Unattached | Follower, *, is_usable: bool) -> bool:
        """Note the outcome of a fetch; return whether it succeeded, and this node follows."""
        role = self._state.role
        if isinstance(role, Follower) and is_usable:
            role.has_fetched, role.is_leader_gone = True, False
            self._fruitless_fetches = 0
            role.notice_deadline_ms = None
            role.fetch_deadline_ms = self._state.new_fetch_deadline_ms()
            return True
        if role is before:
            self._fetch_again_later(before)
        return False

    def _maybe_take_part(self, response: FetchResponse) -> None:
        """Let a new voter vote once it durably holds all records that the leader has committed."""
        has_all = 0 <= response.high_watermark <= self._state.log.flushed_offset
        continues = response.diverging_epoch is None and response.snapshot_id is None
        if self._state.is_new and has_all and continues:
            self._state.is_new = False
            self._state.persist_election()

    def _use_fetch_response(self, event: events.ResponseReceived, response: FetchResponse) -> bool:
        """Act on a response; False unless it is valid and from the leader."""
        state = self._state
        if not state.learn_from(response):
            return False
        # Only a leader answers without an error; the source may be a bootstrap address.
        is_from_leader = event.source in {state.leader_id, *state.bootstrap_ids}
        if response.error_code is not ErrorCode.NONE or not is_from_leader:
            return False
        if response.snapshot_id is not None:
            return event.records is None and self._snapshots.maybe_begin(response.snapshot_id)
        if response.diverging_epoch is not None:
            return event.records is None and self._maybe_truncate(response.diverging_epoch)
        return event.records is None or self._maybe_append(event.request_id, event.records)

    def _committed_here(self, response: FetchResponse) -> Offset:
        """Return the high watermark that the response gives our log.

        It does not rise after a divergence: the remaining records may diverge, too (KAFKA-14704).
        """
        if response.diverging_epoch is not None or response.snapshot_id is not None:
            return self._state.log.high_watermark
        return min(self._state.log.end_offset, response.high_watermark)

    # --- the log ---

    def _maybe_append(self, request_id: int, records: events.FetchedRecords) -> bool:
        if not self._state.log.is_continued_by(records, self._state.leader_epoch):
            return False
        self._state.emit(
            effects.AppendFetched(
                request_id=request_id,
                base_offset=records.base_offset,
                end_offset=records.end_offset,
            )
        )
        self._state.log.append(records.end_offset, records.epoch_starts, records.voter_sets)
        self._state.follow_voters()
        return True

    def _maybe_truncate(self, diverging: DivergingEpoch) -> bool:
        offset = self._truncation_offset(diverging)
        if not 0 <= offset < self._state.log.end_offset:
            return False  # the offset is not within the log
        self._require_uncommitted(offset)
        self._state.emit(effects.TruncateLog(end_offset=offset))
        self._state.log.truncate(offset)
        self._state.follow_voters()
        return True

    def _require_uncommitted(self, offset: Offset) -> None:
        # Kafka halts here, too (KAFKA-12460): one of the two logs has lost committed records.
        is_uncommitted = offset >= self._state.log.high_watermark
        require(is_uncommitted, "3: committed records are not truncated")

    def _truncation_offset(self, diverging: DivergingEpoch) -> Offset:
        """Return the offset up to which our log may equal the leader's; more rounds may follow."""
        epoch, end_offset = self._state.log.epoch_end(diverging.epoch)
        if epoch == diverging.epoch:
            return min(end_offset, diverging.end_offset)
        return end_offset

    def deadlines(self, role: Role) -> Iterator[int]:
        """Yield the times at which these rules are due, in ms."""
        if isinstance(role, Follower) and not self._state.takes_part:
            yield role.fetch_deadline_ms
        if isinstance(role, Unattached | Follower) and self._may_fetch(role):
            yield role.fetch_after_ms
