"""What a follower does: find its leader, fetch from it, and drop what the leader does not have.

It refuses records that do not continue its log or come from a newer epoch than it follows, and
never drops what is committed. Sources: KIP-595 (Fetch, Begin- and EndQuorumEpoch);
KAFKA-12460, KAFKA-18723.
"""

from collections.abc import Iterator
from itertools import pairwise

from quorumlog.invariants import require
from quorumlog.metadata_quorum.core import effects, events
from quorumlog.metadata_quorum.core.elections import Voting
from quorumlog.metadata_quorum.core.messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    DivergingEpoch,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchRequest,
    FetchResponse,
)
from quorumlog.metadata_quorum.core.roles import Follower, Prospective, Unattached
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset


class Following(Voting):
    """The rules of a follower, voter or observer."""

    # --- what a leader tells ---

    def _handle_begin_quorum_epoch(self, request_id: int, request: BeginQuorumEpochRequest) -> None:
        error_code = self._leadership_refusal(request.leader_id, request.leader_epoch)
        if error_code is ErrorCode.NONE:
            self._learn(request.leader_epoch, request.leader_id)
            if isinstance(self.role, Prospective):  # it stood although the leader is there
                self._become_follower(self.leader_epoch, self.leader_id)
        response = BeginQuorumEpochResponse(
            error_code=error_code, leader_id=self.leader_id, leader_epoch=self.leader_epoch
        )
        self._emit(effects.SendResponse(request_id=request_id, response=response))

    def _handle_end_quorum_epoch(self, request_id: int, request: EndQuorumEpochRequest) -> None:
        error_code = self._leadership_refusal(request.leader_id, request.leader_epoch)
        if error_code is ErrorCode.NONE:
            self._learn(request.leader_epoch, request.leader_id)
            if isinstance(self.role, Follower):
                # DEVIATION: Kafka's followers go on refusing pre-votes until they stand themselves.
                # docs/decisions/0009-voters-that-lost-their-leader-help-each-other.md
                self.role.is_leader_gone = True
                wait_ms = self._successor_wait_ms(request.preferred_candidates)
                deadline_ms = min(self.role.fetch_deadline_ms, self._now_ms + wait_ms)
                self.role.fetch_deadline_ms = deadline_ms
        response = EndQuorumEpochResponse(
            error_code=error_code, leader_id=self.leader_id, leader_epoch=self.leader_epoch
        )
        self._emit(effects.SendResponse(request_id=request_id, response=response))

    def _leadership_refusal(self, leader_id: BrokerId, leader_epoch: Epoch) -> ErrorCode:
        is_other_voter = leader_id in self.voters and leader_id != self.node_id
        if not is_other_voter or not self._is_within_reach(leader_epoch):
            return ErrorCode.INVALID_REQUEST
        if leader_epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.NONE

    def _successor_wait_ms(self, preferred_candidates: tuple[BrokerId, ...]) -> int:
        """Wait the longer, the less preferred: 0 if first, then doubling up to max/2; else max."""
        max_ms = self.settings.controller_quorum_election_backoff_max_ms
        if self.node_id not in preferred_candidates:
            return max_ms
        position = preferred_candidates.index(self.node_id)
        return max_ms >> (len(preferred_candidates) - position) if position else 0

    def _handle_peer_process_died(self, event: events.PeerProcessDied) -> None:
        """Do not wait for the fetch timeout if no process listens where the leader was.

        Voters wait a little, each a different time by its rank among those that are left, so that
        two do not split the vote. A fetch answer from the leader cancels it.
        """
        # DEVIATION: Kafka waits for the fetch timeout.
        # docs/decisions/0004-a-closed-connection-is-news.md
        # docs/decisions/0009-voters-that-lost-their-leader-help-each-other.md
        is_enabled = self.settings.controller_quorum_dead_process_notice_enable
        if not (is_enabled and isinstance(self.role, Follower) and event.node_id == self.leader_id):
            return
        self.role.is_leader_gone = True
        if self._takes_part and self.role.notice_deadline_ms is None:
            stagger_ms = self.settings.controller_quorum_dead_process_stagger_ms
            rank = [voter for voter in self.voters if voter != self.leader_id].index(self.node_id)
            self.role.notice_deadline_ms = self._now_ms + stagger_ms * rank + stagger_ms // 3
        elif not self._takes_part:
            self._look_elsewhere()

    # --- fetching ---

    def _follow(self) -> None:
        """Flush, then fetch: the fetch offset says what is durable here."""
        is_silent = isinstance(self.role, Follower) and self._is_silent(self.role)
        if is_silent and isinstance(self.role, Follower):
            self.role.fetch_deadline_ms = self._fetch_timeout_ms()
            self.role.is_leader_gone = True
            self._look_elsewhere()
        if self.is_voter and not self.is_log_durable and not self._is_flushing:
            self._is_flushing = True
            self._emit(effects.FlushLog(log_end_offset=self.log_end_offset))
        if self._may_fetch() and self._fetch_after_ms <= self._now_ms:
            self._fetch()

    def _is_silent(self, role: Follower) -> bool:
        """Whether one that cannot stand waits in vain: it asks around."""
        return not self._takes_part and role.fetch_deadline_ms <= self._now_ms

    def _look_elsewhere(self) -> None:
        self._fetch_id, self._fetch_after_ms = None, self._now_ms

    def _fetch_timeout_ms(self) -> int:
        return self._now_ms + self.settings.controller_quorum_fetch_timeout_ms

    def _may_fetch(self) -> bool:
        # DEVIATION: Kafka flushes within every append. Here a fetch waits for the flush.
        # docs/decisions/0010-what-a-vote-or-a-fetch-claims-is-on-the-disk.md
        can_fetch = isinstance(self.role, Follower) or (
            isinstance(self.role, Unattached) and bool(self._others)
        )
        return can_fetch and self._fetch_id is None and self._is_acknowledgement_true()

    def _is_acknowledgement_true(self) -> bool:
        """Whether a fetch may be sent: from a voter it says that all below is durable."""
        return not self.is_voter or self.is_log_durable

    def _fetch(self) -> None:
        is_led = isinstance(self.role, Follower) and not self.role.is_leader_gone
        max_wait_ms = self.settings.controller_quorum_fetch_max_wait_ms if is_led else 0
        request = FetchRequest(
            replica_id=self.node_id,
            current_leader_epoch=self.leader_epoch,
            fetch_offset=self.log_end_offset,
            last_fetched_epoch=self.last_epoch,
            max_wait_ms=max_wait_ms,
            high_watermark=self.high_watermark,
        )
        self._fetch_id = self._send(self._fetch_destination(), request, wait_ms=max_wait_ms)

    def _fetch_destination(self) -> BrokerId:
        """Find whom to ask: the leader; without one, or if it is silent, the voters in turn."""
        if isinstance(self.role, Follower) and (self._takes_part or not self.role.is_leader_gone):
            return self.leader_id
        self._probed += 1
        return self._others[self._probed % len(self._others)]

    def _fetch_again_later(self) -> None:
        """Wait before the next fetch.

        A voter without a leader waits longer: the leader will tell it. An observer waits twice as
        long each time until it has a leader: those that it asks hold an election meanwhile.
        """
        backoff_ms = self.settings.controller_quorum_retry_backoff_ms
        election_timeout_ms = self.settings.controller_quorum_election_timeout_ms
        if self.is_voter and isinstance(self.role, Unattached):
            backoff_ms = election_timeout_ms // 10
        elif not self._takes_part:
            longest_ms = max(backoff_ms, election_timeout_ms // 4)
            backoff_ms = min(backoff_ms << min(self._probes_in_vain, 16), longest_ms)
            self._probes_in_vain += 1
        self._fetch_after_ms = self._now_ms + backoff_ms

    def _handle_fetch_failed(self, request_id: int) -> None:
        if request_id == self._fetch_id:
            self._fetch_id = None
            self._fetch_again_later()

    def _handle_fetch_response(
        self, event: events.ResponseReceived, response: FetchResponse
    ) -> None:
        if event.request_id != self._fetch_id:
            return  # of an older epoch, or given up
        self._fetch_id = None
        before = self.role
        if self._use_fetch_response(event, response) and isinstance(self.role, Follower):
            self.role.has_fetched, self.role.is_leader_gone = True, False
            self._probes_in_vain = 0
            self.role.notice_deadline_ms = None
            self.role.fetch_deadline_ms = self._fetch_timeout_ms()
            self._advance_high_watermark(self._committed_here(response))
            self._maybe_take_part(response)
        elif self.role is before:
            self._fetch_again_later()

    def _maybe_take_part(self, response: FetchResponse) -> None:
        """Let a new voter vote once it holds, durably, all that a leader knows to be committed."""
        has_all = 0 <= response.high_watermark <= self.flushed_offset
        if self.is_new and has_all and response.diverging_epoch is None:
            self.is_new = False
            self._persist_election()

    def _use_fetch_response(self, event: events.ResponseReceived, response: FetchResponse) -> bool:
        """Act on a response; False unless it came from the leader and made sense."""
        if response.error_code is ErrorCode.UNKNOWN_LEADER_EPOCH:
            return False  # it is behind
        if not self._learn(response.leader_epoch, response.leader_id):
            return False
        if response.error_code is not ErrorCode.NONE or event.source != self.leader_id:
            return False
        return self._take(event, response)

    def _committed_here(self, response: FetchResponse) -> Offset:
        """How much of our log is known to be committed.

        Nothing more after a divergence: what is left may diverge, too (KAFKA-14704).
        """
        if response.diverging_epoch is not None:
            return self.high_watermark
        return min(self.log_end_offset, response.high_watermark)

    def _take(self, event: events.ResponseReceived, response: FetchResponse) -> bool:
        """Append or truncate; False if the response makes no sense."""
        records = event.records
        if response.diverging_epoch is not None:
            return records is None and self._maybe_truncate(response.diverging_epoch)
        if records is None:
            return True
        if not self._continues_log(records):
            return False
        self._emit(
            effects.AppendFetched(
                request_id=event.request_id,
                base_offset=records.base_offset,
                end_offset=records.end_offset,
            )
        )
        for epoch, start_offset in records.epoch_starts:
            if epoch > self.last_epoch:
                self.epochs = self.epochs.assigned(epoch, start_offset)
        self.log_end_offset = records.end_offset
        return True

    def _continues_log(self, records: events.FetchedRecords) -> bool:
        """Whether they start at our end, and their epochs rise to ours at most (KAFKA-18723)."""
        starts = records.epoch_starts
        if records.base_offset != self.log_end_offset or not starts:
            return False
        end = (Epoch(self.leader_epoch + 1), records.end_offset)
        is_rising = all(
            earlier[0] < later[0] and earlier[1] < later[1]
            for earlier, later in pairwise([*starts, end])
        )
        first_epoch, first_offset = starts[0]
        return (
            is_rising
            and first_offset == records.base_offset
            and first_epoch >= max(self.last_epoch, 1)
        )

    def _maybe_truncate(self, diverging: DivergingEpoch) -> bool:
        offset = self._truncation_offset(diverging)
        if not 0 <= offset < self.log_end_offset:
            return False  # it would lead nowhere
        self._require_uncommitted(offset)
        require(not self._is_flushing, "10: nothing is truncated while a flush is under way")
        self._emit(effects.TruncateLog(end_offset=offset))
        self.epochs = self.epochs.truncated_from_end(offset)
        self.log_end_offset = offset
        self.flushed_offset = min(self.flushed_offset, offset)
        return True

    def _require_uncommitted(self, offset: Offset) -> None:
        # Kafka halts here, too (KAFKA-12460): one of the two logs has lost what was committed.
        require(offset >= self.high_watermark, "3: what is committed is not truncated")

    def _truncation_offset(self, diverging: DivergingEpoch) -> Offset:
        """Where our log may still be as the leader's; several rounds may be needed."""
        epoch, end_offset = self._epoch_end(diverging.epoch)
        if epoch == diverging.epoch:
            return min(end_offset, diverging.end_offset)
        return end_offset

    def _handle_log_flushed(self, event: events.LogFlushed) -> None:
        require(self._is_flushing, "a flush was ordered")
        require(event.flushed_offset <= self.log_end_offset, "what was flushed was in the log")
        self._is_flushing = False
        self.flushed_offset = max(self.flushed_offset, event.flushed_offset)

    def _deadlines(self) -> Iterator[int]:
        yield from super()._deadlines()
        if isinstance(self.role, Follower) and not self._takes_part:
            yield self.role.fetch_deadline_ms
        if self._may_fetch():
            yield self._fetch_after_ms
