"""Groups whose log is rewritten, under random commits, refusals and fail-overs; with planted bugs.

A replica may have any log start that its leader had before. What must hold:
  a. The log from any start that was let go of gives the state that the whole history gives, up to
     wherever the log may be cut: nothing that was committed is lost, and no older value wins.
  b. What a client was told is committed is in that state, or something newer is.
  c. The log holds few records more than are live, once nothing is under way.
"""

from collections import deque
from dataclasses import dataclass
from random import Random

import pytest

from quorumlog.broker.groups.core import effects, events, rewrite
from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.effects import AdvanceLogStart, AnswerRequest, AppendRecords
from quorumlog.broker.groups.core.group_outbox import GroupOutbox
from quorumlog.broker.groups.core.offsets import CommittedState
from quorumlog.broker.groups.core.records import Key, LogRecord
from quorumlog.broker.groups.core.requests import (
    CommitOffsets,
    CommitResult,
    CommittedOffset,
    DeleteGroup,
    Join,
    JoinResult,
    Leave,
    LeavingMember,
    Request,
    Sync,
)
from quorumlog.broker.groups.core.rewrite import Rewrite, RewriteLimits
from quorumlog.broker.settings import BrokerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Offset, TopicPartition

LIMITS = RewriteLimits(records_min=20, live_factor=3, slice_records=3, slice_bytes=400)
SETTINGS = BrokerSettings(
    group_initial_rebalance_delay_ms=0,
    group_min_session_timeout_ms=10,
    offsets_retention_minutes=1,
    offsets_retention_check_interval_ms=10_000,
)
GROUPS = ("g1", "g2", "g3")
PARTITIONS = tuple(TopicPartition(topic, index) for topic in ("s", "t") for index in range(3))
STEPS = 400
SEEDS = 60


class Loss(Exception):
    """What was committed is gone, or an older value came back."""


@dataclass(frozen=True)
class Written:
    """A write that has not ended: its records are [first, next) of the log, or were refused."""

    write_id: int
    next_offset: int
    is_refused: bool


