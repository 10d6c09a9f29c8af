"""A shard and its driver serve any coordinator: here one that adds numbers, and one that rings."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from quorumlog.broker.coordination.core import events
from quorumlog.broker.coordination.core.coordinator_shard import (
    BATCHES_AT_ONCE,
    CoordinatorShard,
    Phase,
)
from quorumlog.broker.coordination.core.effects import (
    AnswerRequest,
    AppendRecords,
    CoordinatorEffect,
    OwnEffect,
)
from quorumlog.broker.coordination.driver.shard_driver import ShardDependencies, ShardDriver
from quorumlog.broker.partitions.core.data_path import LocalRead
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_EPOCH, Epoch, Offset, TopicPartition
from quorumlog.wire.codec.records import Record, encode_batch
from tests.support.coordination.driven_shard import DrivenShard


@dataclass(frozen=True)
class Add:
    """Adds a number; answered with the committed sum."""

    number: int

    def refuse(self, error_code: ErrorCode) -> int | ErrorCode:
        return error_code


@dataclass(frozen=True)
class Ring(OwnEffect):
    """What nobody but this coordinator has."""

    times: int


class Sum:
    """A record is a number; each is answered when it is committed. Any other event adds nothing."""

    def __init__(self) -> None:
        self.next_deadline_ms = 1 << 40
        self.not_written = {ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE}
        self.committed = 0
        self.writing: dict[int, int] = {}
        self.events: list[Any] = []

    def replay_encoded(self, key: bytes, value: bytes | None) -> None:
        self.committed += int(key)

    def encode(self, record: int) -> tuple[bytes, bytes | None]:
        return str(record).encode(), None

    def check_progress(self) -> None:
        assert self.next_deadline_ms >= 0

    def loaded(self, now_ms: int, log_start_offset: int, log_end_offset: int) -> None:
        self.events.append((log_start_offset, log_end_offset))

    def step(self, now_ms: int, event: Any) -> list[CoordinatorEffect]:
        match event:
            case events.RequestReceived(request_id=request_id, request=Add(number=number)):
                self.writing[request_id] = number
                return [AppendRecords(write_id=request_id, records=(number,))]
            case events.WriteEnded(write_id=write_id, error_code=ErrorCode.NONE):
                self.committed += self.writing.pop(write_id)
                return [AnswerRequest(request_id=write_id, result=self.committed)]
            case events.WriteEnded(write_id=write_id, error_code=error_code):
                del self.writing[write_id]
                return [AnswerRequest(request_id=write_id, result=error_code)]
            case Ring():
                return [event]
            case _:
                self.events.append(event)
                return []


def shard(batches: Iterable[bytes] = ()) -> DrivenShard[Sum]:
    return DrivenShard(Sum, batches=batches)


def loaded(batches: Iterable[bytes] = ()) -> DrivenShard[Sum]:
    driven = shard(batches)
    driven.step(events.BecameLeader(leader_epoch=Epoch(1)))
    driven.load()
    return driven


def batch(number: int) -> bytes:
    return encode_batch([Record(0, 0, str(number).encode(), None, ())])


def test_a_request_is_answered_once_its_record_is_committed_which_the_next_shard_loads() -> None:
    driven = loaded()
    first, second = driven.ask(Add(1)), driven.ask(Add(2))
    assert driven.replies == {}
    driven.commit_writes()
    assert driven.replies == {first: 1, second: 3}
    successor = loaded(driven.batches)
    successor.ask(Add(1))
    successor.commit_writes()
    assert successor.replies == {1: 4}


def test_a_refused_append_has_the_coordinators_own_error() -> None:
    driven = loaded()
    driven.ask(Add(1))
    driven.fail_write(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert driven.replies == {1: ErrorCode.COORDINATOR_NOT_AVAILABLE}


def test_writes_are_reported_in_log_order_even_if_the_second_ends_first() -> None:
    driven = loaded()
    driven.ask(Add(1))
    driven.ask(Add(2))
    driven.end_write(ErrorCode.NOT_ENOUGH_REPLICAS, index=1)
    assert driven.replies == {}
    driven.commit_write()
    assert [*driven.replies.items()] == [(1, 1), (2, ErrorCode.COORDINATOR_NOT_AVAILABLE)]


def test_after_a_write_of_unknown_outcome_the_log_is_read_again() -> None:
    driven = loaded()
    driven.ask(Add(1))
    driven.ask(Add(2))
    driven.batches.append(driven.writes[0].records)  # it made it, but we are not told
    driven.end_write(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert driven.replies == dict.fromkeys((1, 2), ErrorCode.NOT_COORDINATOR)
    assert driven.shard.coordinator is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    driven.load()
    assert driven.coordinator.committed == 1
    driven.commit_write()  # the second, of which the new coordinator knows nothing
    assert driven.coordinator.committed == 1
    assert driven.shard.phase is Phase.ACTIVE


def test_requests_are_refused_and_events_are_kept_until_the_log_is_loaded() -> None:
    driven = shard([batch(4)])
    driven.ask(Add(1))
    assert driven.replies == {1: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    driven.step("an event of its own")
    driven.load()
    assert driven.coordinator.committed == 4
    led = events.BecameLeader(leader_epoch=NO_EPOCH)
    assert driven.coordinator.events == [(0, 1), led, "an event of its own", events.Ticked()]


def test_a_coordinator_learns_its_leader_epoch_and_each_newer_one() -> None:
    driven = loaded()
    for epoch in (1, 3, 2):
        driven.step(events.BecameLeader(leader_epoch=Epoch(epoch)))
    learned = [one for one in driven.coordinator.events if isinstance(one, events.BecameLeader)]
    assert [one.leader_epoch for one in learned] == [1, 3]


def test_an_effect_that_only_this_coordinator_has_is_passed_on() -> None:
    driven = shard()
    driven.step(Ring(1))
    assert driven.own == []
    driven.load()
    driven.step(Ring(2))
    assert driven.own == [Ring(1), Ring(2)]


def test_a_log_is_served_once_all_of_it_is_committed() -> None:
    driven = shard([batch(4)])
    driven.uncommitted = 1
    driven.load()
    driven.now_ms += 19
    driven.load()
    assert driven.shard.phase is Phase.LOADING
    driven.uncommitted = 0
    driven.now_ms += 1
    driven.load()
    assert driven.coordinator.committed == 4


def test_a_replica_that_cannot_be_read_yet_is_asked_again() -> None:
    driven = shard([batch(4)])
    driven.read_error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    driven.load()
    driven.read_error = ErrorCode.NONE
    driven.now_ms += 20
    driven.load()
    assert driven.coordinator.committed == 4


def test_a_log_that_starts_above_0_is_loaded_from_its_start() -> None:
    driven = shard([batch(4)])
    driven.log_start = 7
    driven.load()
    driven.now_ms += 20
    driven.load()
    assert driven.coordinator.committed == 4
    assert driven.coordinator.events[0] == (7, 8)


def test_a_long_log_is_replayed_in_several_steps() -> None:
    driven = shard(batch(1) for _ in range(2 * BATCHES_AT_ONCE))
    steps = 0
    while driven.shard.phase is Phase.LOADING:
        steps += 1
        driven.step(events.Ticked())
        if driven.reading is not None:
            offset, driven.reading = driven.reading, None
            driven.step(events.LogRead(read=driven.read(offset)))
    assert steps == 4  # the first read, two hundreds, the read that finds nothing more
    assert driven.coordinator.committed == 2 * BATCHES_AT_ONCE


def test_a_log_that_cannot_be_decoded_is_not_served() -> None:
    driven = shard([batch(4), encode_batch([Record(0, 0, b"no number", None, ())])])
    driven.load()
    driven.ask(Add(1))
    assert driven.replies == {1: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert driven.shard.next_deadline_ms is None
    assert "cannot be loaded" in driven.reports[0]


def test_who_waits_when_the_broker_resigns_looks_elsewhere_and_late_news_changes_nothing() -> None:
    driven = loaded()
    driven.ask(Add(1))
    driven.step(events.Resigned(leader_epoch=Epoch(0)))
    assert driven.replies == {}, "this is older than our leadership"
    driven.step(events.Resigned(leader_epoch=Epoch(2)))
    assert driven.replies == {1: ErrorCode.NOT_COORDINATOR}
    driven.commit_write()
    driven.tick(1000)
    driven.ask(Add(1))
    assert driven.replies[2] is ErrorCode.NOT_COORDINATOR
    assert driven.writes == []


class DriverRing(OwnEffect):
    """What nobody but this coordinator has."""


class Broken:
    """An event that violates an invariant."""


class Bell:
    """Rings when it is told to, and keeps its requests."""

    def __init__(self) -> None:
        self.next_deadline_ms: int | None = None
        self.not_written: dict[ErrorCode, ErrorCode] = {}

    def replay_encoded(self, key: bytes, value: bytes | None) -> None: ...

    def encode(self, record: Any) -> tuple[bytes, bytes | None]:
        raise NotImplementedError

    def loaded(self, *_offsets: int) -> None: ...

    def check_progress(self) -> None: ...

    def step(self, now_ms: int, event: Any) -> list[CoordinatorEffect]:
        if isinstance(event, Broken):
            raise InvariantViolation("broken")
        return [event] if isinstance(event, DriverRing) else []


class EmptyLog:
    def append(self, *arguments: Any, **options: Any) -> None:
        raise NotImplementedError

    def append_marker(self, *arguments: Any, **options: Any) -> None:
        raise NotImplementedError

    def read_local(
        self, at: TopicPartition, offset: int, max_bytes: int, done: Callable[[LocalRead], None], /
    ) -> None:
        end = Offset(0)
        done(LocalRead(ErrorCode.NONE, b"", end, end, end))

    def advance_log_start(self, at: TopicPartition, offset: Offset, /) -> None:
        raise NotImplementedError


class Turns:
    """The turns to come of an event loop, and its clock, which stands still until it is set."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.rung: list[OwnEffect] = []
        self.violations: list[InvariantViolation] = []
        self.timers: dict[int, Callable[[], None]] = {}
        self._soon = deque[Callable[[], None]]()

    def run(self) -> None:
        while self._soon:
            self._soon.popleft()()

    def ring(self, deadline_ms: int) -> None:
        self.now_ms = deadline_ms
        self.timers.pop(deadline_ms)()
        self.run()

    def _call_at(self, deadline_ms: int, action: Callable[[], None]) -> Any:
        self.timers[deadline_ms] = action
        return SimpleNamespace(cancel=lambda: self.timers.pop(deadline_ms))

    def driver(self) -> ShardDriver[Bell]:
        """Return the driver of a loaded shard."""
        dependencies = ShardDependencies(
            log=EmptyLog(),
            load_buffer_bytes=1,
            now_ms=lambda: self.now_ms,
            soon=lambda action, *arguments: self._soon.append(partial(action, *arguments)),
            call_at=self._call_at,
            perform_own=lambda _at, effect: self.rung.append(effect),
            on_fatal=self.violations.append,
        )
        driven = ShardDriver(TopicPartition("t", 0), CoordinatorShard(Bell, 0), dependencies)
        driven.feed(events.BecameLeader(leader_epoch=Epoch(1)))
        while not isinstance(driven.shard.coordinator, Bell):
            self.ring(min(self.timers))
        return driven


