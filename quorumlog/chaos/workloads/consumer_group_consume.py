"""consumer_group_consume: group_consume by the consumer protocol (KIP-848).

The broker assigns partitions, and each member revokes and adds them by itself, without a generation
of the whole group. The promises are the same, and so is the checker.
"""

from dataclasses import replace
from typing import Final

from quorumlog.chaos.workloads import group_consume
from quorumlog.chaos.workloads.group_consume import GroupConsume, GroupConsumeOptions
from quorumlog.chaos.workloads.workload import Workload


class ConsumerGroupConsume(GroupConsume):
    """The lanes of one run."""

    protocol = "consumer"


WORKLOAD: Final[Workload[GroupConsumeOptions]] = replace(
    group_consume.WORKLOAD,
    name="consumer_group_consume",
    text="group_consume with the consumer protocol of KIP-848: the broker assigns",
    clients=ConsumerGroupConsume,
    requires=frozenset({"groups", "consumer-protocol"}),
)
