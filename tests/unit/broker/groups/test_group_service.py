"""Loading, leadership and failed writes: the shards over a log in memory."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from quorumlog.broker.core.data_path import LocalRead, OffsetAnswer, ProduceResult, ReadEnd
from quorumlog.broker.core.groups.coordinator import GroupCoordinator
from quorumlog.broker.core.groups.events import Event
from quorumlog.broker.core.groups.partitioning import OFFSETS_TOPIC
from quorumlog.broker.core.groups.requests import CommitOffsets, CommitResult, CommittedOffset
from quorumlog.broker.core.settings import BrokerSettings
from quorumlog.broker.io.group_service import GroupService
from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch, Offset, TopicId, TopicPartition
from quorumlog.wire.codec.records import Record, encode_batch, iterate_headers, restamp
from tests.unit.broker.groups.coordination import T0, beat, commit, join

WHERE = TopicPartition(OFFSETS_TOPIC, 0)
SETTINGS = BrokerSettings(
    offsets_topic_num_partitions=1,
    group_initial_rebalance_delay_ms=0,
    group_min_session_timeout_ms=10,
)


class MemoryLog:
    """One partition. What is above `high_watermark` waits; `refusal` is the fate of appends."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.start = self.end = self.high_watermark = 0
        self.commits_at_once = True
        self.refusal = ErrorCode.NONE
        self.waiting: list[tuple[int, asyncio.Future[ProduceResult]]] = []

    def append(
        self,
        topic_partition: TopicPartition,
        records: bytes | bytearray | memoryview,
        *,
        acks: int,
        timeout_ms: int,
    ) -> asyncio.Future[ProduceResult]:
        assert (topic_partition, acks) == (WHERE, -1)
        outcome: asyncio.Future[ProduceResult] = asyncio.get_running_loop().create_future()
        if self.refusal is not ErrorCode.NONE:
            outcome.set_result(ProduceResult(self.refusal))
            return outcome
        batch = bytearray(records)
        restamp(batch, 0, base_offset=self.end, leader_epoch=0)
        self.batches.append(bytes(batch))
        self.end += next(iterate_headers(batch))[1].record_count
        self.waiting.append((self.end, outcome))
        if self.commits_at_once:
            self.commit_all()
        return outcome

    def commit_all(self) -> None:
        self.high_watermark = self.end
        for _, outcome in self.waiting:
            outcome.set_result(ProduceResult(ErrorCode.NONE))
        self.waiting.clear()

    def fail_all(self, error_code: ErrorCode) -> None:
        for _, outcome in self.waiting:
            outcome.set_result(ProduceResult(error_code))
        self.waiting.clear()

    def read_local(
        self,
        topic_partition: TopicPartition,
        offset: int,
        max_bytes: int,
        end: ReadEnd = ReadEnd.HIGH_WATERMARK,
    ) -> LocalRead:
        if offset < self.start:
            return LocalRead(ErrorCode.OFFSET_OUT_OF_RANGE)
        limit = self.end if end is ReadEnd.LOG_END else self.high_watermark
        for batch in self.batches:
            header = next(iterate_headers(batch))[1]
            if offset <= header.base_offset and header.next_offset <= limit:
                return LocalRead(ErrorCode.NONE, batch, Offset(header.next_offset))
        return LocalRead(ErrorCode.NONE, b"", Offset(offset))

    def list_offset(
        self, topic_partition: TopicPartition, timestamp_ms: int, leader_epoch: Epoch
    ) -> OffsetAnswer:
        assert timestamp_ms == -2
        return OffsetAnswer(ErrorCode.NONE, self.start)


class World:
    def __init__(self, log: MemoryLog | None = None) -> None:
        self.log = log or MemoryLog()
        self.violations: list[InvariantViolation] = []
        self.wall_clock_ms = 1_000_000
        self.service = GroupService(
            replicas=self.log,
            settings=SETTINGS,
            now_ms=lambda: self.wall_clock_ms,
            on_fatal=self.violations.append,
        )

    async def lead(self, epoch: int = 0) -> None:
        self.service.became_leader(WHERE, Epoch(epoch))
        await self.loaded()

    async def loaded(self) -> None:
        async with asyncio.timeout(5):
            while self.service.coordinator("g") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                await asyncio.sleep(0)

    async def commit(self, offset: int) -> ErrorCode:
        return code(await self.service.ask(commit(offset)))

    def offset(self) -> int | None:
        coordinator = self.service.coordinator("g")
        assert isinstance(coordinator, GroupCoordinator)
        committed = coordinator.fetch_offsets("g", [T0])[T0]
        return None if committed is None else committed.offset


