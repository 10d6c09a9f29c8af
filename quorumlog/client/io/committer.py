"""A consumer's commits of processed offsets: on request, by interval, at the end."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from quorumlog.client.core.positions import Positions
from quorumlog.client.errors import KafkaError
from quorumlog.client.io.coordinator import Coordinator
from quorumlog.client.records import OffsetAndMetadata
from quorumlog.client.settings import ConsumerSettings
from quorumlog.tasks import Tasks, log_failure
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID, TopicPartition

_logger: Final = logging.getLogger(__name__)

Places = Mapping[TopicPartition, OffsetAndMetadata]
CommitCallback = Callable[[dict[TopicPartition, OffsetAndMetadata], KafkaError | None], object]
"""Gets the offsets of a commit, and its error; None if they are committed."""

BEGUN_MAX: Final = 100  # commits with a callback that have not ended
_FINISH_MS: Final = 5_000


class Committer:
    """One consumer's commits.

    Invariant: commits are made one after another, in the order of their calls, so that a retry
    never restores an older offset.

    `member` returns (member id, generation), or ("", -1) for a consumer with assigned partitions.
    It raises KafkaError while a subscribed consumer is not a member: other members may have
    committed newer offsets.
    """

    def __init__(
        self,
        settings: ConsumerSettings,
        positions: Positions,
        coordinator: Coordinator,
        member: Callable[[], tuple[str, int]],
        topic_id: Callable[[str], bytes],
    ) -> None:
        """`topic_id`: returns the metadata's topic id of a name; zeros if it has none."""
        self._settings: Final = settings
        self._positions: Final = positions
        self.coordinator: Final = coordinator
        self._member: Final = member
        self._topic_id: Final = topic_id
        self._loop: Final = asyncio.get_running_loop()
        self._next_at: float = self._loop.time() + settings.auto_commit_interval_ms / 1000
        self._background: Final = Tasks(log_failure(_logger, "auto commit"))
        self._begun: Final = Tasks(log_failure(_logger, "a commit"))  # with a callback
        self._turn: Final = asyncio.Lock()
        self.on_commit: Callable[[Places], None] | None = None
        """Called with committed offsets."""

    async def commit(self, places: Places, timeout_ms: float) -> None:
        """Commit `places`. Raises KafkaError.

        Cancels the background commit first: a late retry would restore older offsets.
        """
        await self._background.stop()
        await self._commit(places, timeout_ms)

    async def begin(self, places: Places, timeout_ms: float, callback: CommitCallback) -> None:
        """Commit `places` in the background, after the commits that have begun before.

        Waits while `BEGUN_MAX` commits are in progress. `callback` is called once, at the latest
        when the consumer is closed; its error is logged.
        """
        await self._background.stop()
        while len(self._begun) >= BEGUN_MAX:
            await self._begun.join_first()
        self._begun.start(self._commit_and_report({**places}, timeout_ms, callback))
        await asyncio.sleep(0)  # it takes its turn, before any later call

    async def _commit_and_report(
        self,
        places: dict[TopicPartition, OffsetAndMetadata],
        timeout_ms: float,
        callback: CommitCallback,
    ) -> None:
        error: KafkaError | None = None
        try:
            await self._commit(places, timeout_ms)
        except KafkaError as failure:
            error = failure
        except asyncio.CancelledError:
            closed = "the consumer was closed before the commit had ended"
            error = KafkaError(ErrorCode.NETWORK_EXCEPTION, closed, definite=False)
        try:
            callback(places, error)
        except Exception:
            _logger.exception("a commit callback failed")

    async def finish(self) -> None:
        """Wait a few seconds for the commits with a callback; then cancel those in progress."""
        if len(self._begun):
            with suppress(TimeoutError):
                async with asyncio.timeout(_FINISH_MS / 1000):
                    await self._begun.join()
            await self._begun.stop()

    async def _commit(self, places: Places, timeout_ms: float) -> None:
        deadline = self._loop.time() + timeout_ms / 1000
        await self._take_turn(deadline, timeout_ms)
        try:
            await self._commit_until(places, deadline)
        finally:
            self._turn.release()
        if self.on_commit is not None and places:
            self.on_commit(places)

    async def _take_turn(self, deadline: float, timeout_ms: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await self._turn.acquire()
        except TimeoutError:
            message = f"earlier commits have not ended within {timeout_ms:g} ms"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, message, definite=True) from None

    async def _commit_until(self, places: Places, deadline: float) -> None:
        topic_ids = self._topic_ids(places)
        while places:
            left_ms = (deadline - self._loop.time()) * 1000
            try:
                await self.coordinator.commit(places, *self._member(), left_ms, topic_ids)
            except KafkaError as error:
                if not self._may_try_again(error, places, deadline):
                    raise
                await asyncio.sleep(self._settings.retry_backoff_ms / 1000)
            else:
                return

    def _topic_ids(self, places: Places) -> dict[str, bytes]:
        """Return the topic ids of `places`, by name.

        Assigned partitions have the id in their position, other topics the id in the metadata.
        """
        topic_ids = {one.topic: self._topic_id(one.topic) for one in places}
        for one in places:
            position = self._positions.by_partition.get(one)
            if position is not None and position.topic_id != ZERO_TOPIC_ID:
                topic_ids[one.topic] = position.topic_id
        return topic_ids

    def _may_try_again(self, error: KafkaError, places: Places, deadline: float) -> bool:
        """Return whether only the member epoch was stale: the partitions are still assigned."""
        is_stale = error.code == ErrorCode.STALE_MEMBER_EPOCH
        has_all = all(one in self._positions.by_partition for one in places)
        pause_s = self._settings.retry_backoff_ms / 1000
        return is_stale and has_all and self._loop.time() + pause_s < deadline

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the processed offset of each partition."""
        return {one.topic_partition: one.consumed for one in self._positions if one.consumed}

    async def commit_consumed(self, timeout_ms: float) -> None:
        """Commit the processed offsets, if enable_auto_commit is set; log a failure."""
        await self._background.stop()
        await self._commit_consumed(timeout_ms)

    async def _commit_consumed(self, timeout_ms: float) -> None:
        if not self._settings.enable_auto_commit:
            return
        try:
            await self._commit(self.consumed(), timeout_ms)
        except KafkaError as error:
            _logger.warning("auto commit: %s", error)

    def maybe_commit(self) -> None:
        """Commit in the background if the interval is over and the last commit has ended."""
        if len(self._background) or self._loop.time() < self._next_at:
            return
        interval_ms = self._settings.auto_commit_interval_ms
        self._next_at = self._loop.time() + interval_ms / 1000
        self._background.start(self._commit_consumed(interval_ms))

    async def close(self) -> None:
        """Cancel the background commits."""
        await self._background.stop()
        await self._begun.stop()