def bell_of(driven: ShardDriver[Bell]) -> Bell:
    bell = driven.shard.coordinator
    assert isinstance(bell, Bell)
    return bell


def test_an_effect_of_its_own_is_performed_outside_of_the_step() -> None:
    turns = Turns()
    driven = turns.driver()
    ring = DriverRing()
    driven.feed(ring)
    assert turns.rung == []
    turns.run()
    assert turns.rung == [ring]


def test_one_timer_is_set_to_the_earliest_deadline() -> None:
    turns = Turns()
    driven = turns.driver()
    bell = bell_of(driven)
    assert not turns.timers
    for deadline_ms, set_to in [(70, [70]), (90, [70]), (60, [60]), (None, []), (80, [80])]:
        bell.next_deadline_ms = deadline_ms
        driven.feed("anything")
        assert [*turns.timers] == set_to
    bell.next_deadline_ms = 90
    turns.ring(80)  # early: it is set again
    assert [*turns.timers] == [90]


def test_a_shard_that_waits_for_a_tick_has_a_timer_in_time() -> None:
    turns = Turns()
    driven = turns.driver()
    bell_of(driven).next_deadline_ms = 70
    driven.feed("anything")
    driven.check_progress()
    bell_of(driven).next_deadline_ms = 60
    with pytest.raises(InvariantViolation, match="a tick at or before 60"):
        driven.check_progress()
    bell_of(driven).next_deadline_ms = None
    driven.check_progress()


def test_a_violation_ends_the_shard_and_refuses_its_requests() -> None:
    turns = Turns()
    driven = turns.driver()
    answers: list[ErrorCode] = []
    driven.serve(1, SimpleNamespace(refuse=lambda error_code: error_code), answers.append)
    assert answers == []
    driven.feed(Broken())
    assert (len(turns.violations), answers) == (1, [ErrorCode.NOT_COORDINATOR])
    assert driven.shard.phase is Phase.CLOSED
