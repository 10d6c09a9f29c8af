"""The coordinator of one partition on one simulated broker: drives the shard of a real one."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Generic, TypeVar, assert_never

from quorumlog.broker.coordination.core import effects, events
from quorumlog.broker.coordination.core.coordinator import Coordinator, CoordinatorRequest
from quorumlog.broker.coordination.core.coordinator_shard import CoordinatorShard, Phase
from quorumlog.broker.partitions.core.data_path import LocalRead, ProduceResult
from quorumlog.broker.partitions.log.appends import NO_TIMEOUT_MS
from quorumlog.broker.partitions.log.local_reads import LocalReads
from quorumlog.chaos.simulation.worlds.brokers.broker_node import BrokerNode
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_EPOCH, Epoch, Offset, TopicPartition

LOAD_BYTES: Final = 400  # little, so that a load takes several reads

Answer = Callable[[Any], None]
CoordinatorT = TypeVar("CoordinatorT", bound=Coordinator)


class ShardHost(Generic[CoordinatorT]):
    """The shard of the partition `at` on a BrokerNode, if the node has ever led it."""

    def __init__(
        self,
        node: BrokerNode,
        at: TopicPartition,
        new_shard: Callable[[], CoordinatorShard[CoordinatorT]],
        perform_own: Callable[[CoordinatorShard[CoordinatorT], effects.OwnEffect], None],
    ) -> None:
        """`perform_own` performs, for one shard, what only this kind of coordinator asks for."""
        self._node: Final = node
        self._at: Final = at
        self._new_shard: Final = new_shard
        self._perform_own: Final = perform_own
        self._answers: Final[dict[int, Answer]] = {}
        self._last_request_id = 0
        self.forget()

    def forget(self) -> None:
        """Forget all: the process starts anew."""
        self._shard: CoordinatorShard[CoordinatorT] | None = None
        self._tick_due_ms: int | None = None
        self._answers.clear()

    def became_leader(self, topic_partition: TopicPartition, leader_epoch: Epoch) -> None:
        """Load; keep what is loaded if only the epoch rose."""
        if topic_partition == self._at:
            if self.is_closed:
                self._shard = self._new_shard()
            self.feed(events.BecameLeader(leader_epoch=leader_epoch))

    def resigned(self, topic_partition: TopicPartition, leader_epoch: Epoch) -> None:
        """Serve no more."""
        if topic_partition == self._at:
            self.feed(events.Resigned(leader_epoch=leader_epoch))

    @property
    def leader_epoch(self) -> Epoch:
        """The epoch in which this broker believes to lead, or did last."""
        return NO_EPOCH if self._shard is None else self._shard.leader_epoch

    @property
    def is_closed(self) -> bool:
        """Whether the next leadership begins with a load."""
        return self._shard is None or self._shard.phase is Phase.CLOSED

    @property
    def coordinator(self) -> CoordinatorT | ErrorCode:
        """The coordinator, or why it does not serve."""
        return ErrorCode.NOT_COORDINATOR if self._shard is None else self._shard.coordinator

    def ask(self, request: CoordinatorRequest[Any], answer: Answer) -> None:
        """Give the answer of the coordinator: now, or once it is committed."""
        if self._shard is None:
            answer(request.refuse(ErrorCode.NOT_COORDINATOR))
            return
        self._last_request_id += 1
        self._answers[self._last_request_id] = answer
        self.feed(events.RequestReceived(request_id=self._last_request_id, request=request))

    def feed(self, event: Any) -> None:
        """Let the shard handle an event, if there is one."""
        if self._shard is not None:
            self.feed_to(self._shard, event)

    def feed_to(self, shard: CoordinatorShard[CoordinatorT], event: Any) -> None:
        """Let this shard handle an event, unless another has taken its place."""
        if shard is not self._shard:
            return
        for effect in shard.step(self._node.machine.now_ms(), event):
            self._perform(shard, effect)
        due_ms = shard.next_deadline_ms
        if due_ms is not None and (self._tick_due_ms is None or due_ms < self._tick_due_ms):
            self._arm(due_ms)

    def _perform(self, shard: CoordinatorShard[CoordinatorT], effect: effects.Effect) -> None:
        match effect:
            case effects.AnswerRequest(request_id=request_id, result=result):
                self._answers.pop(request_id)(result)
            case effects.AppendBatch(append_id=append_id, records=records):
                done = partial(self._appended, shard, append_id)
                self._node.produce(self._at, records, done, NO_TIMEOUT_MS)
            case effects.ReadLog(offset=offset):
                self.soon(self._read, shard, offset)
            case effects.OwnEffect():
                self._perform_own(shard, effect)
            case effects.AdvanceLogStart() | effects.Report():
                pass  # no simulated log loses its start
            case effects.AppendMarker():
                self._node.appends.append_marker(
                    self._at,
                    effect.marker,
                    done=partial(self._appended, shard, effect.append_id),
                    transaction_version=effect.transaction_version,
                )
            case _:
                assert_never(effect)

    def soon(self, action: Callable[..., None], *arguments: object, after_us: int = 0) -> None:
        """Do something as a step of its own, in this life of the process."""
        self._node.machine.later(after_us, self._node.take, action, *arguments)

    def _appended(
        self, shard: CoordinatorShard[CoordinatorT], append_id: int, result: ProduceResult
    ) -> None:
        ended = events.AppendEnded(
            append_id=append_id, error_code=result.error_code, base_offset=result.base_offset
        )
        self.soon(self.feed_to, shard, ended)

    def _read(self, shard: CoordinatorShard[CoordinatorT], offset: Offset) -> None:
        def done(read: LocalRead) -> None:
            self.feed_to(shard, events.LogRead(read=read))

        reads = LocalReads(self._node.replicas, self._node.disk_queue)
        reads.read(self._at, offset, LOAD_BYTES, done)

    def _arm(self, due_ms: int) -> None:
        self._tick_due_ms = due_ms
        self.soon(self._tick, due_ms, after_us=self._node.machine.until_us(due_ms))

    def _tick(self, due_ms: int) -> None:
        if due_ms != self._tick_due_ms:
            return  # another one has taken its place
        if due_ms > self._node.machine.now_ms():
            self._arm(due_ms)  # the clock has become slower meanwhile
            return
        self._tick_due_ms = None
        self.feed(events.Ticked())
