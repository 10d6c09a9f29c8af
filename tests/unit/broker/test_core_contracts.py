"""The contract of a core names every effect and every event that the core has."""

from types import ModuleType
from typing import get_args

import pytest

from quorumlog.broker.coordination import core as coordination
from quorumlog.broker.coordination.core import effects as shard_effects
from quorumlog.broker.coordination.core import events as shard_events
from quorumlog.broker.groups import core as groups
from quorumlog.broker.groups.core import consumer as consumer_groups
from quorumlog.broker.groups.core import effects as group_effects
from quorumlog.broker.groups.core import events as group_events
from quorumlog.broker.groups.core.consumer import effects as consumer_group_effects
from quorumlog.broker.groups.core.consumer import events as consumer_group_events
from quorumlog.broker.partitions import core as partitions
from quorumlog.broker.partitions.core import effects as partition_effects
from quorumlog.broker.partitions.core import events as partition_events
from quorumlog.broker.transactions import core as transactions
from quorumlog.broker.transactions.core import effects as transaction_effects
from quorumlog.broker.transactions.core import events as transaction_events


@pytest.mark.parametrize(
    ("core", "effects", "events"),
    [
        (partitions, partition_effects, partition_events),
        (coordination, shard_effects, shard_events),
        (groups, group_effects, group_events),
        (transactions, transaction_effects, transaction_events),
        (consumer_groups, consumer_group_effects, consumer_group_events),
    ],
)
def test_a_contract_names_every_effect_and_every_event(
    core: ModuleType, effects: ModuleType, events: ModuleType
) -> None:
    kinds = {kind.__name__ for kind in (*get_args(effects.Effect), *get_args(events.Event))}
    assert kinds
    assert {kind for kind in kinds if f"`{kind}`" not in (core.__doc__ or "")} == set()
