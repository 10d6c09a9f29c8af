"""The rules of the group coordinators of a broker, each a class that a mutant may replace."""

from dataclasses import dataclass
from typing import Any, Final

from quorumlog.broker.coordination.core.coordinator_shard import CoordinatorShard
from quorumlog.broker.groups.core.classic import ClassicProtocol
from quorumlog.broker.groups.core.classic_groups import ClassicGroups
from quorumlog.broker.groups.core.committed_offsets import CommittedOffsets
from quorumlog.broker.groups.core.consumer.coordinator import (
    ConsumerGroupCoordinator,
    ConsumerGroupRules,
)
from quorumlog.broker.groups.core.consumer_groups import ConsumerGroups
from quorumlog.broker.groups.core.joins import Joins
from quorumlog.broker.groups.core.offsets import CommittedState
from quorumlog.broker.groups.core.rebalance import Rebalance
from quorumlog.broker.groups.core.replay import Replay
from quorumlog.broker.groups.core.rewrite import Rewrite
from quorumlog.broker.groups.core.transactional_offsets import TransactionalOffsets


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRules(ConsumerGroupRules):
    """The class of each rule. A mutant is a `GroupRules` with one class replaced.

    `shard`: decides which records of the log a coordinator loads, and when it serves.
    """

    shard: type[CoordinatorShard[Any]] = CoordinatorShard
    committed_state: type[CommittedState] = CommittedState
    rewrite: type[Rewrite] = Rewrite
    replay: type[Replay] = Replay
    rebalance: type[Rebalance] = Rebalance
    joining: type[Joins] = Joins
    classic_protocol: type[ClassicProtocol] = ClassicProtocol
    classic_groups: type[ClassicGroups] = ClassicGroups
    consumer_coordinator: type[ConsumerGroupCoordinator] = ConsumerGroupCoordinator
    consumer_groups: type[ConsumerGroups] = ConsumerGroups
    transactional: type[TransactionalOffsets] = TransactionalOffsets
    committed_offsets: type[CommittedOffsets] = CommittedOffsets


GROUP_RULES: Final = GroupRules()