def state_of(records: list[LogRecord]) -> CommittedState:
    state = CommittedState()
    for record in records:
        state.apply(record)
    return state


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.history: list[LogRecord] = []  # by offset, with all that was let go of
        self.ends = [0]  # where writes end
        self.high_watermark = self.now_ms = self.offsets = self.names = 0
        self.starts = [0]  # of this log, as far as any replica knows
        self.asked: dict[int, Request] = {}
        self.members: dict[str, tuple[str, int]] = {}  # group -> (member id, generation)
        self.acknowledged: dict[tuple[str, TopicPartition], int] = {}
        self.refuses = self.has_rewritten = False
        self.to_ask: list[Request] = []
        self.truth = CommittedState()  # what all that is committed says
        self.lead(0)

    # --- The coordinator and its log ---

    def lead(self, start: int) -> None:
        """All that is there is committed by the time it is loaded."""
        self.commit_up_to(len(self.history))
        self.writes: deque[Written] = deque()
        self.request_id = 0
        self.asked.clear()
        self.coordinator = GroupCoordinator(SETTINGS, LIMITS)
        for record in self.history[start:]:
            self.coordinator.replay(record)
        if self.coordinator.committed != self.truth:
            raise Loss(f"loaded from {start}")
        self.coordinator.loaded(self.now_ms, start, len(self.history))
        self.step(events.Ticked())

    def commit_up_to(self, high_watermark: int) -> None:
        for record in self.history[self.high_watermark : high_watermark]:
            self.truth.apply(record)
        self.high_watermark = high_watermark

    def step(self, event: events.Event) -> None:
        for effect in self.coordinator.step(self.now_ms, event):
            match effect:
                case AppendRecords(write_id=write_id, records=records):
                    if not self.refuses:
                        self.history += records
                        self.ends.append(len(self.history))
                    self.writes.append(Written(write_id, len(self.history), self.refuses))
                case AdvanceLogStart(offset=offset):
                    self.let_go(offset)
                case effects.MakeTarget():
                    raise ValueError("no consumer group is here")
                case AnswerRequest(request_id=request_id, result=result):
                    self.hear(self.asked.pop(request_id), result)
        while self.to_ask:
            self.ask(self.to_ask.pop())

    def let_go(self, offset: int) -> None:
        self.has_rewritten = True
        if offset > self.high_watermark:
            raise Loss("what is not committed")
        self.starts.append(offset)
        for end in self.ends:
            if end >= self.high_watermark:
                rewritten, all_of_it = self.history[offset:end], self.history[:end]
                if state_of(rewritten) != state_of(all_of_it):
                    raise Loss(f"[{offset}, {end}) does not tell what [0, {end}) does")

    def hear(self, request: Request, result: object) -> None:
        match request, result:
            case CommitOffsets(group_id=group_id, offsets=offsets), CommitResult(partitions=codes):
                for where, code in codes.items():
                    if code is ErrorCode.NONE:
                        self.acknowledged[group_id, where] = offsets[where].offset
            case Join(group_id=group_id), JoinResult(error_code=ErrorCode.NONE) as joined:
                self.members[group_id] = joined.member_id, joined.generation_id
                sync = Sync(
                    group_id=group_id,
                    member_id=joined.member_id,
                    generation_id=joined.generation_id,
                    assignments={joined.member_id: b"all"},
                )
                self.to_ask.append(sync)
            case _:
                pass

    def ask(self, request: Request) -> None:
        self.request_id += 1
        self.asked[self.request_id] = request
        self.step(events.RequestReceived(request_id=self.request_id, request=request))

    # --- What may happen ---

    def commit(self) -> None:
        group_id = self.random.choice(GROUPS)
        member_id, generation_id = self.members.get(group_id, ("", -1))
        offsets = {}
        for where in self.random.sample(PARTITIONS, self.random.choice((1, 1, 2))):
            self.offsets += 1
            offsets[where] = CommittedOffset(offset=self.offsets)
        request = CommitOffsets(
            group_id=group_id, member_id=member_id, generation_id=generation_id, offsets=offsets
        )
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

    def join(self) -> None:
        group_id, instance = self.random.choice(GROUPS), self.random.choice((None, "i"))
        self.names += 1
        known, _ = self.members.get(group_id, ("", -1))
        request = Join(
            group_id=group_id,
            member_id=known if self.random.random() < 0.5 else "",
            new_member_id=f"m{self.names}",
            group_instance_id=instance,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=100,
            protocol_type="consumer",
            protocols=(("range", b"subscription"),),
            requires_known_member_id=False,
        )
        self.ask(request)

    def leave(self) -> None:
        group_id = self.random.choice(GROUPS)
        member_id, _ = self.members.pop(group_id, ("", -1))
        member = LeavingMember(member_id=member_id)
        self.ask(Leave(group_id=group_id, members=(member,)))

    def delete(self) -> None:
        if self.random.random() < 0.5:
            self.ask(DeleteGroup(group_id=self.random.choice(GROUPS)))
        else:
            self.step(events.TopicsDeleted(topics=("s",)))

    def let_time_pass(self) -> None:
        self.now_ms += self.random.choice((1, 100, 5000, 30_000))
        self.step(events.Ticked())

    def fail_over(self) -> None:
        """To a replica that holds all that is committed, perhaps more, from any start it knew."""
        kept = self.random.choice([end for end in self.ends if end >= self.high_watermark])
        del self.history[kept:]
        self.ends = [end for end in self.ends if end <= kept]
        self.refuses = False
        self.lead(self.random.choice(self.starts))

    # --- What must hold ---

    def check(self) -> None:
        if self.coordinator.committed != self.truth:
            raise Loss("the coordinator holds something else than its log")
        for (group_id, where), offset in self.acknowledged.items():
            held = self.truth.offsets.get(group_id, {}).get(where)
            if held is not None and held.offset < offset:
                raise Loss(f"{group_id} committed {offset} in {where}, and {held.offset} is there")

    def run(self) -> None:
        weights = {
            self.commit: 8,
            self.end_write: self.random.choice((6, 10)),
            self.join: 0.5,
            self.leave: 0.2,
            self.delete: 0.2,
            self.let_time_pass: 0.3,
            self.refuse: self.random.choice((0, 0.5)),
            self.fail_over: self.random.choice((0, 0.3)),
        }
        for happening in self.random.choices([*weights], [*weights.values()], k=STEPS):
            happening()

    def settle(self) -> None:
        self.refuses = False
        while self.writes:
            self.end_write()
        for start in self.starts:
            if state_of(self.history[start:]) != state_of(self.history):
                raise Loss(f"a load from {start} would not tell all")


