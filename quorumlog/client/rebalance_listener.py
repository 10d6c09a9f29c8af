"""The user's code that is called when a group changes a consumer's partitions."""

import logging
from collections.abc import Callable, Coroutine
from typing import Final

from quorumlog.wire.codec.identifiers import TopicPartition

_logger: Final = logging.getLogger(__name__)

Partitions = frozenset[TopicPartition]


class RebalanceListener:
    """Override what you need. The group waits until a method has returned."""

    async def on_partitions_assigned(self, partitions: Partitions) -> None:
        """Handle added partitions. None of them was read yet, so `seek` works."""

    async def on_partitions_revoked(self, partitions: Partitions) -> None:
        """Handle partitions that go to other members, or whose topic is deleted (KIP-848).

        This is the last moment to commit.
        """

    async def on_partitions_lost(self, partitions: Partitions) -> None:
        """Handle lost partitions: other members may read them already."""


async def call_listener(
    listener: Callable[[Partitions], Coroutine[None, None, None]], partitions: Partitions
) -> None:
    """Await the user's code. What it raises is logged; the group goes on."""
    try:
        await listener(partitions)
    except Exception:
        _logger.exception("a rebalance listener failed")
