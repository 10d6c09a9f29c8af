"""The group coordinator of one simulated broker: drives the `CoordinatorShard` of a real one."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, assert_never

from quorumlog.broker.coordination.core import effects, events
from quorumlog.broker.coordination.core.coordinator import CoordinatorRequest
from quorumlog.broker.coordination.core.coordinator_shard import CoordinatorShard, Phase
from quorumlog.broker.groups.core.consumer.topics import Topics
from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.effects import MakeTarget, VerifyTransaction
from quorumlog.broker.groups.core.events import (
    TargetMade,
    TopicsChanged,
    TopicsDeleted,
    TransactionVerified,
)
from quorumlog.broker.groups.core.requests import (
    CommittedOffset,
    CommitTransactionalOffsets,
)
from quorumlog.broker.partitions.core.data_path import LocalRead, ProduceResult
from quorumlog.broker.partitions.log.local_reads import LocalReads
from quorumlog.chaos.simulation.worlds.brokers.appending import append
from quorumlog.chaos.simulation.worlds.brokers.broker_node import BrokerNode
from quorumlog.chaos.simulation.worlds.groups.consumer.topics import KnownTopics
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_EPOCH, Epoch, Offset, TopicPartition
from quorumlog.wire.codec.transaction_markers import encode_marker

LOAD_BYTES: Final = 400  # little, so that a load takes several reads
TARGET_US: Final = 30_000  # how long the thread takes that makes a large target
NO_TIMEOUT_MS: Final = 2_147_483_647

Answer = Callable[[Any], None]
GroupShard = CoordinatorShard[GroupCoordinator]
Verify = Callable[[CommitTransactionalOffsets, Callable[[ErrorCode], None]], None]
"""Asks the transaction coordinator, and is answered later."""
Offsets = Mapping[TopicPartition, CommittedOffset | None]
NewShard = Callable[[int, Topics], GroupShard]
"""Makes a shard that begins to load: `(now_ms, topics)`."""


class Load(NamedTuple):
    """Since when one shard serves, or loads. `serial`: of the shards of this broker."""

    serial: int
    since_ms: int


class Moment(NamedTuple):
    """When a broker read a request: `at_ms` of its clock."""

    node_id: int
    load: Load
    at_ms: int


class CoordinatorHost:
    """The shard of the partition `at` on a BrokerNode, if the node has ever led it."""

    def __init__(
        self,
        node: BrokerNode,
        at: TopicPartition,
        new_shard: NewShard,
        verify: Verify,
        topics: KnownTopics,
    ) -> None:
        self.topics: Final = topics
        self.loads: Final[dict[int, Load]] = {}  # by leader epoch
        self._verify: Final = verify
        self._node: Final = node
        self._at: Final = at
        self._new_shard: Final = new_shard
        self._answers: Final[dict[int, Answer]] = {}
        self._last_request_id = 0
        self._load = Load(0, 0)
        self.forget()

    def forget(self) -> None:
        """Forget all: the process starts anew."""
        self._shard: GroupShard | None = None
        self._tick_due_ms: int | None = None
        self._answers.clear()
        self.topics.forget()

    @property
    def node_id(self) -> int:
        """The id of the broker."""
        return self._node.node_id

    @property
    def leader_epoch(self) -> Epoch:
        """The epoch in which this broker believes to lead, or did last."""
        return NO_EPOCH if self._shard is None else self._shard.leader_epoch

    def now_ms(self) -> int:
        """Return the time of the broker's clock."""
        return self._node.machine.now_ms()

    def moment(self) -> Moment:
        """Return what a request that arrives now is told apart by."""
        return Moment(self.node_id, self._load, self.now_ms())

    def became_leader(self, topic_partition: TopicPartition, leader_epoch: Epoch) -> None:
        """Load the groups; keep those that are loaded if only the epoch rose."""
        del topic_partition
        if self._shard is None or self._shard.phase is Phase.CLOSED:
            self.topics.learn_all()  # the image that says so shows what came before, too
            self._load = Load(self._load.serial + 1, self.now_ms())
            self._shard = self._new_shard(self.now_ms(), self.topics.topics)
        self.loads[leader_epoch] = self._load
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

    def learn_topics(self, end: int) -> None:
        """Take note of the first `end` changes of topics."""
        deleted, names = self.topics.learn(end)
        if deleted:
            self._feed(self._shard, TopicsDeleted(topics=deleted))
        if names:
            self._feed(self._shard, TopicsChanged(names=names))

    def fetch_offsets(
        self,
        group_id: str,
        answer: Answer,
        *,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> None:
        """Give the committed offsets of a group, or the ErrorCode that says why not.

        None is given while a transaction may change one of them (KIP-447).
        """
        coordinator = self.coordinator
        if isinstance(coordinator, ErrorCode):
            answer(coordinator)
            return
        refusal = coordinator.consumer_side.fetch_refusal(group_id, member_id, member_epoch)
        if refusal is not ErrorCode.NONE:
            answer(refusal)
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
                now_ms = self._node.machine.now_ms()
                append(
                    self._node.replicas,
                    self._at,
                    encode_marker(marker, now_ms),
                    done,
                    now_ms=now_ms,
                    timeout_ms=NO_TIMEOUT_MS,
                    marker=marker,
                )
            case effects.ReadLog(offset=offset):
                self._soon(self._read, shard, offset)
            case MakeTarget(job=job):
                made = TargetMade(job=job, target=job.run())
                self._soon(self._feed, shard, made, after_us=TARGET_US)
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
