"""A group service over a log in memory, one partition of `__consumer_offsets`."""

import asyncio
from collections.abc import Callable

from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.requests import CommitResult
from quorumlog.broker.groups.io.group_service import GroupService
from quorumlog.broker.partitions.core.data_path import LocalRead, ProduceDone, ProduceResult
from quorumlog.broker.settings import BrokerSettings
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch, Offset, TopicPartition
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.records import iterate_headers, restamp
from quorumlog.wire.codec.topic_names import OFFSETS_TOPIC
from quorumlog.wire.codec.transaction_markers import TransactionMarker, encode_marker
from tests.support.broker.scripted_verifier import ScriptedVerifier
from tests.support.groups.coordination import T0, commit

WHERE = TopicPartition(OFFSETS_TOPIC, 0)
SETTINGS = BrokerSettings(
    offsets_topic_num_partitions=1,
    group_initial_rebalance_delay_ms=0,
    group_min_session_timeout_ms=10,
)


class MemoryLog:
    """One partition. Records above `high_watermark` wait; `refusal`: the error of appends."""

    def __init__(self, where: TopicPartition = WHERE) -> None:
        self.where = where
        self.batches: list[bytes] = []
        self.start = self.end = self.high_watermark = 0
        self.commits_at_once = True
        self.refusal = ErrorCode.NONE
        self.waiting: list[tuple[int, ProduceDone]] = []

    def append(
        self, at: TopicPartition, records: Buffer, *, acks: int, timeout_ms: int, done: ProduceDone
    ) -> None:
        assert (at, acks) == (self.where, -1)
        if self.refusal is not ErrorCode.NONE:
            done(ProduceResult(self.refusal))
            return
        batch = bytearray(records)
        restamp(batch, 0, base_offset=self.end, leader_epoch=0)
        self.batches.append(bytes(batch))
        self.waiting.append((self.end, done))
        self.end += next(iterate_headers(batch))[1].record_count
        if self.commits_at_once:
            self.commit_all()

    def append_marker(
        self,
        at: TopicPartition,
        marker: TransactionMarker,
        *,
        done: ProduceDone,
        transaction_version: int = 0,
    ) -> None:
        self.append(at, encode_marker(marker, 0), acks=-1, timeout_ms=0, done=done)

    def commit_all(self) -> None:
        self.high_watermark = self.end
        waiting, self.waiting = self.waiting, []
        for base_offset, done in waiting:
            done(ProduceResult(ErrorCode.NONE, base_offset))

    def fail_all(self, error_code: ErrorCode) -> None:
        waiting, self.waiting = self.waiting, []
        for _, done in waiting:
            done(ProduceResult(error_code))

    def read_local(
        self, at: TopicPartition, offset: int, max_bytes: int, done: Callable[[LocalRead], None]
    ) -> None:
        done(self.read(offset))

    def read(self, offset: int) -> LocalRead:
        start, end = Offset(self.start), Offset(self.end)
        if offset < start:
            return LocalRead(ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=start)
        for batch in self.batches:
            header = next(iterate_headers(batch))[1]
            if offset <= header.base_offset and header.next_offset <= self.high_watermark:
                return LocalRead(ErrorCode.NONE, batch, Offset(header.next_offset), start, end)
        return LocalRead(ErrorCode.NONE, b"", Offset(offset), start, end)

    def advance_log_start(self, at: TopicPartition, offset: Offset) -> None:
        assert (at, offset <= self.high_watermark) == (self.where, True)
        self.start = offset


class World:
    def __init__(self, log: MemoryLog | None = None) -> None:
        self.log = log or MemoryLog()
        self.violations: list[InvariantViolation] = []
        self.wall_clock_ms = 1_000_000
        self.verifier = ScriptedVerifier()
        self.service = GroupService(
            replicas=self.log,
            settings=SETTINGS,
            verifier=self.verifier,
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
