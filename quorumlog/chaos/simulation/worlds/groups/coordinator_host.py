"""The group coordinator of one simulated broker, while the broker leads the offsets topic.

It does what `coordination/io` does with tasks and futures in a real broker: loads the coordinator
from the log, performs its effects, reports its writes. What is decided, `GroupCoordinator` decides.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, assert_never

from quorumlog.broker.coordination.core import events
from quorumlog.broker.coordination.core.effects import AdvanceLogStart, AnswerRequest, AppendRecords
from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.records import LogRecord
from quorumlog.broker.groups.core.requests import CommittedOffset, GroupRequest
from quorumlog.broker.partitions.core.data_path import ProduceResult
from quorumlog.broker.settings import BrokerSettings
from quorumlog.chaos.simulation.worlds.brokers.broker_node import BrokerNode
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_EPOCH, Epoch, Offset, TopicPartition
from quorumlog.wire.codec.records import Record, decode_batches, encode_batch

LOAD_POLL_US: Final = 20_000
LOAD_BYTES: Final = 400  # little, so that a load takes several reads
NO_TIMEOUT_MS: Final = 2_147_483_647
SETTINGS: Final = BrokerSettings(
    group_min_session_timeout_ms=100, group_initial_rebalance_delay_ms=200
)

Answer = Callable[[Any], None]
Offsets = Mapping[TopicPartition, CommittedOffset | None]


class CoordinatorHost:
    """Coordinators of a BrokerNode: one at most, of the newest leader epoch."""

    def __init__(self, node: BrokerNode, coordinator_class: type[GroupCoordinator]) -> None:
        self._node: Final = node
        self._coordinator_class: Final = coordinator_class
        self._shard: _Shard | None = None

    def forget(self) -> None:
        """Forget all: the process starts anew."""
        self._shard = None

    def became_leader(self, topic_partition: TopicPartition, leader_epoch: Epoch) -> None:
        """Load the groups; keep those that are loaded if only the epoch rose."""
        shard = self._shard or self._open(topic_partition)
        shard.leader_epoch = max(shard.leader_epoch, leader_epoch)

    def resigned(self, topic_partition: TopicPartition, leader_epoch: Epoch) -> None:
        """Forget the groups."""
        del topic_partition
        if self._shard is not None and leader_epoch >= self._shard.leader_epoch:
            self._shard.close()
            self._shard = None

    def ask(self, request: GroupRequest[Any], answer: Answer) -> None:
        """Give the answer of the coordinator: now, or once it is committed."""
        if self._shard is None:
            answer(request.refuse(ErrorCode.NOT_COORDINATOR))
        else:
            self._shard.ask(request, answer)

    def fetch_offsets(self, group_id: str, answer: Answer) -> None:
        """Give the committed offsets of a group, or the ErrorCode that says why not."""
        coordinator = None if self._shard is None else self._shard.loaded
        if coordinator is None:
            answer(ErrorCode.NOT_COORDINATOR)
        else:
            answer(coordinator.fetch_offsets(group_id, None))

    @property
    def coordinator(self) -> GroupCoordinator | None:
        """The coordinator that serves, if any."""
        return None if self._shard is None else self._shard.loaded

    def _open(self, at: TopicPartition) -> "_Shard":
        shard = _Shard(self._node, at, self._coordinator_class(SETTINGS), self._load_again)
        self._shard = shard
        return shard

    def _load_again(self, lost: "_Shard") -> None:
        if self._shard is lost:
            self._open(lost.at).leader_epoch = lost.leader_epoch


@dataclass(slots=True)
class _Write:
    write_id: int
    records: int
    result: ProduceResult | None = None


class _Shard:
    """The groups of one partition, from its load to its end."""

    def __init__(
        self,
        node: BrokerNode,
        at: TopicPartition,
        coordinator: GroupCoordinator,
        lost: Callable[["_Shard"], None],
    ) -> None:
        """`lost` is told that a write has an unknown outcome: the log must be read again."""
        self.at: Final = at
        self.leader_epoch = NO_EPOCH
        self._node: Final = node
        self._coordinator: Final = coordinator
        self._lost: Final = lost
        self._is_loaded = self._is_closed = False
        self._read_up_to = Offset(0)
        self._asked: dict[int, tuple[GroupRequest[Any], Answer]] = {}
        self._last_request_id = 0
        self._writes: Final = deque[_Write]()
        self._tick_due_ms: int | None = None
        self._soon(self._load)

    @property
    def loaded(self) -> GroupCoordinator | None:
        """The coordinator, once it serves and as long as it does."""
        return self._coordinator if self._is_loaded and not self._is_closed else None

    def ask(self, request: GroupRequest[Any], answer: Answer) -> None:
        """Give the answer now, or once it is committed."""
        if self.loaded is None:
            answer(request.refuse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            return
        self._last_request_id += 1
        self._asked[self._last_request_id] = request, answer
        self._feed(events.RequestReceived(request_id=self._last_request_id, request=request))

    def close(self) -> None:
        """Answer every open request NOT_COORDINATOR."""
        self._is_closed = True
        asked, self._asked = self._asked, {}
        for request, answer in asked.values():
            answer(request.refuse(ErrorCode.NOT_COORDINATOR))

    def _soon(self, action: Callable[[], None], after_us: int = 0) -> None:
        """Call `action` outside the step that is under way."""
        self._node.machine.later(after_us, self._node.take, action)

    # --- serving ---

    def _feed(self, event: Any) -> None:
        if self.loaded is None:
            return
        for effect in self._coordinator.step(self._node.machine.now_ms(), event):
            match effect:
                case AnswerRequest(request_id=request_id, result=result):
                    _, answer = self._asked.pop(request_id)
                    answer(result)
                case AppendRecords():
                    self._append(effect)
                case AdvanceLogStart():
                    pass  # no log of the simulated brokers is deleted from its start
                case _:
                    assert_never(effect)
        self._set_timer()

    def _append(self, effect: AppendRecords[LogRecord]) -> None:
        now_ms = self._node.machine.now_ms()
        records = [
            Record(offset, now_ms, *self._coordinator.encode(record), ())
            for offset, record in enumerate(effect.records)
        ]
        write = _Write(effect.write_id, len(records))
        self._writes.append(write)

        def done(result: ProduceResult) -> None:
            write.result = result
            self._soon(self._written)

        self._node.produce(self.at, encode_batch(records), done, NO_TIMEOUT_MS)

    def _written(self) -> None:
        """Report the writes that have ended, in log order."""
        not_written = self._coordinator.not_written
        while self._writes and not self._is_closed:
            result = self._writes[0].result
            if result is None:
                return
            write = self._writes.popleft()
            if result.error_code is ErrorCode.NONE:
                end = Offset(result.base_offset + write.records)
                self._feed(events.WriteCommitted(write_id=write.write_id, next_offset=end))
            elif result.error_code in not_written:
                told = not_written[result.error_code]
                self._feed(events.WriteFailed(write_id=write.write_id, error_code=told))
            else:
                self.close()
                self._lost(self)

    def _set_timer(self) -> None:
        due_ms = self._coordinator.next_deadline_ms
        if self._tick_due_ms is None or due_ms < self._tick_due_ms:
            self._tick_due_ms = due_ms
            self._soon(self._tick, self._node.machine.until_us(due_ms))

    def _tick(self) -> None:
        if self._tick_due_ms is not None and self._tick_due_ms <= self._node.machine.now_ms():
            self._tick_due_ms = None
            self._feed(events.Ticked())

    # --- loading ---

    def _load(self) -> None:
        """Replay what is committed; serve once that is all that the log holds (decision 5)."""
        driver = self._node.replicas.drivers.get(self.at)
        if self._is_closed:
            return
        if driver is None or driver.is_cutting:
            self._soon(self._load, LOAD_POLL_US)
            return
        high_watermark = driver.partition.state.high_watermark
        if self._read_up_to < high_watermark:
            read = driver.log.read(
                self._read_up_to, max_bytes=LOAD_BYTES, end_offset=high_watermark
            )
            self._replay(bytes(read.records))
            self._read_up_to = Offset(read.next_offset)
            self._soon(self._load)
        elif high_watermark < driver.log.log_end_offset:
            self._soon(self._load, LOAD_POLL_US)
        else:
            self._coordinator.loaded(self._node.machine.now_ms(), 0, self._read_up_to)
            self._is_loaded = True
            self._feed(events.Ticked())

    def _replay(self, records: bytes) -> None:
        for header, decoded in decode_batches(records):
            for record in () if header.is_control else decoded:
                if record.key is not None:
                    self._coordinator.replay_encoded(record.key, record.value)
