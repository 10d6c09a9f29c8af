"""The group coordinator of one simulated broker: drives the `CoordinatorShard` of a real one."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, assert_never

from quorumlog.broker.coordination.core import effects, events
from quorumlog.broker.coordination.core.coordinator import CoordinatorRequest
from quorumlog.broker.coordination.core.coordinator_shard import CoordinatorShard, Phase
from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.effects import VerifyTransaction
from quorumlog.broker.groups.core.events import TransactionVerified
from quorumlog.broker.groups.core.requests import (
    CommittedOffset,
    CommitTransactionalOffsets,
)
from quorumlog.broker.partitions.core.data_path import LocalRead, ProduceResult
from quorumlog.broker.partitions.log.local_reads import LocalReads
from quorumlog.chaos.simulation.worlds.brokers.broker_node import BrokerNode
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Epoch, Offset, TopicPartition
from quorumlog.wire.codec.transaction_markers import encode_marker

LOAD_BYTES: Final = 400  # little, so that a load takes several reads
NO_TIMEOUT_MS: Final = 2_147_483_647

Answer = Callable[[Any], None]
GroupShard = CoordinatorShard[GroupCoordinator]
Verify = Callable[[CommitTransactionalOffsets, Callable[[ErrorCode], None]], None]
"""Asks the transaction coordinator, and is answered later."""
Offsets = Mapping[TopicPartition, CommittedOffset | None]


class CoordinatorHost:
    """The shard of the partition `at` on a BrokerNode, if the node has ever led it."""

    def __init__(
        self,
        node: BrokerNode,
        at: TopicPartition,
        new_shard: Callable[[int], GroupShard],
        verify: Verify,
    ) -> None:
        """`new_shard(now_ms)` makes a shard that begins to load."""
        self._verify: Final = verify
        self._node: Final = node
        self._at: Final = at
        self._new_shard: Final = new_shard
        self._answers: Final[dict[int, Answer]] = {}
        self._last_request_id = 0
        self.forget()

    def forget(self) -> None:
        """Forget all: the process starts anew."""
        self._shard: GroupShard | None = None
        self._tick_due_ms: int | None = None
        self._answers.clear()

    def became_leader(self, topic_partition: TopicPartition, leader_epoch: Epoch) -> None:
        """Load the groups; keep those that are loaded if only the epoch rose."""
        del topic_partition
        if self._shard is None or self._shard.phase is Phase.CLOSED:
            self._shard = self._new_shard(self._node.machine.now_ms())
        self._feed(self._shard, events.BecameLeader(leader_epoch=leader_epoch))

    def resigned(self, topic_partition: TopicPartition, leader_epoch: Epoch) -> None:
        """Forget the groups."""
        del topic_partition
        self._feed(self._shard, events.Resigned(leader_epoch=leader_epoch))

    def ask(self, request: CoordinatorRequest[Any], answer: Answer) -> None:
        """Give the answer of the coordinator: now, or once it is committed."""
        if self._shard is None:
            answer(request.refuse(ErrorCode.NOT_COORDINATOR))
            return
        self._last_request_id += 1
        request_id = self._last_request_id
        self._answers[request_id] = answer
        received = events.RequestReceived(request_id=request_id, request=request)
        self._feed(self._shard, received)

    def fetch_offsets(self, group_id: str, answer: Answer) -> None:
        """Give the committed offsets of a group, or the ErrorCode that says why not.

        None is given while a transaction may change one of them (KIP-447).
        """
        coordinator = self.coordinator
        if isinstance(coordinator, ErrorCode):
            answer(coordinator)
        elif coordinator.transactional.unstable(group_id):
            answer(ErrorCode.UNSTABLE_OFFSET_COMMIT)
        else:
            answer(coordinator.fetch_offsets(group_id, None))

    @property
    def coordinator(self) -> GroupCoordinator | ErrorCode:
        """The coordinator that serves, or why there is none."""
        return ErrorCode.NOT_COORDINATOR if self._shard is None else self._shard.coordinator

    def _soon(self, action: Callable[..., None], *arguments: object, after_us: int = 0) -> None:
        """Call `action` outside the step that is under way."""
        self._node.machine.later(after_us, self._node.take, action, *arguments)

    def _feed(self, shard: GroupShard | None, event: Any) -> None:
        """Let the shard handle an event, unless another has taken its place."""
        if shard is None or shard is not self._shard:
            return
        for effect in shard.step(self._node.machine.now_ms(), event):
            self._perform(shard, effect)
        due_ms = shard.next_deadline_ms
        if due_ms is not None and (self._tick_due_ms is None or due_ms < self._tick_due_ms):
            self._arm(due_ms)

    def _perform(self, shard: GroupShard, effect: effects.Effect) -> None:
        match effect:
            case effects.AnswerRequest(request_id=request_id, result=result):
                self._answers.pop(request_id)(result)
            case effects.AppendBatch(append_id=append_id, records=records):
                done = partial(self._appended, shard, append_id)
                self._node.produce(self._at, records, done, NO_TIMEOUT_MS)
            case effects.AppendMarker(append_id=append_id, marker=marker):
                done = partial(self._appended, shard, append_id)
                encoded = encode_marker(marker, self._node.machine.now_ms())
                self._node.produce(self._at, encoded, done, NO_TIMEOUT_MS, marker)
            case effects.ReadLog(offset=offset):
                self._soon(self._read, shard, offset)
            case VerifyTransaction():
                self._verify(effect.request, partial(self._verified, shard, effect))
            case effects.AdvanceLogStart() | effects.OwnEffect() | effects.Report():
                pass  # no simulated log loses its start
            case _:
                assert_never(effect)

    def _appended(self, shard: GroupShard, append_id: int, result: ProduceResult) -> None:
        ended = events.AppendEnded(
            append_id=append_id, error_code=result.error_code, base_offset=result.base_offset
        )
        self._soon(self._feed, shard, ended)

    def _verified(
        self, shard: GroupShard, effect: VerifyTransaction, error_code: ErrorCode
    ) -> None:
        verified = TransactionVerified(
            request_id=effect.request_id, request=effect.request, error_code=error_code
        )
        self._soon(self._feed, shard, verified)

    def _read(self, shard: GroupShard, offset: Offset) -> None:
        def done(read: LocalRead) -> None:
            self._feed(shard, events.LogRead(read=read))

        reads = LocalReads(self._node.replicas, self._node.disk_queue)
        reads.read(self._at, offset, LOAD_BYTES, done)

    def _arm(self, due_ms: int) -> None:
        self._tick_due_ms = due_ms
        self._soon(self._tick, due_ms, after_us=self._node.machine.until_us(due_ms))

    def _tick(self, due_ms: int) -> None:
        if due_ms != self._tick_due_ms:
            return  # another one has taken its place
        if due_ms > self._node.machine.now_ms():
            self._arm(due_ms)  # the clock has become slower meanwhile
            return
        self._tick_due_ms = None
        self._feed(self._shard, events.Ticked())
