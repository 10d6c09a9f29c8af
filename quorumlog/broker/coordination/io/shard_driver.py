"""The driver of a `CoordinatorShard` in the event loop: futures, one timer, the replicas.

It makes no decision of the shard; `coordination/core/__init__.py` has the contract.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar, assert_never

from quorumlog.broker.coordination.core import effects, events
from quorumlog.broker.coordination.core.coordinator import Coordinator, CoordinatorRequest
from quorumlog.broker.coordination.core.coordinator_shard import CoordinatorShard
from quorumlog.broker.partitions.core.data_path import (
    ACKS_ALL,
    LocalRead,
    ProduceDone,
    ProduceResult,
)
from quorumlog.invariants import InvariantViolation, some
from quorumlog.wire.codec.identifiers import Offset, TopicPartition
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.transaction_markers import TransactionMarker

R = TypeVar("R")
CoordinatorT = TypeVar("CoordinatorT", bound=Coordinator)

NO_TIMEOUT_MS: Final = 2_147_483_647  # the outcome is needed, however long it takes

_logger: Final = logging.getLogger(__name__)


class CoordinatorLog(Protocol):
    """The operations of `Replicas` on a coordinator's log."""

    def append(
        self,
        at: TopicPartition,
        records: Buffer,
        /,
        *,
        acks: int,
        timeout_ms: int,
        done: ProduceDone,
    ) -> None:
        """Append as the leader; call `done` with the outcome, now or later."""

    def append_marker(
        self,
        at: TopicPartition,
        marker: TransactionMarker,
        /,
        *,
        done: ProduceDone,
        transaction_version: int = 0,
    ) -> None:
        """Append a marker as the leader; call `done` when it is committed or refused."""

    def read_local(
        self,
        at: TopicPartition,
        offset: int,
        max_bytes: int,
        done: Callable[[LocalRead], None],
        /,
    ) -> None:
        """Call `done` with whole committed batches of the local replica, now or once in memory."""

    def advance_log_start(self, at: TopicPartition, offset: Offset, /) -> None:
        """Delete committed records below `offset`, as the leader."""


class ShardDriver(Generic[CoordinatorT]):
    """The driver of one shard, from `became_leader` to `resigned`.

    `on_fatal` gets each InvariantViolation. `perform_own` performs each `OwnEffect`, outside of
    `feed`.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        *,
        replicas: CoordinatorLog,
        new_coordinator: Callable[[], CoordinatorT],
        load_buffer_bytes: int,
        now_ms: Callable[[], int],
        on_fatal: Callable[[InvariantViolation], None],
        perform_own: Callable[[effects.OwnEffect], None] | None = None,
        shard: type[CoordinatorShard[CoordinatorT]] = CoordinatorShard,
    ) -> None:
        self.shard: Final = shard(new_coordinator, now_ms())
        self._topic_partition: Final = topic_partition
        self._replicas, self._load_buffer_bytes = replicas, load_buffer_bytes
        self._now_ms, self._on_fatal, self._perform_own = now_ms, on_fatal, perform_own
        self._last_request_id = 0
        self._asked: Final[dict[int, asyncio.Future[Any]]] = {}
        self._timer: asyncio.Handle | None = None
        self._ticks_at_s = 0.0  # kept here: the handle of a due timer has no `when` in uvloop
        self._set_timer()

    def ask(self, request: CoordinatorRequest[R]) -> asyncio.Future[R]:
        """Return a Future of the response, already done if the response needs no commit."""
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._last_request_id += 1
        self._asked[self._last_request_id] = answer
        self.feed(events.RequestReceived(request_id=self._last_request_id, request=request))
        return answer

    def feed(self, event: Any) -> None:
        """Step the shard, and perform its effects."""
        try:
            ordered = self.shard.step(self._now_ms(), event)
        except InvariantViolation as violation:
            ordered = self.shard.step(self._now_ms(), events.Stopped())
            self._on_fatal(violation)
        for effect in ordered:
            self._perform(effect)
        self._set_timer()

    def _perform(self, effect: effects.Effect) -> None:
        match effect:
            case effects.AnswerRequest(request_id=request_id, result=result):
                answer = self._asked.pop(request_id)
                if not answer.done():  # cancelled if the client has disconnected
                    answer.set_result(result)
            case effects.AppendBatch(append_id=append_id, records=records):
                self._replicas.append(
                    self._topic_partition,
                    records,
                    acks=ACKS_ALL,
                    timeout_ms=NO_TIMEOUT_MS,
                    done=partial(self._soon, self._append_ended, append_id),
                )
            case effects.AppendMarker(append_id=append_id, marker=marker):
                self._replicas.append_marker(
                    self._topic_partition,
                    marker,
                    done=partial(self._soon, self._append_ended, append_id),
                    transaction_version=effect.transaction_version,
                )
            case effects.ReadLog(offset=offset):
                self._soon(self._read, offset)
            case effects.AdvanceLogStart(offset=offset):
                self._replicas.advance_log_start(self._topic_partition, offset)
            case effects.OwnEffect():
                self._soon(some(self._perform_own, "a driver performs its own effects"), effect)
            case effects.Report(text=text, is_problem=is_problem):
                level = logging.WARNING if is_problem else logging.INFO
                _logger.log(level, "%s: %s", self._topic_partition, text)
            case _:
                assert_never(effect)

    def _soon(self, action: Callable[..., None], *arguments: object) -> None:
        """Call `action` in a later turn of the event loop, outside the present step."""
        asyncio.get_running_loop().call_soon(action, *arguments)

    def _append_ended(self, append_id: int, result: ProduceResult) -> None:
        ended = events.AppendEnded(
            append_id=append_id, error_code=result.error_code, base_offset=result.base_offset
        )
        self.feed(ended)

    def _read(self, offset: Offset) -> None:
        where, max_bytes = self._topic_partition, self._load_buffer_bytes
        self._replicas.read_local(where, offset, max_bytes, self._log_read)

    def _log_read(self, read: LocalRead) -> None:
        self.feed(events.LogRead(read=read))

    def _set_timer(self) -> None:
        """Schedule a tick at or soon after the shard's deadline; an early tick does no harm."""
        deadline_ms = self.shard.next_deadline_ms
        if deadline_ms is None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + max(deadline_ms - self._now_ms(), 0) / 1000
        if self._timer is not None:
            if self._ticks_at_s <= when:
                return
            self._timer.cancel()
        self._ticks_at_s, self._timer = when, loop.call_at(when, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.feed(events.Ticked())
