"""The effects of a group on its consumer: it revokes and assigns partitions, or fails."""

from collections.abc import Callable
from typing import Final

from quorumlog.client.core.positions import Positions
from quorumlog.client.errors import KafkaError
from quorumlog.client.io.committer import Committer
from quorumlog.client.rebalance_listener import RebalanceListener, call_listener
from quorumlog.wire.codec.identifiers import TopicPartition

COMMIT_AT_REVOCATION_MS: Final = 5_000


class GroupReader:
    """The Reader protocol of `io.group_session`, for one consumer."""

    def __init__(
        self, positions: Positions, committer: Committer, wake: Callable[[], None]
    ) -> None:
        self.listener = RebalanceListener()
        self._positions: Final = positions
        self._committer: Final = committer
        self.wake: Final = wake  # lets `poll` and the fetcher look again
        self._failure: KafkaError | None = None

    async def revoke(self, partitions: tuple[TopicPartition, ...], *, lost: bool) -> None:
        """Stop reading `partitions`; unless `lost`, commit first. Calls the listener."""
        gone = frozenset(partitions)
        if lost:
            self._drop(gone)
            await call_listener(self.listener.on_partitions_lost, gone)
            return
        await self._committer.commit_consumed(COMMIT_AT_REVOCATION_MS)
        await call_listener(self.listener.on_partitions_revoked, gone)
        self._drop(gone)

    def _drop(self, gone: frozenset[TopicPartition]) -> None:
        self._positions.assign([one for one in self._positions.by_partition if one not in gone])

    async def accept(
        self, partitions: tuple[TopicPartition, ...], added: tuple[TopicPartition, ...]
    ) -> None:
        """Read exactly `partitions`. Calls the listener with those that were added."""
        self._positions.assign(partitions)
        await call_listener(self.listener.on_partitions_assigned, frozenset(added))

    def fail(self, error: KafkaError) -> None:
        """Raise `error` from the user's next poll; from every later one too if it is fatal."""
        if self._failure is None or not self._failure.fatal:
            self._failure = error
        self.wake()

    def raise_failure(self) -> None:
        """Raise what `fail` was given, if anything."""
        error = self._failure
        if error is not None:
            if not error.fatal:
                self._failure = None
            raise KafkaError(error.code, error.message, definite=error.definite)
