"""A group's partition that is rewritten by its coordinator: what is read, what is appended."""

import asyncio
import struct
from dataclasses import replace
from functools import partial

import pytest

from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.group_outbox import GroupOutbox
from quorumlog.broker.groups.core.offsets import CommittedState
from quorumlog.broker.groups.core.records import GroupRecord, OffsetRecord, StoredGroup
from quorumlog.broker.groups.core.requests import CommittedOffset
from quorumlog.broker.groups.core.rewrite import Rewrite, RewriteLimits
from quorumlog.broker.groups.core.rules import GROUP_RULES
from quorumlog.broker.groups.io.group_service import GroupService
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.records import Record, encode_batch
from tests.support.coordination.groups_begun import leading
from tests.support.groups.coordination import T0, T1
from tests.support.groups.memory_log import WHERE, MemoryLog, World
from tests.support.waiting import until

LIMITS = RewriteLimits(records_min=30)


class EarlyRewrite(Rewrite):
    def __init__(
        self, committed: CommittedState, outbox: GroupOutbox, _limits: RewriteLimits
    ) -> None:
        super().__init__(committed, outbox, LIMITS)


@pytest.fixture(autouse=True)
def early_rewrites(monkeypatch: pytest.MonkeyPatch) -> None:
    service = partial(GroupService, rules=replace(GROUP_RULES, rewrite=EarlyRewrite))
    monkeypatch.setattr("tests.support.groups.memory_log.GroupService", service)


async def test_a_successor_reads_little_more_than_what_is_live() -> None:
    world = World()
    await world.lead()
    for offset in range(500):
        assert await world.commit(offset) is ErrorCode.NONE
    assert world.log.end - world.log.start <= LIMITS.records_min + 1
    world.service.stop()
    successor = World(world.log)
    await successor.lead(1)
    coordinator = successor.service.coordinator("g")
    assert isinstance(coordinator, GroupCoordinator)
    committed = coordinator.fetch_offsets("g", [T0])[T0]
    assert committed is not None
    assert committed.offset == 499
    successor.service.stop()


async def test_a_log_that_has_grown_long_is_rewritten_when_it_is_loaded() -> None:
    world = World()
    await world.lead()
    world.log.commits_at_once = False
    pending = [asyncio.ensure_future(world.commit(offset)) for offset in range(100)]
    await asyncio.sleep(0)
    assert world.log.end == 100
    world.service.stop()
    await asyncio.gather(*pending)
    world.log.commits_at_once = True
    world.log.commit_all()
    successor = World(world.log)
    await successor.lead(1)
    await until(lambda: successor.log.start)
    assert (successor.log.start, successor.log.end) == (100, 101)
    successor.service.stop()


async def test_records_of_another_kind_of_group_are_not_let_go_of() -> None:
    log = MemoryLog()
    foreign = struct.pack(">hh1s", 17, 1, b"g")  # StreamsGroupMetadataKey
    batch = encode_batch([Record(0, 1, foreign, b"")])
    log.append(WHERE, batch, acks=-1, timeout_ms=1, done=lambda _: None)
    async with leading(log=log) as world:
        for offset in range(100):
            await world.commit(offset)
        assert (log.start, log.end) == (0, 101)


def test_what_is_live_is_counted_and_told_in_records() -> None:
    state = CommittedState()
    stored = StoredGroup(
        protocol_type="consumer", generation_id=1, protocol_name=None, leader=None, state_since_ms=5
    )
    first = OffsetRecord(
        group_id="g", topic_partition=T0, committed=CommittedOffset(offset=1, metadata="m")
    )
    second = OffsetRecord(group_id="g", topic_partition=T1, committed=CommittedOffset(offset=2))
    generation = GroupRecord(group_id="g", stored=stored)
    for record in (first, second, generation, generation, first):
        state.apply(record)
    assert state.size == 3
    copy = CommittedState()
    for key in state.keys_of("g"):
        copy.apply(state.record_of(key))
    assert (copy, copy.size) == (state, 3)
    gone = OffsetRecord(group_id="g", topic_partition=T0, committed=None)
    for record in (gone, gone, GroupRecord(group_id="g", stored=None)):
        state.apply(record)
    assert (state.size, list(state.keys_of("g")), list(state.keys_of("h"))) == (1, [("g", T1)], [])
    assert state.record_of(("g", T0)) == gone
