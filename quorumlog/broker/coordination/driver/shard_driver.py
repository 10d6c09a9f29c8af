"""The driver of a `CoordinatorShard`: performs its effects, and feeds it their outcomes and ticks.

It makes no decision of the shard; `coordination/core/__init__.py` has the contract. It has no event
loop: `ShardDependencies` calls it later.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
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
from quorumlog.broker.partitions.log.appends import NO_TIMEOUT_MS
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.identifiers import Offset, TopicPartition
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.transaction_markers import TransactionMarker

R = TypeVar("R")
CoordinatorT = TypeVar("CoordinatorT", bound=Coordinator)

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
        transaction_version: int,
    ) -> None:
        """Append a marker as the leader; call `done` when it is committed or refused."""

    def read_local(
        self, at: TopicPartition, offset: int, max_bytes: int, done: Callable[[LocalRead], None], /
    ) -> None:
        """Call `done` with whole committed batches of the local replica, now or once in memory."""

    def advance_log_start(self, at: TopicPartition, offset: Offset, /) -> None:
        """Delete committed records below `offset`, as the leader."""


class Timer(Protocol):
    """A call at a time to come."""

    def cancel(self) -> None:
        """Drop the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardDependencies:
    """The environment of the shards of one internal topic.

    soon: calls an action with its arguments in a later turn, outside of the present step.
    call_at: calls an action at or soon after a time of `now_ms`.
    perform_own: performs an effect of one kind of coordinator, outside of the step.
    on_fatal: gets each InvariantViolation.
    """

    log: CoordinatorLog
    load_buffer_bytes: int
    now_ms: Callable[[], int]
    soon: Callable[..., None]
    call_at: Callable[[int, Callable[[], None]], Timer]
    perform_own: Callable[[TopicPartition, effects.OwnEffect], None]
    on_fatal: Callable[[InvariantViolation], None]


class ShardDriver(Generic[CoordinatorT]):
    """The driver of one shard, from `became_leader` to `resigned`."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        shard: CoordinatorShard[CoordinatorT],
        dependencies: ShardDependencies,
    ) -> None:
        self.shard: Final = shard
        self._topic_partition: Final = topic_partition
        self._dependencies: Final = dependencies
        self._log: Final = dependencies.log
        self._asked: Final[dict[int, Callable[[Any], None]]] = {}
        self._timer: Timer | None = None
        self._ticks_at_ms = 0
        self._set_timer()

    def serve(
        self, request_id: int, request: CoordinatorRequest[R], answer: Callable[[R], None]
    ) -> None:
        """Let the coordinator handle a request; `answer` gets the response, now or later."""
        self._asked[request_id] = answer
        self.feed(events.RequestReceived(request_id=request_id, request=request))

    def feed(self, event: Any) -> None:
        """Step the shard, and perform its effects."""
        now_ms = self._dependencies.now_ms
        try:
            ordered = self.shard.step(now_ms(), event)
        except InvariantViolation as violation:
            ordered = self.shard.step(now_ms(), events.Stopped())
            self._dependencies.on_fatal(violation)
        for effect in ordered:
            self._perform(effect)
        self._set_timer()

    def clock_advanced(self, by_ms: int) -> None:
        """Check all expiries, after `now_ms` has jumped: the timer was set for the time before."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.feed(events.ClockAdvanced(by_ms=by_ms))

    def check_progress(self) -> None:
        """Raise InvariantViolation if something waits, and neither an event nor a tick will come.

        Tests and simulations call it.
        """
        self.shard.check_progress()
        deadline_ms = self.shard.next_deadline_ms
        if deadline_ms is None:
            return
        if self._timer is None or self._ticks_at_ms > deadline_ms:
            raise InvariantViolation(f"{self._topic_partition}: a tick at or before {deadline_ms}")

    def _perform(self, effect: effects.Effect) -> None:
        soon = self._dependencies.soon
        match effect:
            case effects.AnswerRequest(request_id=request_id, result=result):
                self._asked.pop(request_id)(result)
            case effects.AppendBatch(append_id=append_id, records=records):
                self._log.append(
                    self._topic_partition,
                    records,
                    acks=ACKS_ALL,
                    timeout_ms=NO_TIMEOUT_MS,  # the outcome is needed, however long it takes
                    done=partial(soon, self._append_ended, append_id),
                )
            case effects.AppendMarker(append_id=append_id, marker=marker):
                self._log.append_marker(
                    self._topic_partition,
                    marker,
                    done=partial(soon, self._append_ended, append_id),
                    transaction_version=effect.transaction_version,
                )
            case effects.ReadLog(offset=offset):
                soon(self._read, offset)
            case effects.AdvanceLogStart(offset=offset):
                self._log.advance_log_start(self._topic_partition, offset)
            case effects.OwnEffect():
                soon(self._dependencies.perform_own, self._topic_partition, effect)
            case effects.Report(text=text, is_problem=is_problem):
                level = logging.WARNING if is_problem else logging.INFO
                _logger.log(level, "%s: %s", self._topic_partition, text)
            case _:
                assert_never(effect)

    def _append_ended(self, append_id: int, result: ProduceResult) -> None:
        ended = events.AppendEnded(
            append_id=append_id, error_code=result.error_code, base_offset=result.base_offset
        )
        self.feed(ended)

    def _read(self, offset: Offset) -> None:
        max_bytes = self._dependencies.load_buffer_bytes
        self._log.read_local(self._topic_partition, offset, max_bytes, self._log_read)

    def _log_read(self, read: LocalRead) -> None:
        self.feed(events.LogRead(read=read))

    def _set_timer(self) -> None:
        """Schedule a tick at or soon after the shard's deadline; an early tick does no harm."""
        deadline_ms = self.shard.next_deadline_ms
        if self._timer is not None:
            if deadline_ms is not None and self._ticks_at_ms <= deadline_ms:
                return
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None:
            self._ticks_at_ms = deadline_ms
            self._timer = self._dependencies.call_at(deadline_ms, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.feed(events.Ticked())