def code(result: CommitResult) -> ErrorCode:
    return result.partitions.get(T0, result.error_code)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def test_only_the_leader_of_the_partition_answers_and_only_once_it_has_loaded() -> None:
    async def scenario() -> None:
        world = World()
        assert await world.commit(1) is ErrorCode.NOT_COORDINATOR
        world.service.became_leader(WHERE, Epoch(0))
        assert await world.commit(1) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await world.loaded()
        assert await world.commit(1) is ErrorCode.NONE
        world.service.resigned(WHERE, Epoch(1))
        assert world.service.coordinator("g") is ErrorCode.NOT_COORDINATOR
        assert [*world.service.coordinators()] == []

    run(scenario())


def test_the_next_leader_reads_what_was_committed() -> None:
    async def scenario() -> None:
        world = World()
        await world.lead()
        await world.commit(1)
        await world.commit(2)
        successor = World(world.log)
        await successor.lead(1)
        assert successor.offset() == 2
        world.service.stop()
        successor.service.stop()

    run(scenario())


def test_loading_waits_until_the_whole_log_is_committed() -> None:
    async def scenario() -> None:
        world = World()
        await world.lead()
        await world.commit(1)
        world.log.commits_at_once = False
        late = world.service.ask(commit(2))
        successor = World(world.log)
        successor.service.became_leader(WHERE, Epoch(1))
        for _ in range(10):
            await asyncio.sleep(0)
        assert successor.service.coordinator("g") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        world.log.commit_all()
        assert code(await late) is ErrorCode.NONE
        await successor.loaded()
        assert successor.offset() == 2
        world.service.stop()
        successor.service.stop()

    run(scenario())


def test_a_log_that_does_not_start_at_0_is_loaded() -> None:
    async def scenario() -> None:
        world = World()
        await world.lead()
        await world.commit(1)
        await world.commit(2)
        del world.log.batches[0]
        world.log.start = 1
        successor = World(world.log)
        await successor.lead(1)
        assert successor.offset() == 2
        world.service.stop()
        successor.service.stop()

    run(scenario())


