"""The driver of a shard performs its effects, and keeps one timer for its ticks."""

from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from quorumlog.broker.coordination.core import events
from quorumlog.broker.coordination.core.coordinator_shard import CoordinatorShard, Phase
from quorumlog.broker.coordination.core.effects import CoordinatorEffect, OwnEffect
from quorumlog.broker.coordination.driver.shard_driver import ShardDependencies, ShardDriver
from quorumlog.broker.partitions.core.data_path import LocalRead
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch, Offset, TopicPartition


class Ring(OwnEffect):
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

    def step(self, now_ms: int, event: Any) -> list[CoordinatorEffect]:
        if isinstance(event, Broken):
            raise InvariantViolation("broken")
        return [event] if isinstance(event, Ring) else []


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
    ring = Ring()
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


def test_an_early_tick_sets_the_timer_again() -> None:
    turns = Turns()
    driven = turns.driver()
    bell = bell_of(driven)
    bell.next_deadline_ms = 70
    driven.feed("anything")
    bell.next_deadline_ms = 90
    turns.ring(70)
    assert [*turns.timers] == [90]


def test_a_violation_ends_the_shard_and_refuses_its_requests() -> None:
    turns = Turns()
    driven = turns.driver()
    answers: list[ErrorCode] = []
    driven.serve(1, SimpleNamespace(refuse=lambda error_code: error_code), answers.append)
    assert answers == []
    driven.feed(Broken())
    assert (len(turns.violations), answers) == (1, [ErrorCode.NOT_COORDINATOR])
    assert driven.shard.phase is Phase.CLOSED
