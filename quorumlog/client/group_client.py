"""One consumer's part in its group: joining, committing and leaving."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from quorumlog.client.core.membership_events import Event
from quorumlog.client.core.positions import Positions
from quorumlog.client.errors import KafkaError
from quorumlog.client.io.cluster import Cluster
from quorumlog.client.io.committer import Committer
from quorumlog.client.io.coordinator import Coordinator
from quorumlog.client.io.group_session import GroupSession
from quorumlog.client.rebalance_listener import RebalanceListener, call_listener
from quorumlog.client.records import GroupMetadata, OffsetAndMetadata
from quorumlog.client.settings import ConsumerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

COMMIT_AT_CLOSE_MS: Final = 5_000
COMMIT_AT_REVOCATION_MS: Final = 5_000


class GroupClient:
    """The group `settings.group_id`, for one consumer: a member from `subscribe` to `leave`.

    It is the Reader of its session, which calls it to revoke and assign partitions. `wake` is
    called when `poll` may have records to return, or partitions may be fetched.
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
            require_stable=True,  # as in Kafka, of every consumer: KIP-447
        )
        self.committer: Final = Committer(
            settings, positions, self._coordinator, self._membership, cluster.metadata.topic_id
        )
        self.wake: Final = wake
        self._listener = RebalanceListener()
        self._failure: KafkaError | None = None
        self._session: GroupSession | None = None

    @property
    def is_subscribed(self) -> bool:
        """True from `subscribe` to `leave`."""
        return self._session is not None

    @property
    def is_changing(self) -> bool:
        """True while partitions are revoked or assigned: `poll` must not return records then."""
        return self._session is not None and self._session.is_changing

    def subscribe(
        self, topics: tuple[str, ...], listener: RebalanceListener, pattern: str | None = None
    ) -> None:
        """Join the group with these topics, or change them; `pattern`: also matching topics."""
        self._listener = listener
        if self._session is None:
            self._session = GroupSession(self._cluster, self._settings, self._coordinator, self)
        self._session.subscribe(topics, pattern)

    def post(self, event: Event) -> None:
        """Report an event to the group, if the consumer has joined one."""
        if self._session is not None:
            self._session.post(event)

    async def committed(
        self, partitions: Iterable[TopicPartition], topic_ids: Mapping[str, bytes] | None = None
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the group's committed offsets. Raises KafkaError.

        topic_ids: by name; None: the request has topic names only.
        """
        timeout_ms = self._settings.default_api_timeout_ms
        return await self._coordinator.committed([*partitions], timeout_ms, topic_ids)

    def metadata(self) -> GroupMetadata:
        """Return the member's id and generation; the generation is -1 outside the group."""
        group_id, instance_id = self._coordinator.group_id, self._settings.group_instance_id
        if self._session is None:
            return GroupMetadata(group_id, -1, "", instance_id)
        membership = self._session.membership
        return GroupMetadata(group_id, membership.generation_id, membership.member_id, instance_id)

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
        """Commit the processed offsets; call a member's listener to revoke all partitions."""
        session, partitions = self._session, tuple(self._positions.by_partition)
        if session is not None and partitions and not session.is_changing:
            await self.revoke(partitions, lost=False)
        else:
            await self.committer.commit_consumed(COMMIT_AT_CLOSE_MS)

    async def leave(self) -> None:
        """Leave the group, if the consumer has subscribed."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    # --- the Reader protocol, for the session ---

    async def revoke(self, partitions: tuple[TopicPartition, ...], *, lost: bool) -> None:
        """Stop reading `partitions`; unless `lost`, commit first. Calls the listener."""
        gone = frozenset(partitions)
        if lost:
            self._drop(gone)
            await call_listener(self._listener.on_partitions_lost, gone)
            return
        await self.committer.commit_consumed(COMMIT_AT_REVOCATION_MS)
        await call_listener(self._listener.on_partitions_revoked, gone)
        self._drop(gone)

    def _drop(self, gone: frozenset[TopicPartition]) -> None:
        self._positions.assign([one for one in self._positions.by_partition if one not in gone])

    async def accept(
        self,
        partitions: tuple[TopicPartition, ...],
        added: tuple[TopicPartition, ...],
        topic_ids: Mapping[str, bytes],
    ) -> None:
        """Read exactly `partitions`. Calls the listener with `added`."""
        self._positions.assign(partitions, topic_ids)
        await call_listener(self._listener.on_partitions_assigned, frozenset(added))

    def fail(self, error: KafkaError) -> None:
        """Raise `error` from the user's next `poll`; a fatal error from every later `poll`, too."""
        if self._failure is None or not self._failure.fatal:
            self._failure = error
        self.wake()

    def raise_failure(self) -> None:
        """Raise the error of `fail`, if there is one."""
        error = self._failure
        if error is not None:
            if not error.fatal:
                self._failure = None
            raise error.again() from error.__cause__
