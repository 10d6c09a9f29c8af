"""consumer_group_consume: group_consume by the consumer protocol (KIP-848).

The broker assigns partitions, and each member revokes and adds them by itself, without a generation
of the whole group. The promises are the same, and so is the checker. A share of the members may use
the classic protocol (`classic`): then the group changes its protocol while it has members.
"""

import random
from dataclasses import dataclass
from typing import Final

from quorumlog.chaos.workloads import group_consume
from quorumlog.chaos.workloads.group_consume import GroupConsume, GroupConsumeOptions
from quorumlog.chaos.workloads.workload import Workload, option


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupConsumeOptions(GroupConsumeOptions):
    """As for group_consume, and the share of classic members."""

    classic: float = option(0.0, "the share of members with the classic protocol", above=-1)


class ConsumerGroupConsume(GroupConsume):
    """The lanes of one run."""

    protocol = "consumer"

    def _protocol(self, rng: random.Random) -> str:
        share = getattr(self._setup.options, "classic", 0.0)
        return "classic" if share and rng.random() < share else self.protocol


WORKLOAD: Final = Workload(
    name="consumer_group_consume",
    text="group_consume with the consumer protocol of KIP-848: the broker assigns",
    options=ConsumerGroupConsumeOptions,
    clients=ConsumerGroupConsume,
    model=group_consume.WORKLOAD.model,
    dense=True,
    requires=frozenset({"groups", "consumer-protocol"}),
)
