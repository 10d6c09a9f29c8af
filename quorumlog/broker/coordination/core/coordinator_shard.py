"""One led partition of an internal topic: loads its coordinator, then serves requests.

`coordination/core/__init__.py` has the contract with the drivers.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice
from typing import Any, Final, Generic, TypeVar, assert_never

from quorumlog.broker.coordination.core import effects, events
from quorumlog.broker.coordination.core.coordinator import (
    Coordinator,
    CoordinatorRequest,
    ReplaysTransactions,
)
from quorumlog.broker.coordination.core.effects import Effect
from quorumlog.broker.partitions.core.data_path import LocalRead
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_EPOCH, NO_PRODUCER_ID, UNKNOWN_OFFSET, Epoch, Offset
from quorumlog.wire.codec.records import BatchHeader, Record, decode_batches, encode_batch

CoordinatorT = TypeVar("CoordinatorT", bound=Coordinator)

LOAD_POLL_MS: Final = 20  # between two reads while the end of the log is not committed
BATCHES_AT_ONCE: Final = 100  # replayed in one step: some ms


class Phase(Enum):
    """The phase of a shard."""

    LOADING = auto()
    ACTIVE = auto()
    FAILED = auto()  # its log cannot be read
    CLOSED = auto()


REFUSALS: Final[Mapping[Phase, ErrorCode]] = {
    Phase.LOADING: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    Phase.FAILED: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    Phase.CLOSED: ErrorCode.NOT_COORDINATOR,
}


@dataclass(slots=True)
class _Write:
    """An append under way; `ended`: its result, kept until all earlier appends have ended."""

    append_id: int
    write_id: int
    records: int
    ended: events.AppendEnded | None = None


class CoordinatorShard(Generic[CoordinatorT]):
    """Loads, serves while this broker leads, and reloads after a write of unknown outcome.

    # DEVIATION: Kafka serves once it has read its log to the end. We serve once the high watermark
    # has reached that end, so that no client gets an offset that the next leader may not have:
    # docs/decisions/0028-group-commits.md
    """

    def __init__(self, new_coordinator: Callable[[], CoordinatorT], now_ms: int) -> None:
        self.phase = Phase.LOADING
        self._new_coordinator: Final = new_coordinator
        self._leader_epoch = NO_EPOCH
        self._last_append_id = 0
        self._effects: list[Effect] = []
        self._asked: dict[int, CoordinatorRequest[Any]] = {}
        self._begin_to_load(now_ms)

    def _begin_to_load(self, now_ms: int) -> None:
        self.phase = Phase.LOADING
        self._coordinator = self._new_coordinator()
        self._writes = deque[_Write]()
        self._log_start = self._read_up_to = Offset(0)
        self._unreplayed: Iterator[tuple[BatchHeader, Sequence[Record]]] = iter(())
        self._load_on_at_ms: int | None = now_ms  # None: a read is under way
        self._fed_while_loading: list[Any] = []

    @property
    def coordinator(self) -> CoordinatorT | ErrorCode:
        """The coordinator, for reading; or the error of a shard that does not serve."""
        return self._coordinator if self.phase is Phase.ACTIVE else REFUSALS[self.phase]

    @property
    def leader_epoch(self) -> Epoch:
        """The newest leader epoch received; -1: none."""
        return self._leader_epoch

    @property
    def next_deadline_ms(self) -> int | None:
        """The time of the next tick, if no other event comes first; None: no tick is needed."""
        if self.phase is Phase.LOADING:
            return self._load_on_at_ms
        return self._coordinator.next_deadline_ms if self.phase is Phase.ACTIVE else None

    def step(self, now_ms: int, event: Any) -> list[Effect]:
        """Handle an `events.Event` or an event of the coordinator; return the effects, in order.

        Raises InvariantViolation: our bug.
        """
        self._effects = []
        match event:
            case events.BecameLeader(leader_epoch=leader_epoch):
                self._handle_became_leader(now_ms, leader_epoch)
            case events.Resigned(leader_epoch=leader_epoch):
                self._handle_resigned(leader_epoch)
            case events.Stopped():
                self._close()
            case events.LogRead(read=read):
                self._handle_read(now_ms, read)
            case events.AppendEnded():
                self._handle_append_ended(now_ms, event)
            case events.RequestReceived():
                self._handle_request(now_ms, event)
            case events.Ticked() | events.ClockAdvanced() if self.phase is Phase.LOADING:
                self._maybe_load_on(now_ms)  # sessions begin once all is loaded
            case _ if self.phase is Phase.LOADING:
                self._fed_while_loading.append(event)
            case _:
                self._feed(now_ms, event)
        return self._effects

    def check_progress(self) -> None:
        """Raise InvariantViolation if something waits in a coordinator, and nothing will end that.

        Tests and simulations call it, after a step.
        """
        if self.phase is Phase.ACTIVE:
            self._coordinator.check_progress()

    # --- Serving ---

    def _handle_request(self, now_ms: int, event: events.RequestReceived[Any]) -> None:
        self._asked[event.request_id] = event.request
        if self.phase is Phase.ACTIVE:
            self._feed(now_ms, event)
        else:
            self._refuse_all(REFUSALS[self.phase])

    def _feed(self, now_ms: int, event: Any) -> None:
        """Let the coordinator handle an event; drop the event if the shard does not serve."""
        if self.phase is not Phase.ACTIVE:
            return
        for effect in self._coordinator.step(now_ms, event):
            match effect:
                case effects.AnswerRequest(request_id=request_id):
                    del self._asked[request_id]
                    self._effects.append(effect)
                case effects.AppendRecords():
                    self._append(now_ms, effect)
                case effects.WriteMarker(write_id=write_id):
                    append = effects.AppendMarker(
                        append_id=self._new_write(write_id, records=1),
                        marker=effect.marker,
                        transaction_version=effect.transaction_version,
                    )
                    self._effects.append(append)
                case effects.AdvanceLogStart(offset=offset):
                    self._effects.append(effects.Report(text=f"rewritten, starts at {offset}"))
                    self._effects.append(effect)
                case effects.OwnEffect():
                    self._effects.append(effect)
                case _:
                    assert_never(effect)

    def _append(self, now_ms: int, effect: effects.AppendRecords[Any]) -> None:
        records = [
            Record(offset, now_ms, *self._coordinator.encode(record), ())
            for offset, record in enumerate(effect.records)
        ]
        append_id = self._new_write(effect.write_id, len(records))
        batch = encode_batch(
            records,
            producer_id=effect.producer_id,
            producer_epoch=effect.producer_epoch,
            is_transactional=effect.producer_id != NO_PRODUCER_ID,
        )
        self._effects.append(effects.AppendBatch(append_id=append_id, records=batch))

    def _new_write(self, write_id: int, records: int) -> int:
        """Record an append under way; return its id."""
        self._last_append_id += 1
        self._writes.append(_Write(self._last_append_id, write_id, records))
        return self._last_append_id

    def _handle_append_ended(self, now_ms: int, event: events.AppendEnded) -> None:
        """Report ended writes in log order. Ignore an append of an earlier load."""
        for write in self._writes:
            if write.append_id == event.append_id:
                write.ended = event
                break  # nearly always the first write
        while self._writes and (ended := self._writes[0].ended) is not None:
            self._report_write(now_ms, self._writes.popleft(), ended)

    def _report_write(self, now_ms: int, write: _Write, ended: events.AppendEnded) -> None:
        told, next_offset = ErrorCode.NONE, Offset(ended.base_offset + write.records)
        if ended.error_code is not ErrorCode.NONE:
            if ended.error_code not in self._coordinator.not_written:
                self._load_again(now_ms, ended.error_code)
                return
            told, next_offset = self._coordinator.not_written[ended.error_code], UNKNOWN_OFFSET
        self._feed(
            now_ms,
            events.WriteEnded(write_id=write.write_id, error_code=told, next_offset=next_offset),
        )

    def _load_again(self, now_ms: int, error_code: ErrorCode) -> None:
        """Load again: only the log shows whether the write is in it."""
        self._refuse_all(ErrorCode.NOT_COORDINATOR)
        self._report_problem(f"a write ended with {error_code.name}")
        self._begin_to_load(now_ms)

    # --- Leader epochs and the end ---

    def _handle_became_leader(self, now_ms: int, leader_epoch: Epoch) -> None:
        if leader_epoch > self._leader_epoch:
            self._leader_epoch = leader_epoch
            self._feed(now_ms, events.BecameLeader(leader_epoch=leader_epoch))

    def _handle_resigned(self, leader_epoch: Epoch) -> None:
        if leader_epoch >= self._leader_epoch:  # KAFKA-18137
            self._close()

    def _close(self) -> None:
        """Stop serving; answer every open request NOT_COORDINATOR."""
        self.phase = Phase.CLOSED
        self._writes.clear()
        self._refuse_all(ErrorCode.NOT_COORDINATOR)

    def _refuse_all(self, error_code: ErrorCode) -> None:
        for request_id, request in self._asked.items():
            refusal = request.refuse(error_code)
            self._effects.append(effects.AnswerRequest(request_id=request_id, result=refusal))
        self._asked.clear()

    def _report_problem(self, text: str) -> None:
        self._effects.append(effects.Report(text=text, is_problem=True))

    # --- Loading ---

    def _maybe_load_on(self, now_ms: int) -> None:
        """Replay some batches of the last read, or read on: each commit is a batch of its own."""
        if self._load_on_at_ms is None or now_ms < self._load_on_at_ms:
            return
        try:
            count = self._replay()
        except ValueError as error:
            self.phase = Phase.FAILED
            self._report_problem(f"cannot be loaded: {error!r}")
            return
        if count < BATCHES_AT_ONCE:
            self._load_on_at_ms = None
            self._effects.append(effects.ReadLog(offset=self._read_up_to))

    def _replay(self) -> int:
        count = 0
        for header, records in islice(self._unreplayed, BATCHES_AT_ONCE):
            count += 1
            if header.is_transactional and isinstance(self._coordinator, ReplaysTransactions):
                self._coordinator.replay_transactional(header, records)
                continue
            for record in () if header.is_control else records:
                if record.key is not None:
                    self._coordinator.replay_encoded(record.key, record.value)
        return count

    def _handle_read(self, now_ms: int, read: LocalRead) -> None:
        if self.phase is not Phase.LOADING:
            return
        self._load_on_at_ms = now_ms + LOAD_POLL_MS
        if read.error_code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._log_start = self._read_up_to = read.log_start_offset
        elif read.error_code is ErrorCode.NONE and read.next_offset > self._read_up_to:
            self._load_on_at_ms = now_ms
            self._unreplayed = decode_batches(read.records)
            self._read_up_to = read.next_offset
        elif read.error_code is ErrorCode.NONE and self._is_whole(read):
            self._begin_to_serve(now_ms)

    def _is_whole(self, read: LocalRead) -> bool:
        """Whether the whole log was read: no record is above the high watermark."""
        return read.log_end_offset <= self._read_up_to

    def _begin_to_serve(self, now_ms: int) -> None:
        self._coordinator.loaded(now_ms, self._log_start, self._read_up_to)
        self.phase = Phase.ACTIVE
        self._effects.append(effects.Report(text=f"loaded, epoch {self._leader_epoch}"))
        self._feed(now_ms, events.BecameLeader(leader_epoch=self._leader_epoch))
        for event in self._fed_while_loading:
            self._feed(now_ms, event)
        self._fed_while_loading.clear()
        self._feed(now_ms, events.Ticked())  # the log may be due for a rewrite
