"""A shard over a log in memory: its appends wait until the test commits or fails them."""

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from quorumlog.broker.coordination.core import effects, events
from quorumlog.broker.coordination.core.coordinator import Coordinator
from quorumlog.broker.coordination.core.coordinator_shard import CoordinatorShard, Phase
from quorumlog.broker.partitions.core.data_path import LocalRead
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Offset
from quorumlog.wire.codec.records import iterate_headers, restamp
from quorumlog.wire.codec.transaction_markers import encode_marker

CoordinatorT = TypeVar("CoordinatorT", bound=Coordinator)


class DrivenShard(Generic[CoordinatorT]):
    """`batches` are committed; a write under way is in `writes`, in order."""

    def __init__(
        self,
        new_coordinator: Callable[[], CoordinatorT],
        *,
        batches: Iterable[bytes] = (),
        now_ms: int = 0,
    ) -> None:
        self.now_ms = now_ms
        self.log_start = self.uncommitted = 0
        self._counted_batches = self._counted_records = 0
        self.batches: list[bytes] = []
        for batch in batches:
            self.add(batch)
        self.read_error = ErrorCode.NONE
        self.writes: list[effects.AppendBatch] = []
        self.replies: dict[int, Any] = {}
        self.reports: list[str] = []
        self.starts: list[int] = []
        self.own: list[effects.OwnEffect] = []
        self.reading: Offset | None = None
        self.last_request_id = 0
        self.shard = CoordinatorShard(new_coordinator, now_ms)

    @property
    def coordinator(self) -> CoordinatorT:
        coordinator = self.shard.coordinator
        assert not isinstance(coordinator, ErrorCode), coordinator
        return coordinator

    @property
    def end(self) -> int:
        if len(self.batches) < self._counted_batches:
            self._counted_batches = self._counted_records = 0
        for batch in self.batches[self._counted_batches :]:
            counts = (header.record_count for _, header in iterate_headers(batch))
            self._counted_records += sum(counts)
        self._counted_batches = len(self.batches)
        return self.log_start + self._counted_records

    def load(self) -> None:
        """Let the shard read until it serves, fails, or waits for records to be committed."""
        while self.shard.phase is Phase.LOADING and self.shard.next_deadline_ms == self.now_ms:
            self.step(events.Ticked())
            if self.reading is not None:
                offset, self.reading = self.reading, None
                self.step(events.LogRead(read=self.read(offset)))

    def read(self, offset: Offset) -> LocalRead:
        if self.read_error is not ErrorCode.NONE:
            return LocalRead(self.read_error)
        start, end = Offset(self.log_start), Offset(self.end)
        if offset < start:
            return LocalRead(ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=start)
        records = b"".join(self.batches) if offset < end else b""
        return LocalRead(ErrorCode.NONE, records, end, start, Offset(end + self.uncommitted))

    def step(self, event: Any) -> None:
        for effect in self.shard.step(self.now_ms, event):
            match effect:
                case effects.AnswerRequest(request_id=request_id, result=result):
                    assert request_id not in self.replies, "answered twice"
                    self.replies[request_id] = result
                case effects.AppendBatch():
                    self.writes.append(effect)
                case effects.AppendMarker(append_id=append_id, marker=marker):
                    encoded = encode_marker(marker, self.now_ms)
                    batch = effects.AppendBatch(append_id=append_id, records=encoded)
                    self.writes.append(batch)
                case effects.ReadLog(offset=offset):
                    assert self.reading is None, "one read is under way at most"
                    self.reading = offset
                case effects.AdvanceLogStart(offset=offset):
                    self.starts.append(offset)
                case effects.OwnEffect():
                    self.own.append(effect)
                case effects.Report(text=text):
                    self.reports.append(text)
        self.shard.check_progress()

    def ask(self, request: Any) -> int:
        self.last_request_id += 1
        self.step(events.RequestReceived(request_id=self.last_request_id, request=request))
        return self.last_request_id

    def answer(self, request: Any) -> Any:
        """Send a request, and commit the records that its response waits for."""
        request_id = self.ask(request)
        self.commit_writes()
        return self.replies[request_id]

    def commit_writes(self) -> None:
        while self.writes:
            self.commit_write()

    def commit_write(self) -> None:
        self.end_write(ErrorCode.NONE)

    def fail_write(self, error_code: ErrorCode = ErrorCode.NOT_ENOUGH_REPLICAS) -> None:
        self.end_write(error_code)

    def end_write(self, error_code: ErrorCode, index: int = 0) -> None:
        write, base_offset = self.writes.pop(index), -1
        if error_code is ErrorCode.NONE:
            base_offset = self.end
            self.add(write.records)
        append_id = write.append_id
        self.step(
            events.AppendEnded(append_id=append_id, error_code=error_code, base_offset=base_offset)
        )

    def add(self, batch: bytes) -> None:
        """Let a batch be the last that is committed."""
        stamped = bytearray(batch)
        restamp(stamped, 0, base_offset=self.end, leader_epoch=0)
        self.batches.append(bytes(stamped))

    def tick(self, elapsed_ms: int) -> None:
        """Let time pass as a driver does: it ticks the shard at each of its deadlines."""
        until_ms = self.now_ms + elapsed_ms
        while (deadline_ms := self.shard.next_deadline_ms) is not None and deadline_ms <= until_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.step(events.Ticked())
        self.now_ms = until_ms
        self.step(events.Ticked())

    def advance(self, by_ms: int) -> None:
        """Advance the wall clock, as the driver of a shard does."""
        self.now_ms += by_ms
        self.step(events.ClockAdvanced(by_ms=by_ms))
