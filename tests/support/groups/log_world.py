"""One coordinator of groups whose log is rewritten: commits, transactions, refusals, fail-overs.

A replica may have any log start that its leader had before. Invariants:
  a. The log from any start that was let go of gives the state of the whole history, up to wherever
     the log may be cut: nothing that was committed is lost, and no older value wins.
  b. The rules of groups in `chaos/simulation/oracles`, which read the committed log, the requests
     and the answers. Here the order of all events is certain, so more must hold: OffsetFetch
     returns the newest offset, and an acknowledged marker is in the log.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace as Message
from typing import Any

from quorumlog.broker.groups.core import events
from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.effects import (
    AdvanceLogStart,
    AnswerRequest,
    AppendRecords,
    MakeTarget,
    MatchTopics,
    VerifyTransaction,
    WriteMarker,
)
from quorumlog.broker.groups.core.offsets import CommittedState
from quorumlog.broker.groups.core.records import GroupRecord, LogRecord, OffsetRecord
from quorumlog.broker.groups.core.requests import (
    CommitOffsets,
    CommitResult,
    CommittedOffset,
    CommitTransactionalOffsets,
    CompleteTransaction,
    DeleteGroup,
    Request,
    TransactionalRequest,
)
from quorumlog.broker.groups.core.rewrite import RewriteLimits
from quorumlog.broker.groups.core.rules import GROUP_RULES, GroupRules
from quorumlog.broker.settings import BrokerSettings
from quorumlog.chaos.simulation.oracles.exchanges import (
    OFFSET_COMMIT,
    OFFSET_FETCH,
    TXN_OFFSET_COMMIT,
    Exchange,
)
from quorumlog.chaos.simulation.oracles.group_members import GroupMembers
from quorumlog.chaos.simulation.oracles.group_offsets import GroupOffsets
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_PRODUCER_ID, Offset, TopicPartition
from quorumlog.wire.codec.transaction_markers import TransactionMarker
from tests.support.groups.offset_log import (
    Entry,
    InTransaction,
    Producer,
    apply,
    exchange_of,
    replay,
    state_of,
    topics_of,
)

LIMITS = RewriteLimits(records_min=20, live_factor=3, slice_records=3, slice_bytes=400)
SETTINGS = BrokerSettings(
    group_initial_rebalance_delay_ms=100,
    group_min_session_timeout_ms=10,
    offsets_retention_minutes=1,
    offsets_retention_check_interval_ms=10_000,
)
GROUPS = ("g1", "g2", "g3")
PARTITIONS = tuple(TopicPartition(topic, index) for topic in ("s", "t") for index in range(3))
STEPS = 400


class Loss(Exception):
    """A committed value is gone, or an older value came back."""


@dataclass(frozen=True)
class Written:
    """A write that has not ended: its records are [first, next) of the log, or were refused."""

    write_id: int
    next_offset: int
    is_refused: bool


def entries_of(effect: AppendRecords[LogRecord]) -> list[Entry]:
    """Return the log entries of a write."""
    if effect.producer_id == NO_PRODUCER_ID:
        return [*effect.records]
    producer_id, epoch = effect.producer_id, effect.producer_epoch
    offsets = [one for one in effect.records if isinstance(one, OffsetRecord)]
    return [InTransaction(producer_id, epoch, one) for one in offsets]


class LogWorld:
    def __init__(
        self, seed: int, rules: GroupRules = GROUP_RULES, *, is_transactional: bool = False
    ) -> None:
        self.rules = rules
        self.random = Random(seed)
        self.is_transactional = is_transactional
        self.history: list[Entry] = []  # by offset, with all that was let go of
        self.ends = [0]  # where writes end
        self.high_watermark = self.now_ms = self.offsets = 0
        self.starts = [0]  # of this log, in any replica
        self.request_id = self.names = 0
        self.asked: dict[int, Request | TransactionalRequest] = {}
        self.commits: dict[int, tuple[Exchange, Mapping[TopicPartition, CommittedOffset]]] = {}
        self.producers = [Producer(1000 + index, bumps=index == 0) for index in range(3)]
        self.verified: list[events.TransactionVerified] = []
        self.sent: list[CommitTransactionalOffsets] = []
        self.transactions_committed = 0
        self.refuses = self.has_rewritten = False
        self.truth = CommittedState()  # the state of all committed records
        self.members_oracle = GroupMembers(lambda _topic_id: None, self.violated)
        self.offsets_oracle = GroupOffsets(
            self.members_oracle, lambda _topic_id: None, self.violated
        )
        self.lead(0)

    def violated(self, rule: str) -> None:
        raise Loss(rule)

    # --- The coordinator and its log ---

    def lead(self, start: int) -> None:
        """All that is there is committed by the time it is loaded."""
        self.commit_up_to(len(self.history))
        self.writes: deque[Written] = deque()
        self.asked.clear()
        self.commits.clear()
        self.coordinator = GroupCoordinator(SETTINGS, LIMITS, rules=self.rules)
        for log_offset, entry in enumerate(self.history[start:], start):
            replay(self.coordinator, log_offset, entry)
        if self.coordinator.committed != self.truth:
            raise Loss(f"loaded from {start}")
        self.coordinator.loaded(self.now_ms, start, len(self.history))
        for group_id, stored in self.truth.groups.items():
            group = self.coordinator.groups.get(group_id)
            if group is None or group.generation_id != stored.generation_id:
                raise Loss(f"{group_id} is loaded as {group}, and is {stored}")
        self.step(events.Ticked())

    def commit_up_to(self, high_watermark: int) -> None:
        for log_offset in range(self.high_watermark, high_watermark):
            entry = self.history[log_offset]
            apply(self.truth, log_offset, entry)
            match entry:
                case TransactionMarker():
                    self.offsets_oracle.ends(0, entry)
                case InTransaction(producer_id=producer_id, record=record):
                    self.offsets_oracle.read(0, record, producer_id)
                case OffsetRecord():
                    self.offsets_oracle.read(0, entry, NO_PRODUCER_ID)
                case GroupRecord():
                    self.members_oracle.read(entry)
                case _:
                    raise ValueError("no consumer group is here")
        self.members_oracle.batch_ends()
        self.high_watermark = high_watermark

    def step(self, event: events.Event) -> None:
        for effect in self.coordinator.step(self.now_ms, event):
            match effect:
                case AppendRecords(write_id=write_id, producer_epoch=epoch):
                    is_old = epoch < self.epoch_of(effect.producer_id)
                    self.append(write_id, entries_of(effect), is_old=is_old)
                case WriteMarker(write_id=write_id, marker=marker):
                    self.append(write_id, [marker])
                case VerifyTransaction(request_id=request_id, request=request):
                    error_code = self.producer(request.producer_id).verify(request)
                    event = events.TransactionVerified(
                        request_id=request_id, request=request, error_code=error_code
                    )
                    self.verified.append(event)
                case AdvanceLogStart(offset=offset):
                    self.let_go(offset)
                case MakeTarget() | MatchTopics():
                    raise ValueError("no consumer group is here")
                case AnswerRequest(request_id=request_id, result=result):
                    self.hear(request_id, self.asked.pop(request_id), result)
        self.coordinator.check_progress()

    def append(self, write_id: int, entries: list[Entry], *, is_old: bool = False) -> None:
        """Append, unless the ISR is too small or the producer has a newer epoch by now."""
        is_refused = self.refuses or is_old
        if not is_refused:
            self.history += entries
            self.ends.append(len(self.history))
        self.writes.append(Written(write_id, len(self.history), is_refused))

    def epoch_of(self, producer_id: int) -> int:
        """Return the epoch of the producer in the log."""
        own = [
            one.producer_epoch
            for one in self.history
            if isinstance(one, InTransaction | TransactionMarker) and one.producer_id == producer_id
        ]
        return max(own, default=-1)

    def producer(self, producer_id: int) -> Producer:
        return self.producers[producer_id - 1000]

    def let_go(self, offset: int) -> None:
        self.has_rewritten = True
        if offset > self.high_watermark:
            raise Loss("what is not committed")
        self.starts.append(offset)
        for end in self.ends:
            if end >= self.high_watermark:
                rewritten, all_of_it = self.history[offset:end], self.history[:end]
                if state_of(rewritten, offset) != state_of(all_of_it):
                    raise Loss(f"[{offset}, {end}) does not tell what [0, {end}) does")

    def hear(
        self, request_id: int, request: Request | TransactionalRequest, result: object
    ) -> None:
        if isinstance(result, CommitResult) and request_id in self.commits:
            commit, offsets = self.commits.pop(request_id)
            commit.response = Message(topics=topics_of(offsets, result.partitions))
            self.offsets_oracle.committed(commit)
        if isinstance(request, CompleteTransaction) and result is ErrorCode.NONE:
            self.hear_of_marker(request.marker)

    def hear_of_marker(self, marker: TransactionMarker) -> None:
        if not any(one is marker for one in self.history[: self.high_watermark]):
            raise Loss(f"{marker} is acknowledged before it is committed")
        producer = self.producer(marker.producer_id)
        if producer.ending is marker:  # else it was answered already: this copy was late
            self.transactions_committed += marker.commits
            producer.ending = None

    def ask(self, request: Request | TransactionalRequest) -> None:
        self.request_id += 1
        self.asked[self.request_id] = request
        if isinstance(request, CommitOffsets | CommitTransactionalOffsets):
            self.note_commit(request)
        event: Any = events.RequestReceived(request_id=self.request_id, request=request)
        self.step(event)

    def note_commit(self, request: CommitOffsets | CommitTransactionalOffsets) -> None:
        is_plain = isinstance(request, CommitOffsets)
        commit = exchange_of(
            OFFSET_COMMIT if is_plain else TXN_OFFSET_COMMIT,
            self.offsets_oracle.changes,
            group_id=request.group_id,
            member_id=request.member_id,
            generation_id_or_member_epoch=request.generation_id,
            topics=topics_of(request.offsets, dict.fromkeys(request.offsets, 0)),
        )
        self.commits[self.request_id] = commit, request.offsets
        if is_plain:
            self.offsets_oracle.asked(commit)

    # --- Steps ---

    def commit(self, member_id: str = "", generation_id: int = -1, **changes: Any) -> None:
        offsets = {}
        for where in self.random.sample(PARTITIONS, self.random.choice((1, 1, 2))):
            self.offsets += 1
            offsets[where] = CommittedOffset(offset=self.offsets)
        values = {"group_id": self.random.choice(GROUPS), "offsets": offsets, **changes}
        self.ask(CommitOffsets(member_id=member_id, generation_id=generation_id, **values))

    def commit_in_transaction(self) -> None:
        """The producer gives up its earlier request."""
        producer = self.random.choice(self.producers)
        if producer.ending is not None:
            return
        producer.is_open = producer.is_open or not producer.bumps
        self.offsets += 1
        offsets = {self.random.choice(PARTITIONS): CommittedOffset(offset=self.offsets)}
        request = CommitTransactionalOffsets(
            group_id=self.random.choice(GROUPS),
            transactional_id=str(producer.producer_id),
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            adds=producer.bumps,
            offsets=offsets,
        )
        self.sent.append(request)
        self.ask(request)

    def straggle(self) -> None:
        """A commit comes again that its producer has given up."""
        if self.sent:
            self.ask(self.random.choice(self.sent[-5:]))

    def hear_of_a_transaction(self) -> None:
        if self.verified:
            self.step(self.verified.pop(self.random.randrange(len(self.verified))))

    def end_transaction(self) -> None:
        """Its marker may be sent again before it is answered."""
        request = self.random.choice(self.producers).end(self.random)
        if request is not None:
            self.ask(request)

    def end_write(self) -> None:
        if self.writes:
            write = self.writes.popleft()
            if write.is_refused:
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
                self.step(events.WriteEnded(write_id=write.write_id, error_code=code))
            else:
                self.commit_up_to(write.next_offset)
                next_offset = Offset(write.next_offset)
                self.step(events.WriteEnded(write_id=write.write_id, next_offset=next_offset))
            self.check()

    def refuse(self) -> None:
        """The ISR shrinks below min.insync.replicas, or grows again."""
        self.refuses = not self.refuses and self.random.random() < 0.3

    def delete(self) -> None:
        if self.random.random() < 0.5:
            self.ask(DeleteGroup(group_id=self.random.choice(GROUPS)))
        else:
            self.step(events.TopicsDeleted(topics=("s",)))

    def let_time_pass(self, elapsed_ms: int | None = None) -> None:
        """Tick at each deadline, as a driver does."""
        until_ms = self.now_ms + (elapsed_ms or self.random.choice((1, 101, 350, 5000, 30_000)))
        while (deadline_ms := self.coordinator.next_deadline_ms) <= until_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.step(events.Ticked())
        self.now_ms = until_ms
        self.step(events.Ticked())

    def fail_over(self) -> None:
        """To a replica with all committed records, perhaps more, from any earlier log start."""
        kept = self.random.choice([end for end in self.ends if end >= self.high_watermark])
        del self.history[kept:]
        self.ends = [end for end in self.ends if end <= kept]
        self.refuses = False
        self.lead(self.random.choice(self.starts))

    # --- Invariants ---

    def check(self) -> None:
        if self.coordinator.committed != self.truth:
            raise Loss("the coordinator holds something else than its log")
        for group_id in GROUPS:
            offsets = self.coordinator.fetch_offsets(group_id, PARTITIONS)
            unstable = self.coordinator.transactional.unstable(group_id)
            for is_stable, shown in ((False, unstable), (True, offsets.keys() - unstable)):
                fetch = exchange_of(
                    OFFSET_FETCH,
                    self.offsets_oracle.changes,
                    group_id=group_id,
                    require_stable=is_stable,
                )
                topics = topics_of(offsets, dict.fromkeys(shown, 0))
                fetch.response = Message(groups=[], error_code=ErrorCode.NONE, topics=topics)
                self.offsets_oracle.fetched(fetch, is_current=True)
        for one in self.history[self.high_watermark :]:
            if isinstance(one, InTransaction):
                group_id, where = one.record.group_id, one.record.topic_partition
                if where not in self.coordinator.transactional.unstable(group_id):
                    raise Loss(f"{where} of {group_id} is not stable")

    def weights(self) -> dict[Callable[[], None], float]:
        choice = self.random.choice
        weights: dict[Callable[[], None], float] = {
            self.commit: 8,
            self.end_write: choice((6, 10)),
            self.delete: 0.2,
            self.let_time_pass: 0.3,
            self.refuse: choice((0, 0.5)),
            self.fail_over: choice((0, 0.3)),
        }
        if self.is_transactional:
            weights |= {
                self.commit_in_transaction: choice((2, 6)),
                self.straggle: choice((0, 1)),
                self.hear_of_a_transaction: choice((2, 6)),
                self.end_transaction: choice((0.5, 3)),
            }
        return weights

    def run(self) -> None:
        weights = self.weights()
        for happening in self.random.choices([*weights], [*weights.values()], k=STEPS):
            happening()

    def settle(self) -> None:
        """Let all that is under way end; then no transaction is open."""
        self.refuses = False
        for producer in self.producers:
            while (marker := producer.end(self.random)) is not None:
                self.ask(marker)
                while self.writes:
                    self.end_write()
            while self.verified:
                self.hear_of_a_transaction()
        while self.writes:
            self.end_write()
        for start in self.starts:
            if state_of(self.history[start:], start) != state_of(self.history):
                raise Loss(f"a load from {start} would not tell all")
        if any(self.coordinator.transactional.unstable(group_id) for group_id in GROUPS):
            raise Loss("a transaction goes on that nothing ends")
