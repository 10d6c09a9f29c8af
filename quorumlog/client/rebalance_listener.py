"""The user's callbacks for changes of a consumer's partitions by its group."""

import logging
from collections.abc import Callable, Coroutine
from typing import Final

from quorumlog.wire.codec.identifiers import TopicPartition

_logger: Final = logging.getLogger(__name__)

Partitions = frozenset[TopicPartition]


class RebalanceListener:
    """Callbacks to override. The group waits until a callback has returned."""

    async def on_partitions_assigned(self, partitions: Partitions) -> None:
        """Handle added partitions, before their first record is read: `seek` works."""

    async def on_partitions_revoked(self, partitions: Partitions) -> None:
        """Handle partitions that move to other members, or whose topic is deleted (KIP-848).

        This is the last moment to commit their offsets.
        """

    async def on_partitions_lost(self, partitions: Partitions) -> None:
        """Handle lost partitions: other members may read them already."""


async def call_listener(
    listener: Callable[[Partitions], Coroutine[None, None, None]], partitions: Partitions
) -> None:
    """Await the user's callback; log its errors, so that the group continues."""
    try:
        await listener(partitions)
    except Exception:
        _logger.exception("a rebalance listener failed")
