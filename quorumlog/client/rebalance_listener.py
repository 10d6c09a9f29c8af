"""How a user hears of what the group does to a consumer's partitions."""

import logging
from collections.abc import Callable, Coroutine
from typing import Final

from quorumlog.wire.codec.identifiers import TopicPartition

_logger: Final = logging.getLogger(__name__)

Partitions = frozenset[TopicPartition]


class RebalanceListener:
    """Override what you need. Each is awaited, and the group waits for it."""

    async def on_partitions_assigned(self, partitions: Partitions) -> None:
        """Learn what was added: nothing of it was read yet, and `seek` works."""

    async def on_partitions_revoked(self, partitions: Partitions) -> None:
        """Learn what goes to another member: the last moment to commit."""

    async def on_partitions_lost(self, partitions: Partitions) -> None:
        """Learn what was taken away unnoticed: others may read it already."""


async def tell(
    listener: Callable[[Partitions], Coroutine[None, None, None]], partitions: Partitions
) -> None:
    """Await the user's code; the group goes on if it fails."""
    try:
        await listener(partitions)
    except Exception:
        _logger.exception("a rebalance listener failed")
