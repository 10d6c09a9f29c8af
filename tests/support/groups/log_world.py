"""One coordinator of groups whose log is rewritten: commits, transactions, refusals, fail-overs.

A replica may have any log start that its leader had before. Invariants:
  a. The log from any start that was let go of gives the state of the whole history, up to wherever
     the log may be cut: nothing that was committed is lost, and no older value wins.
  b. An acknowledged offset is in that state, or a newer one is. The offsets that are shown and
     those that are unstable are as the model has them.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
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
from quorumlog.broker.groups.core.records import LogRecord, OffsetRecord
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
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_PRODUCER_ID, Offset, TopicPartition
from quorumlog.wire.codec.transaction_markers import TransactionMarker
from tests.support.groups.offset_log import (
    Entry,
    InTransaction,
    OffsetsModel,
    Producer,
    Where,
    apply,
    replay,
    state_of,
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
        self.producers = [Producer(1000 + index, bumps=index == 0) for index in range(3)]
        self.verified: list[events.TransactionVerified] = []
        self.sent: list[CommitTransactionalOffsets] = []
        self.transactions_committed = 0
        self.acknowledged: dict[tuple[str, TopicPartition], int] = {}
        self.refuses = self.has_rewritten = False
        self.truth = CommittedState()  # the state of all committed records
        self.model = OffsetsModel()  # the same of offsets
        self.logged: dict[int, int] = {}  # the value of a commit -> the offset of its record
        self.lead(0)

    # --- The coordinator and its log ---

    def lead(self, start: int) -> None:
        """All that is there is committed by the time it is loaded."""
        self.commit_up_to(len(self.history))
        self.writes: deque[Written] = deque()
        self.asked.clear()
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
            self.model.apply(log_offset, entry)
            record = entry.record if isinstance(entry, InTransaction) else entry
            if isinstance(record, OffsetRecord) and record.committed is not None:
                value = record.committed.offset
                is_first = value not in self.logged or record is not entry
                self.logged[value] = log_offset if is_first else self.logged[value]  # not a slice's
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
        match request, result:
            case CommitOffsets(group_id=group_id, offsets=offsets), CommitResult(partitions=codes):
                for where, code in codes.items():
                    if code is ErrorCode.NONE:
                        self.acknowledge((group_id, where), offsets[where].offset)
            case CommitTransactionalOffsets() as commit, CommitResult(partitions=codes):
                acknowledged = self.producer(commit.producer_id).acknowledged
                for where, code in codes.items():
                    if code is ErrorCode.NONE:
                        acknowledged[commit.group_id, where] = commit.offsets[where].offset
            case CompleteTransaction(marker=marker), ErrorCode.NONE:
                self.hear_of_marker(marker)
            case _:
                pass

    def hear_of_marker(self, marker: TransactionMarker) -> None:
        producer = self.producer(marker.producer_id)
        if producer.ending is not marker:
            return  # it was answered already: this copy was late
        self.transactions_committed += marker.commits
        producer.ending = None
        for key, offset in producer.acknowledged.items() if marker.commits else ():
            self.acknowledge(key, offset)
        producer.acknowledged.clear()

    def acknowledge(self, where: Where, offset: int) -> None:
        """Record an acknowledgement; the newest record counts, not the newest response."""
        if offset not in self.logged:
            raise Loss(f"{offset} is acknowledged before it is committed")
        known = self.acknowledged.get(where, offset)
        self.acknowledged[where] = max(known, offset, key=self.logged.__getitem__)

    def ask(self, request: Request | TransactionalRequest) -> None:
        self.request_id += 1
        self.asked[self.request_id] = request
        event: Any = events.RequestReceived(request_id=self.request_id, request=request)
        self.step(event)

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
        shown: dict[Where, int] = {}
        for group_id in GROUPS:
            offsets = self.coordinator.fetch_offsets(group_id, None)
            shown |= {(group_id, where): one.offset for where, one in offsets.items() if one}
        if shown != self.model.shown:
            raise Loss(f"{shown} is shown, {self.model.shown} is in the log")
        under_way = [
            one.record
            for one in self.history[self.high_watermark :]
            if isinstance(one, InTransaction)
        ]
        unstable = self.model.unstable | {(one.group_id, one.topic_partition) for one in under_way}
        for group_id, where in unstable:
            if where not in self.coordinator.transactional.unstable(group_id):
                raise Loss(f"{where} of {group_id} is not stable")
        for key, offset in self.acknowledged.items():
            held = shown.get(key)
            if held is not None and self.logged[held] < self.logged[offset]:
                raise Loss(f"{key} has {held}, and {offset} was committed")

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
        if self.model.pending or any(self.coordinator.transactional.unstable(g) for g in GROUPS):
            raise Loss("a transaction goes on that nothing ends")
