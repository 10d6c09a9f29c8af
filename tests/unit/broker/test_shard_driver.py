"""The driver of a shard performs the effects that only one kind of coordinator has."""

from collections.abc import Callable
from typing import Any

import pytest

from quorumlog.broker.coordination.core import events
from quorumlog.broker.coordination.core.effects import CoordinatorEffect, OwnEffect
from quorumlog.broker.coordination.io.shard_driver import ShardDriver
from quorumlog.broker.partitions.core.data_path import LocalRead
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch, Offset, TopicPartition
from tests.support.waiting import loop_turns, until


class Ring(OwnEffect):
    """What nobody but this coordinator has."""


class Bell:
    """Rings when it is told to; it needs no ticks."""

    next_deadline_ms = None
    not_written: dict[ErrorCode, ErrorCode]

    def __init__(self) -> None:
        self.not_written = {}

    def replay_encoded(self, key: bytes, value: bytes | None) -> None: ...

    def encode(self, record: Any) -> tuple[bytes, bytes | None]:
        raise NotImplementedError

    def loaded(self, *_offsets: int) -> None: ...

    def step(self, now_ms: int, event: Any) -> list[CoordinatorEffect]:
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


async def driver(perform_own: Callable[[OwnEffect], None] | None) -> ShardDriver[Bell]:
    def fail(violation: InvariantViolation) -> None:
        raise violation

    driven = ShardDriver(
        TopicPartition("t", 0),
        replicas=EmptyLog(),
        new_coordinator=Bell,
        load_buffer_bytes=1,
        now_ms=lambda: 0,
        on_fatal=fail,
        perform_own=perform_own,
    )
    driven.feed(events.BecameLeader(leader_epoch=Epoch(1)))
    await until(lambda: isinstance(driven.shard.coordinator, Bell))
    return driven


async def test_an_effect_of_its_own_is_performed_outside_of_the_step() -> None:
    rung: list[OwnEffect] = []
    driven = await driver(rung.append)
    ring = Ring()
    driven.feed(ring)
    assert rung == []
    await loop_turns()
    assert rung == [ring]


async def test_a_driver_that_does_not_know_the_effect_is_our_bug() -> None:
    driven = await driver(None)
    with pytest.raises(InvariantViolation, match="performs its own effects"):
        driven.feed(Ring())
