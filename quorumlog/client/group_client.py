"""One consumer in its group: it joins, commits and leaves."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from quorumlog.client.core import membership_events as facts
from quorumlog.client.core.membership_events import Event
from quorumlog.client.core.positions import Positions
from quorumlog.client.errors import KafkaError
from quorumlog.client.group_reader import GroupReader
from quorumlog.client.io.cluster import Cluster
from quorumlog.client.io.committer import Committer
from quorumlog.client.io.coordinator import Coordinator
from quorumlog.client.io.group_session import GroupSession
from quorumlog.client.rebalance_listener import RebalanceListener
from quorumlog.client.records import OffsetAndMetadata
from quorumlog.client.settings import ConsumerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

COMMIT_AT_CLOSE_MS: Final = 5_000


class GroupClient:
    """The group `settings.group_id`, for one consumer. A member from `subscribe` to `leave`.

    `wake`: called when `poll` may have something to return, and partitions may be fetched.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ConsumerSettings,
        group_id: str,
        positions: Positions,
        wake: Callable[[], None],
    ) -> None:
        self._cluster: Final = cluster
        self._settings: Final = settings
        self._positions: Final = positions
        self._coordinator: Final = Coordinator(
            cluster,
            group_id,
            instance_id=settings.group_instance_id,
            require_stable=settings.isolation_level == "read_committed",
        )
        self.committer: Final = Committer(settings, positions, self._coordinator, self._membership)
        self._reader: Final = GroupReader(positions, self.committer, wake)
        self._session: GroupSession | None = None

    @property
    def is_subscribed(self) -> bool:
        """True from `subscribe` to `leave`."""
        return self._session is not None

    @property
    def is_changing(self) -> bool:
        """True while partitions are given up or taken: `poll` must not return records then."""
        return self._session is not None and self._session.is_changing

    def subscribe(self, topics: tuple[str, ...], listener: RebalanceListener) -> None:
        """Join with these topics, or join again with others."""
        self._reader.listener = listener
        if self._session is None:
            self._session = GroupSession(
                self._cluster, self._settings, self._coordinator, self._reader
            )
        self._session.post(facts.Subscribed(topics=topics))

    def poll_began(self) -> None:
        """Note that the user is in `poll`: partitions may be revoked."""
        self._post(facts.PollBegan())

    def poll_ended(self) -> None:
        """Note that the user processes records: no partition is revoked."""
        self._post(facts.PollEnded())

    def _post(self, event: Event) -> None:
        if self._session is not None:
            self._session.post(event)

    def raise_failure(self) -> None:
        """Raise the error that the group has for the user, if there is one."""
        self._reader.raise_failure()

    async def committed(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return what the group has committed. Raises KafkaError."""
        timeout_ms = self._settings.default_api_timeout_ms
        return await self._coordinator.committed([*partitions], timeout_ms)

    def _membership(self) -> tuple[str, int]:
        if self._session is None:
            return "", -1
        membership = self._session.membership
        if membership.generation_id < 0:
            code = ErrorCode.ILLEGAL_GENERATION
            message = f"not a member of group {self._settings.group_id} now: poll joins it again"
            raise KafkaError(code, message, definite=True)
        return membership.member_id, membership.generation_id

    async def revoke_all(self) -> None:
        """Commit what is processed; a member's listener hears that all partitions are revoked."""
        session, partitions = self._session, tuple(self._positions.by_partition)
        if session is not None and partitions and not session.is_changing:
            await self._reader.revoke(partitions, lost=False)
        else:
            await self.committer.commit_consumed(COMMIT_AT_CLOSE_MS)

    async def leave(self) -> None:
        """Leave the group, if this is a member."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