def test_a_log_that_cannot_be_read_is_not_served(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        world = World()
        world.log.batches = [encode_batch([Record(0, 0, b"\0\1garbage", b"", ())])]
        world.log.end = world.log.high_watermark = 1
        await world.lead()
        assert await world.commit(1) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        world.service.stop()

    run(scenario())
    assert "cannot be loaded" in caplog.text


def test_who_waits_when_we_resign_is_told_to_look_elsewhere() -> None:
    async def scenario() -> None:
        world = World()
        await world.lead()
        world.log.commits_at_once = False
        waiting = world.service.ask(commit(1))
        world.service.resigned(WHERE, Epoch(1))
        assert code(await waiting) is ErrorCode.NOT_COORDINATOR
        world.log.commit_all()  # too late: nothing happens
        await asyncio.sleep(0)

    run(scenario())


def test_old_news_of_leadership_changes_nothing() -> None:
    async def scenario() -> None:
        world = World()
        await world.lead(5)
        world.service.resigned(WHERE, Epoch(4))
        assert await world.commit(1) is ErrorCode.NONE
        world.service.resigned(WHERE, Epoch(6))
        world.service.became_leader(WHERE, Epoch(5))
        assert await world.commit(1) is ErrorCode.NOT_COORDINATOR
        world.service.became_leader(TopicPartition("other", 0), Epoch(9))
        world.service.resigned(TopicPartition("other", 0), Epoch(9))
        assert [*world.service.coordinators()] == []

    run(scenario())


def test_a_higher_epoch_of_the_same_leader_keeps_the_groups() -> None:
    async def scenario() -> None:
        world = World()
        await world.lead()
        before = world.service.coordinator("g")
        world.service.became_leader(WHERE, Epoch(1))
        assert world.service.coordinator("g") is before
        world.service.stop()

    run(scenario())


def test_a_write_that_was_refused_leaves_everything_as_it_was() -> None:
    async def scenario() -> None:
        world = World()
        await world.lead()
        await world.commit(1)
        for refusal, told in {
            ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
        }.items():
            world.log.refusal = refusal
            assert await world.commit(2) is told
        assert world.offset() == 1
        world.service.stop()

    run(scenario())


def test_after_a_write_of_unknown_outcome_the_log_is_read_again() -> None:
    async def scenario() -> None:
        world = World()
        await world.lead()
        await world.commit(1)
        world.log.commits_at_once = False
        unknown = world.service.ask(commit(2))
        world.log.fail_all(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        assert code(await unknown) is ErrorCode.NOT_COORDINATOR
        assert world.service.coordinator("g") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        world.log.commit_all()
        await world.loaded()
        assert world.offset() == 2
        world.service.stop()

    run(scenario())


def test_writes_are_reported_in_log_order_even_if_the_second_is_refused_first() -> None:
    async def scenario() -> None:
        world = World()
        await world.lead()
        world.log.commits_at_once = False
        first = world.service.ask(commit(1))
        world.log.refusal = ErrorCode.NOT_ENOUGH_REPLICAS
        second = world.service.ask(commit(2))
        await asyncio.sleep(0)
        assert not second.done()
        world.log.commit_all()
        assert code(await first) is ErrorCode.NONE
        assert code(await second) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        world.service.stop()

    run(scenario())


def test_time_passes_without_requests_and_the_wall_clock_may_jump() -> None:
    async def scenario() -> None:
        world = World()
        await world.lead()
        joining = world.service.ask(join(new_member_id="a", session_timeout_ms=30))
        assert (await joining).generation_id == 1
        world.wall_clock_ms += 10_000_000
        assert await world.service.ask(beat("a", 1)) is ErrorCode.NONE
        async with asyncio.timeout(5):
            while await world.service.ask(beat("a", 1)) is ErrorCode.NONE:
                await asyncio.sleep(0.1)
        world.service.stop()

    run(scenario())


def test_a_deleted_topics_offsets_go() -> None:
    async def scenario() -> None:
        world = World()
        await world.lead()
        await world.commit(1)
        topic_id = TopicId(bytes(15) + b"\1")
        world.service.publish(ClusterDelta(deleted_topics={"t": topic_id}), ClusterImage())
        await asyncio.sleep(0)
        assert world.offset() is None
        gone = ClusterDelta(deleted_topics={OFFSETS_TOPIC: topic_id})
        world.service.resigned(WHERE, Epoch(3))
        world.service.publish(gone, ClusterImage())
        await world.lead(0)
        assert world.service.coordinator("g") is not ErrorCode.NOT_COORDINATOR
        world.service.stop()

    run(scenario())


def test_a_bug_of_ours_is_reported_and_nobody_is_left_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_self: GroupCoordinator, _now_ms: int, _event: Event) -> None:
        raise InvariantViolation("planted")

    async def scenario() -> None:
        world = World()
        await world.lead()
        monkeypatch.setattr(GroupCoordinator, "step", broken)
        assert await world.commit(1) is ErrorCode.NOT_COORDINATOR
        assert [str(violation) for violation in world.violations] == ["planted"]
        world.service.stop()

    run(scenario())


def test_an_epoch_is_kept_for_the_log() -> None:
    """A commit carries the leader epoch that the client saw."""

    async def scenario() -> None:
        world = World()
        await world.lead()
        offsets = {T0: CommittedOffset(offset=1, leader_epoch=7, metadata="m")}
        await world.service.ask(CommitOffsets(group_id="g", offsets=offsets))
        coordinator = world.service.coordinator("g")
        assert isinstance(coordinator, GroupCoordinator)
        committed = coordinator.fetch_offsets("g", [T0])[T0]
        assert committed is not None
        assert (committed.leader_epoch, committed.metadata) == (7, "m")
        world.service.stop()

    run(scenario())
