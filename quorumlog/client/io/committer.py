"""Commits of what a consumer has processed: when the user asks, when time passes, at the end."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from quorumlog.client.core.positions import Positions
from quorumlog.client.errors import KafkaError
from quorumlog.client.io.coordinator import Coordinator
from quorumlog.client.records import OffsetAndMetadata
from quorumlog.client.settings import ConsumerSettings
from quorumlog.wire.codec.identifiers import TopicPartition

_logger: Final = logging.getLogger(__name__)

Places = Mapping[TopicPartition, OffsetAndMetadata]


class Committer:
    """One consumer's commits.

    `member` tells (member id, generation), ("", -1) for a consumer that reads without a group's
    help. It raises KafkaError while a subscribed one is not a member: others may be ahead of it.
    """

    def __init__(
        self,
        settings: ConsumerSettings,
        positions: Positions,
        coordinator: Coordinator,
        member: Callable[[], tuple[str, int]],
    ) -> None:
        self._settings: Final = settings
        self._positions: Final = positions
        self.coordinator: Final = coordinator
        self._member: Final = member
        self._loop: Final = asyncio.get_running_loop()
        self._next_at: float = self._loop.time() + settings.auto_commit_interval_ms / 1000
        self._background: asyncio.Task[None] | None = None

    async def commit(self, places: Places, timeout_ms: float) -> None:
        """Commit `places`. Raises KafkaError.

        The commit in the background is given up first, so that none of its retries comes later
        and takes the group back.
        """
        await self._give_up_background()
        await self._commit(places, timeout_ms)

    async def _commit(self, places: Places, timeout_ms: float) -> None:
        if places:
            await self.coordinator.commit(places, *self._member(), timeout_ms)

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the place up to which each partition is processed."""
        return {one.topic_partition: one.consumed for one in self._positions if one.consumed}

    async def commit_consumed(self, timeout_ms: float) -> None:
        """Commit what is processed, if enable_auto_commit makes it our job; _logger a failure."""
        await self._give_up_background()
        await self._commit_consumed(timeout_ms)

    async def _commit_consumed(self, timeout_ms: float) -> None:
        if not self._settings.enable_auto_commit:
            return
        try:
            await self._commit(self.consumed(), timeout_ms)
        except KafkaError as error:
            _logger.warning("auto commit: %s", error)

    def maybe_commit(self) -> None:
        """Commit in the background if it is time and the last one has ended."""
        is_busy = self._background is not None and not self._background.done()
        if is_busy or self._loop.time() < self._next_at:
            return
        interval_ms = self._settings.auto_commit_interval_ms
        self._next_at = self._loop.time() + interval_ms / 1000
        self._background = self._loop.create_task(self._commit_consumed(interval_ms))

    async def _give_up_background(self) -> None:
        task, self._background = self._background, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        """Give up the commit in the background."""
        await self._give_up_background()
