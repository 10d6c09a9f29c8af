"""The group coordinator of one simulated broker, as `GroupService` has those of a real one."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from quorumlog.broker.coordination.core import effects
from quorumlog.broker.coordination.core.coordinator import CoordinatorRequest
from quorumlog.broker.coordination.core.coordinator_shard import CoordinatorShard
from quorumlog.broker.groups.core.coordinator import GroupCoordinator
from quorumlog.broker.groups.core.effects import MakeTarget, VerifyTransaction
from quorumlog.broker.groups.core.events import (
    TargetMade,
    TopicsChanged,
    TopicsDeleted,
)
from quorumlog.broker.groups.core.requests import (
    CommittedOffset,
    CommitTransactionalOffsets,
)
from quorumlog.broker.groups.core.rules import GroupRules
from quorumlog.broker.settings import BrokerSettings
from quorumlog.chaos.simulation.worlds.brokers.broker_node import BrokerNode
from quorumlog.chaos.simulation.worlds.brokers.shard_host import Answer, ShardHost
from quorumlog.chaos.simulation.worlds.groups.consumer.topics import KnownTopics
from quorumlog.invariants import InvariantViolation
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_EPOCH, Epoch, TopicPartition

TARGET_US: Final = 30_000  # how long the thread takes that makes a large target

SESSION_MS: Final = 1_200  # of members of the consumer protocol
SETTINGS: Final = BrokerSettings(
    group_min_session_timeout_ms=100,
    group_initial_rebalance_delay_ms=200,
    group_consumer_session_timeout_ms=SESSION_MS,
)

GroupShard = CoordinatorShard[GroupCoordinator]
Verify = Callable[[CommitTransactionalOffsets, Callable[[ErrorCode], None]], None]
"""Asks the transaction coordinator, and is answered later."""
Offsets = Mapping[TopicPartition, CommittedOffset | None]


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
        rules: GroupRules,
        verify: Verify,
        topics: KnownTopics,
    ) -> None:
        self.topics: Final = topics
        self.loads: Final[dict[int, Load]] = {}  # by leader epoch
        self._at: Final = at
        self._verify: Final = verify
        self._node: Final = node
        self._rules: Final = rules
        self._host: Final = ShardHost(node, at, self._new_load, self._perform)
        self._load = Load(0, 0)
        self.forget()

    def forget(self) -> None:
        """Forget all: the process starts anew."""
        self._host.forget()
        self.topics.forget()

    @property
    def node_id(self) -> int:
        """The id of the broker."""
        return self._node.node_id

    @property
    def leader_epoch(self) -> Epoch:
        """The newest leader epoch of the coordinator; -1: not on this broker."""
        return self._host.leader_epoch(self._at)

    def now_ms(self) -> int:
        """Return the time of the broker's clock."""
        return self._node.machine.now_ms()

    def moment(self) -> Moment:
        """Return what a request that arrives now is told apart by."""
        return Moment(self.node_id, self._load, self.now_ms())

    def became_leader(self, topic_partition: TopicPartition, leader_epoch: Epoch) -> None:
        """Load the groups; keep those that are loaded if only the epoch rose."""
        if self.leader_epoch == NO_EPOCH:
            self.topics.learn_all()  # the image that says so shows what came before, too
            self._load = Load(self._load.serial + 1, self.now_ms())
        self.loads[leader_epoch] = self._load
        self._host.became_leader(topic_partition, leader_epoch)

    def topics_deleted(self, names: Collection[str]) -> None:
        """Do nothing: what the groups hear of topics comes from a catalogue."""

    def resigned(self, topic_partition: TopicPartition, leader_epoch: Epoch) -> None:
        """Forget the groups."""
        self._host.resigned(topic_partition, leader_epoch)

    def ask(self, request: CoordinatorRequest[Any], answer: Answer) -> None:
        """Give the answer of the coordinator: now, or once it is committed."""
        self._host.serve(self._at, request, answer)

    def learn_topics(self, end: int) -> None:
        """Take note of the first `end` changes of topics."""
        deleted, names = self.topics.learn(end)
        if deleted:
            self._host.feed_all(TopicsDeleted(topics=deleted))
        if names:
            self._host.feed_all(TopicsChanged(names=names))

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
        refusal = coordinator.consumer_groups.fetch_refusal(group_id, member_id, member_epoch)
        if refusal is not ErrorCode.NONE:
            answer(refusal)
        elif coordinator.transactional.unstable(group_id):
            answer(ErrorCode.UNSTABLE_OFFSET_COMMIT)
        else:
            answer(coordinator.fetch_offsets(group_id, None))

    @property
    def coordinator(self) -> GroupCoordinator | ErrorCode:
        """The coordinator that serves, or why there is none."""
        return self._host.coordinator_at(self._at)

    def _new_load(self) -> GroupShard:
        coordinator = partial(
            GroupCoordinator, SETTINGS, topics=self.topics.topics, rules=self._rules
        )
        return self._rules.shard(coordinator, self.now_ms())

    def _perform(self, _at: TopicPartition, effect: effects.OwnEffect) -> None:
        match effect:
            case MakeTarget(job=job):
                made = TargetMade(job=job, target=job.run())
                self._host.soon(self._host.feed_all, made, after_us=TARGET_US)
            case VerifyTransaction():
                life = self._node.machine.incarnation
                self._verify(effect.request, partial(self._verified, life, effect))
            case _:
                raise InvariantViolation(f"{effect!r} is more than a simulated topic calls for")

    def _verified(self, life: int, effect: VerifyTransaction, error_code: ErrorCode) -> None:
        if life == self._node.machine.incarnation:
            self._host.soon(self._host.feed_all, effect.verified(error_code))
