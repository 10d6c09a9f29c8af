"""A group service over a log in memory, one partition of `__consumer_offsets`."""

import asyncio

from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.requests import CommitResult
from quorumlog.broker.groups.io.group_service import GroupService
from quorumlog.broker.partitions.core.data_path import (
    LocalRead,
    OffsetAnswer,
    ProduceResult,
    ReadEnd,
)
from quorumlog.broker.settings import BrokerSettings
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch, Offset, TopicPartition
from quorumlog.wire.codec.records import iterate_headers, restamp
from quorumlog.wire.codec.topic_names import OFFSETS_TOPIC
from tests.support.groups.coordination import T0, commit

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
        self.waiting.append((self.end, outcome))
        self.end += next(iterate_headers(batch))[1].record_count
        if self.commits_at_once:
            self.commit_all()
        return outcome

    def commit_all(self) -> None:
        self.high_watermark = self.end
        for base_offset, outcome in self.waiting:
            outcome.set_result(ProduceResult(ErrorCode.NONE, base_offset))
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

    def advance_log_start(self, topic_partition: TopicPartition, offset: Offset) -> None:
        assert (topic_partition, offset <= self.high_watermark) == (WHERE, True)
        self.start = offset

    async def list_offset(
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
            wall_ms=lambda: self.wall_clock_ms,
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
