"""What one replica does: lead or follow, who is in sync, which records are committed.

It refuses fetches of another leader epoch, of replicas that are not assigned and of processes that
have been replaced. The log's bytes are elsewhere: here it is its two ends and a history of epochs.
`leading.py` and `following.py` hold the rules of each role, `partition_state.py` the invariants.
Sources: KIP-101, 279, 320, 595 (leader epochs), KIP-497, 903, 966 (ISR), KAFKA-13790, 15221.
"""

from collections.abc import Sequence
from typing import assert_never

from quorumlog.broker.partitions.core import effects, events
from quorumlog.broker.partitions.core.effects import Effect
from quorumlog.broker.partitions.core.events import Event
from quorumlog.broker.partitions.core.following import FollowerRules
from quorumlog.broker.partitions.core.leading import LeaderRules, new_followers
from quorumlog.broker.partitions.core.partition_state import NO_EFFECTS
from quorumlog.broker.partitions.core.roles import Follower, Leader, Unassigned
from quorumlog.metadata_quorum.image import PartitionImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, Offset


class Partition(LeaderRules, FollowerRules):
    """One replica of one partition. `now_ms` is a monotonic clock everywhere."""

    def step(self, now_ms: int, event: Event) -> Sequence[Effect]:
        """Take in one fact; return what to do, in order. Raises InvariantViolation: our bug.

        For FollowerFetched the last effect is its AnswerFetch.
        """
        before = self._marks()
        result = self._handle(now_ms, event)
        truncates = isinstance(event, events.LogTruncated | events.LogStartedOver)
        self.check_invariants(before, truncates=truncates)
        return result

    def appended(self, now_ms: int, log_end_offset: Offset) -> Sequence[Effect]:
        """Do as `step` does for RecordsAppended, without the event: the hot path."""
        before = self._marks()
        self.log_end_offset = log_end_offset
        result = self._maybe_commit(now_ms)
        self.check_invariants(before)
        return result

    def _handle(self, now_ms: int, event: Event) -> Sequence[Effect]:  # noqa: C901, PLR0911, PLR0912 - one branch per event
        match event:
            case events.FollowerFetched():
                return self._handle_follower_fetched(now_ms, event)
            case events.LeaderAnswered():
                return self._handle_leader_answered(event)
            case events.RecordsAppended(log_end_offset=log_end_offset):
                self.log_end_offset = log_end_offset
                return self._maybe_commit(now_ms)
            case events.Ticked():
                return self._handle_ticked(now_ms)
            case events.PartitionPublished():
                return self._handle_published(now_ms, event)
            case events.BrokersPublished(brokers=brokers):
                self.brokers = brokers
                return self._maybe_commit(now_ms)
            case events.IsrAnswered():
                return self._handle_isr_answered(now_ms, event)
            case events.LeaderDiverged():
                return self._handle_leader_diverged(event)
            case events.FetchOutOfRange():
                return self._handle_fetch_out_of_range(event)
            case events.LogTruncated(log_end_offset=log_end_offset):
                return self._handle_log_truncated(log_end_offset)
            case events.LogStartedOver(offset=offset):
                return self._handle_log_started_over(offset)
            case events.LogStartRose(log_start_offset=log_start_offset):
                self.log_start_offset = max(self.log_start_offset, log_start_offset)
                return NO_EFFECTS
            case events.LogStartKept(log_start_offset=log_start_offset):
                self._handle_log_start_kept(log_start_offset)
                return NO_EFFECTS
            case events.ReplicaRemoved(error_code=error_code):
                return self._handle_removed(error_code)
            case _:
                assert_never(event)

    def _handle_published(self, now_ms: int, event: events.PartitionPublished) -> Sequence[Effect]:
        image, self.brokers = event.image, event.brokers
        if image.partition_epoch < self.partition_epoch or image.leader_epoch < self.leader_epoch:
            return NO_EFFECTS  # the answer to our AlterPartition was faster than the log
        is_new_leadership = image.leader_epoch > self.leader_epoch
        is_news = image.partition_epoch > self.partition_epoch
        self.min_insync_replicas = min(event.min_insync_replicas, len(image.replicas))
        self.leader_epoch, self.partition_epoch = image.leader_epoch, image.partition_epoch
        self.leader_id = image.leader_id
        if is_new_leadership or isinstance(self.role, Unassigned):
            return self._lead_or_follow(now_ms, image)
        if isinstance(self.role, Leader) and is_news:
            self._take_committed_isr(self.role, frozenset(image.isr))
            known = self.role.followers
            fresh = new_followers(
                image.replicas, frozenset(), leader_id=self.broker_id, now_ms=now_ms
            )
            self.role.followers = {who: known.get(who, fresh[who]) for who in fresh}
        return self._maybe_commit(now_ms)

    def _lead_or_follow(self, now_ms: int, image: PartitionImage) -> Sequence[Effect]:
        """Begin a leader epoch. A leader that leads on keeps who waits: its log stays whole."""
        if image.leader_id == self.broker_id:
            return self._lead(now_ms, image)
        was_leader = isinstance(self.role, Leader)
        self._become(Follower(leader_id=image.leader_id))
        ordered: list[Effect] = []
        if was_leader:
            refusal = ErrorCode.NOT_LEADER_OR_FOLLOWER
            ordered.append(effects.FailWaiting(error_code=refusal))
            ordered.append(effects.AnnounceResignation(leader_epoch=self.leader_epoch))
        if image.leader_id == NO_LEADER:
            return [*ordered, effects.StopFetching()]
        fetching = effects.StartFetching(leader_id=image.leader_id, leader_epoch=self.leader_epoch)
        return [*ordered, fetching]

    def _lead(self, now_ms: int, image: PartitionImage) -> Sequence[Effect]:
        isr, start = frozenset(image.isr), self.log_end_offset
        followers = new_followers(image.replicas, isr, leader_id=self.broker_id, now_ms=now_ms)
        self._become(Leader(epoch_start=start, isr=isr, maximal_isr=isr, followers=followers))
        return [
            effects.StopFetching(),
            # Even if no record will follow: who truncates must find this epoch (KAFKA-7415).
            effects.AssignEpoch(leader_epoch=self.leader_epoch, start_offset=start),
            effects.AnnounceLeadership(leader_epoch=self.leader_epoch),
            *self._maybe_commit(now_ms),
        ]

    def _handle_removed(self, error_code: ErrorCode) -> Sequence[Effect]:
        if isinstance(self.role, Unassigned):
            return NO_EFFECTS
        was_leader = isinstance(self.role, Leader)
        self._become(Unassigned())
        self.leader_id = NO_LEADER
        ordered: list[Effect] = [
            effects.StopFetching(),
            effects.FailWaiting(error_code=error_code),
        ]
        if was_leader:
            ordered.append(effects.AnnounceResignation(leader_epoch=self.leader_epoch))
        return ordered
