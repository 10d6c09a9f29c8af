"""One partition of an internal topic that this broker leads: loads it, then serves from it.

It decides nothing: it feeds events to the coordinator and performs its effects in order.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final, Generic, Protocol, TypeVar, assert_never

from quorumlog.broker.coordination.core import events
from quorumlog.broker.coordination.core.coordinator import Coordinator, CoordinatorRequest
from quorumlog.broker.coordination.core.effects import AdvanceLogStart, AnswerRequest, AppendRecords
from quorumlog.broker.partitions.core.data_path import (
    ACKS_ALL,
    LocalRead,
    OffsetAnswer,
    ProduceResult,
    ReadEnd,
)
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_EPOCH, UNKNOWN_OFFSET, Epoch, Offset, TopicPartition
from quorumlog.wire.codec.records import Record, decode_batches, encode_batch

R = TypeVar("R")
CoordinatorT = TypeVar("CoordinatorT", bound=Coordinator)

LOAD_POLL_S: Final = 0.02  # between two looks whether the rest of the log is committed by now
BATCHES_AT_ONCE: Final = 100  # replayed without a break: some ms
NO_TIMEOUT_MS: Final = 2_147_483_647  # the outcome is needed, however long it takes
EARLIEST_TIMESTAMP: Final = -2


_logger: Final = logging.getLogger(__name__)


class CoordinatorLog(Protocol):
    """What a coordinator needs of the replicas (`Replicas` has more)."""

    def append(
        self,
        topic_partition: TopicPartition,
        records: bytes | bytearray | memoryview,
        *,
        acks: int,
        timeout_ms: int,
    ) -> asyncio.Future[ProduceResult]:
        """Append as the leader."""

    def read_local(
        self,
        topic_partition: TopicPartition,
        offset: int,
        max_bytes: int,
        end: ReadEnd = ReadEnd.HIGH_WATERMARK,
    ) -> LocalRead:
        """Read whole batches from our replica."""

    def advance_log_start(self, topic_partition: TopicPartition, offset: Offset) -> None:
        """Delete committed records below `offset`, as the leader."""

    async def list_offset(
        self, topic_partition: TopicPartition, timestamp_ms: int, leader_epoch: Epoch
    ) -> OffsetAnswer:
        """Find an offset by timestamp."""


class _Phase(Enum):
    LOADING = auto()
    ACTIVE = auto()
    FAILED = auto()  # its log cannot be read
    CLOSED = auto()


_REFUSALS: Final = {
    _Phase.LOADING: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    _Phase.FAILED: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    _Phase.CLOSED: ErrorCode.NOT_COORDINATOR,
}


class CoordinatorShard(Generic[CoordinatorT]):
    """Lives from `became_leader` to `resigned`, or until the outcome of a write is not known.

    `on_fatal` gets our bugs; `on_lost` is called when another shard must replace this one.

    # DEVIATION: Kafka serves as soon as it has read its log to the end. We serve once all that we
    # have read is committed, so that no member gets an offset that the next leader may not have:
    # docs/decisions/0005-groups-change-when-their-record-is-committed.md
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        *,
        replicas: CoordinatorLog,
        coordinator: CoordinatorT,
        load_buffer_bytes: int,
        now_ms: Callable[[], int],
        on_fatal: Callable[[InvariantViolation], None],
        on_lost: Callable[["CoordinatorShard[CoordinatorT]"], None],
    ) -> None:
        self.topic_partition: Final = topic_partition
        self.leader_epoch = NO_EPOCH
        self._replicas, self._load_buffer_bytes = replicas, load_buffer_bytes
        self._now_ms, self._on_fatal, self._on_lost = now_ms, on_fatal, on_lost
        self._coordinator: Final = coordinator
        self._phase = _Phase.LOADING
        self._last_request_id = 0
        self._asked: dict[int, tuple[CoordinatorRequest[Any], asyncio.Future[Any]]] = {}
        self._writes: deque[tuple[int, int, asyncio.Future[ProduceResult]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._fed_while_loading: list[Any] = []
        self._loading: Final = asyncio.get_running_loop().create_task(self._load())

    @property
    def coordinator(self) -> CoordinatorT | ErrorCode:
        """The coordinator, for reading; or why it may not be read."""
        return self._coordinator if self._phase is _Phase.ACTIVE else _REFUSALS[self._phase]

    def ask(self, request: CoordinatorRequest[R]) -> asyncio.Future[R]:
        """Return the answer: now (a Future that is done), or once it is committed."""
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        if self._phase is not _Phase.ACTIVE:
            answer.set_result(request.refuse(_REFUSALS[self._phase]))
            return answer
        self._last_request_id += 1
        self._asked[self._last_request_id] = (request, answer)
        event = events.RequestReceived(request_id=self._last_request_id, request=request)
        self.feed(event)
        return answer

    def feed(self, event: Any) -> None:
        """Step, and perform the effects: once loaded. Does nothing if the shard has ended."""
        if self._phase is _Phase.LOADING:
            self._fed_while_loading.append(event)
        if self._phase is not _Phase.ACTIVE:
            return
        try:
            effects = self._coordinator.step(self._now_ms(), event)
        except InvariantViolation as violation:
            self.close()
            self._on_fatal(violation)
            return
        for effect in effects:
            match effect:
                case AnswerRequest(request_id=request_id, result=result):
                    _, answer = self._asked.pop(request_id)
                    if not answer.done():  # the client may have gone
                        answer.set_result(result)
                case AppendRecords():
                    self._append(effect)
                case AdvanceLogStart(offset=offset):
                    _logger.info("%s: rewritten, starts at %d", self.topic_partition, offset)
                    self._replicas.advance_log_start(self.topic_partition, offset)
                case _:
                    assert_never(effect)
        self._set_timer()

    def close(self) -> None:
        """Stop serving: answer every open request NOT_COORDINATOR."""
        self._phase = _Phase.CLOSED
        self._loading.cancel()
        if self._timer is not None:
            self._timer.cancel()
        asked, self._asked = self._asked, {}
        for request, answer in asked.values():
            if not answer.done():
                answer.set_result(request.refuse(ErrorCode.NOT_COORDINATOR))

    def _append(self, effect: AppendRecords[Any]) -> None:
        now_ms = self._now_ms()
        records = [
            Record(offset, now_ms, *self._coordinator.encode(record), ())
            for offset, record in enumerate(effect.records)
        ]
        outcome = self._replicas.append(
            self.topic_partition, encode_batch(records), acks=ACKS_ALL, timeout_ms=NO_TIMEOUT_MS
        )
        self._writes.append((effect.write_id, len(records), outcome))
        outcome.add_done_callback(self._written)

    def _written(self, _outcome: asyncio.Future[ProduceResult]) -> None:
        """Report the writes that have ended, in log order."""
        while self._writes and self._writes[0][2].done():
            write_id, count, outcome = self._writes.popleft()
            error_code, next_offset = ErrorCode.KAFKA_STORAGE_ERROR, UNKNOWN_OFFSET
            if not outcome.cancelled():
                error_code = outcome.result().error_code
                next_offset = Offset(outcome.result().base_offset + count)
            if error_code is ErrorCode.NONE:
                self.feed(events.WriteCommitted(write_id=write_id, next_offset=next_offset))
            elif error_code in self._coordinator.not_written:
                told = self._coordinator.not_written[error_code]
                self.feed(events.WriteFailed(write_id=write_id, error_code=told))
            else:
                self._lose(error_code)

    def _lose(self, error_code: ErrorCode) -> None:
        """End this shard: a record may or may not be in the log; only another load can tell."""
        if self._phase is _Phase.ACTIVE:
            _logger.warning("%s: a write ended with %s", self.topic_partition, error_code.name)
            self.close()
            self._on_lost(self)

    def _set_timer(self) -> None:
        loop = asyncio.get_running_loop()
        delay_s = max(self._coordinator.next_deadline_ms - self._now_ms(), 0) / 1000
        when = loop.time() + delay_s
        if self._timer is not None:
            if not self._timer.cancelled() and self._timer.when() <= when:
                return  # the next look finds out that it is early
            self._timer.cancel()
        self._timer = loop.call_at(when, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.feed(events.Ticked())

    async def _load(self) -> None:
        try:
            log_start_offset, log_end_offset = await self._read_all()
            self._coordinator.loaded(self._now_ms(), log_start_offset, log_end_offset)
        except InvariantViolation as violation:
            self.close()
            self._on_fatal(violation)
        except Exception:  # the task's outermost frame
            _logger.exception("%s cannot be loaded", self.topic_partition)
            self._phase = _Phase.FAILED
        else:
            self._phase = _Phase.ACTIVE
            _logger.info("%s: loaded, epoch %d", self.topic_partition, self.leader_epoch)
            self._set_timer()
            for event in self._fed_while_loading:
                self.feed(event)
            self._fed_while_loading.clear()
            self.feed(events.Ticked())  # the log may be due for a rewrite

    async def _read_all(self) -> tuple[int, int]:
        """Replay the log; return its start and end when all is replayed, and thus committed."""
        where = self.topic_partition
        start = offset = 0
        while True:
            read = self._replicas.read_local(where, offset, self._load_buffer_bytes)
            if read.error_code is ErrorCode.OFFSET_OUT_OF_RANGE:
                found = await self._replicas.list_offset(where, EARLIEST_TIMESTAMP, NO_EPOCH)
                start = offset = max(found.offset, 0)
            elif read.error_code is ErrorCode.NONE and read.next_offset > offset:
                await self._replay(read)
                offset = read.next_offset
                continue
            elif read.error_code is ErrorCode.NONE and self._is_end(offset):
                return start, offset
            await asyncio.sleep(LOAD_POLL_S)

    async def _replay(self, read: LocalRead) -> None:
        """Replay what was read, with breaks for the event loop: every commit is a batch."""
        for count, (header, records) in enumerate(decode_batches(read.records)):
            if count % BATCHES_AT_ONCE == 0:
                await asyncio.sleep(0)
            if header.is_control:
                continue
            for record in records:
                if record.key is not None:
                    self._coordinator.replay_encoded(record.key, record.value)

    def _is_end(self, offset: int) -> bool:
        """Whether there is nothing above the high watermark, either."""
        rest = self._replicas.read_local(self.topic_partition, offset, 1, ReadEnd.LOG_END)
        return rest.error_code is ErrorCode.NONE and rest.next_offset <= offset