def run_all() -> int:
    """Return in how many lives a log was rewritten."""
    rewritten = 0
    for seed in range(SEEDS):
        world = World(seed)
        world.run()
        world.settle()
        rewritten += world.has_rewritten
    return rewritten


def test_what_is_live_survives_every_rewrite() -> None:
    assert run_all() > SEEDS * 0.8


def test_the_log_stays_bounded_by_what_is_live() -> None:
    world = World(0)
    for _ in range(1000):
        world.commit()
        if len(world.writes) > 5:
            world.end_write()
    world.settle()
    world.step(events.Ticked())  # what came while it was rewritten may be due for the next time
    world.settle()
    live = world.coordinator.committed.size
    size = len(world.history) - world.starts[-1]
    assert size <= max(LIMITS.records_min, LIMITS.live_factor * live)
    assert len(world.history) > 1000


def test_a_refused_slice_is_tried_again_not_at_once_but_later() -> None:
    world = World(0)

    def commit() -> None:
        offsets = {PARTITIONS[0]: CommittedOffset(offset=len(world.history))}
        world.ask(CommitOffsets(group_id="g1", offsets=offsets))

    for _ in range(LIMITS.records_min):
        commit()
        world.end_write()
    commit()
    world.refuses = True
    world.end_write()
    assert world.coordinator.rewrite._begun_at is not None
    world.end_write()
    assert world.coordinator.rewrite._begun_at is None
    world.refuses = False
    for _ in range(LIMITS.records_min):
        assert world.starts == [0]
        commit()
        world.end_write()
    world.settle()
    assert world.starts == [0, 2 * LIMITS.records_min + 1]


def test_a_log_with_records_that_are_not_ours_is_left_alone() -> None:
    world = World(0)
    world.coordinator.rewrite.has_foreign_records = True
    for _ in range(200):
        world.commit()
        world.settle()
    assert world.starts == [0]


class MovesTheStartBeforeTheSlicesAreCommitted(Rewrite):
    def go_on(self) -> None:
        super().go_on()
        if self._has_slice_under_way and not self._todo and not self._groups:
            self._end()


class ForgetsWhatIsUnderWay(Rewrite):
    def _begin(self, applied_end: int) -> None:
        """As if the log ended with what is applied."""
        under_way = [len(write.records) for write in self._outbox._writes]
        super()._begin(applied_end + sum(under_way))


class WritesOverWhatIsUnderWay(Rewrite):
    def _write_slice(self) -> None:
        keys_under_way = GroupOutbox.keys_under_way
        try:
            GroupOutbox.keys_under_way = lambda self: frozenset()  # type: ignore[method-assign]
            super()._write_slice()
        finally:
            GroupOutbox.keys_under_way = keys_under_way  # type: ignore[method-assign]


class LetsOlderValuesWin(Rewrite):
    """Writes what was live when it began, not what is live by now."""

    def _begin(self, applied_end: int) -> None:
        super()._begin(applied_end)
        keys = [key for group_id in self._groups for key in self._committed.keys_of(group_id)]
        self._then = {key: self._committed.record_of(key) for key in keys}

    def note_applied(self, records: tuple[LogRecord, ...], next_offset: int) -> None:  # type: ignore[override]
        super().note_applied((), next_offset)

    def _record_of(self, key: Key) -> LogRecord:
        return self._then.get(key) or super()._record_of(key)


class StartsWhereItEnds(Rewrite):
    def _end(self) -> None:
        self._begun_at = self._applied_end
        super()._end()


class GivesUpOnKeysThatAreUnderWay(Rewrite):
    """Though their write may be refused."""

    def _write_slice(self) -> None:
        for key in self._outbox.keys_under_way():
            self._todo.pop(key, None)
        if self._todo:
            super()._write_slice()


@pytest.mark.parametrize(
    "mutant",
    [
        MovesTheStartBeforeTheSlicesAreCommitted,
        ForgetsWhatIsUnderWay,
        WritesOverWhatIsUnderWay,
        LetsOlderValuesWin,
        StartsWhereItEnds,
        GivesUpOnKeysThatAreUnderWay,
    ],
)
def test_the_test_above_finds_a_planted_bug(
    mutant: type[Rewrite], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorumlog.broker.groups.core.coordinator.Rewrite", mutant)
    assert rewrite.Rewrite is Rewrite
    with pytest.raises(Loss):
        run_all()
