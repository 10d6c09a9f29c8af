"""The shard of one partition on one simulated broker."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

from quorumlog.broker.coordination.core.coordinator import Coordinator
from quorumlog.broker.coordination.core.coordinator_shard import CoordinatorShard
from quorumlog.broker.coordination.core.effects import OwnEffect
from quorumlog.broker.coordination.driver.shard_driver import ShardDependencies
from quorumlog.broker.coordination.driver.shard_set import ShardSet
from quorumlog.broker.partitions.core.data_path import LocalRead, ProduceDone
from quorumlog.broker.partitions.log.local_reads import LocalReads
from quorumlog.chaos.simulation.worlds.brokers.broker_node import BrokerNode
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.identifiers import Offset, TopicPartition
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.transaction_markers import TransactionMarker

LOAD_BYTES: Final = 400  # little, so that a load takes several reads

Answer = Callable[[Any], None]
CoordinatorT = TypeVar("CoordinatorT", bound=Coordinator)


class ShardHost(ShardSet[CoordinatorT]):
    """The ShardSet of a BrokerNode whose topic has one partition."""

    def __init__(
        self,
        node: BrokerNode,
        at: TopicPartition,
        new_shard: Callable[[], CoordinatorShard[CoordinatorT]],
        perform_own: Callable[[TopicPartition, OwnEffect], None],
    ) -> None:
        self._node: Final = node
        dependencies = ShardDependencies(
            log=_NodeLog(node),
            load_buffer_bytes=LOAD_BYTES,
            now_ms=node.machine.now_ms,
            soon=self.soon,
            call_at=self._call_at,
            perform_own=perform_own,
            on_fatal=_raise,
        )
        super().__init__(at.topic, partitions=1, new_shard=new_shard, dependencies=dependencies)

    def forget(self) -> None:
        """Forget all: the process starts anew."""
        self._drivers.clear()

    def soon(self, action: Callable[..., None], *arguments: object, after_us: int = 0) -> None:
        """Do something as a step of its own, in this life of the process."""
        self._node.machine.later(after_us, self._node.take, action, *arguments)

    def _call_at(self, deadline_ms: int, action: Callable[[], None]) -> "_Timer":
        timer = _Timer(action)
        self.soon(timer.ring, after_us=self._node.machine.until_us(deadline_ms))
        return timer


class _Timer:
    """A call of a simulated machine, which may be cancelled."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action: Final = action
        self._is_cancelled = False

    def cancel(self) -> None:
        self._is_cancelled = True

    def ring(self) -> None:
        if not self._is_cancelled:
            self._action()


class _NodeLog:
    """A CoordinatorLog: the replicas of a BrokerNode."""

    def __init__(self, node: BrokerNode) -> None:
        self._node: Final = node

    def append(
        self, at: TopicPartition, records: Buffer, *, acks: int, timeout_ms: int, done: ProduceDone
    ) -> None:
        self._node.appends.append(at, records, acks=acks, timeout_ms=timeout_ms, done=done)

    def append_marker(
        self,
        at: TopicPartition,
        marker: TransactionMarker,
        *,
        done: ProduceDone,
        transaction_version: int = 0,
    ) -> None:
        self._node.appends.append_marker(
            at, marker, done=done, transaction_version=transaction_version
        )

    def read_local(
        self, at: TopicPartition, offset: int, max_bytes: int, done: Callable[[LocalRead], None]
    ) -> None:
        LocalReads(self._node.replicas, self._node.disk_queue).read(at, offset, max_bytes, done)

    def advance_log_start(self, at: TopicPartition, offset: Offset) -> None:
        """Do nothing: no simulated log loses its start."""


def _raise(violation: InvariantViolation) -> None:
    raise violation
