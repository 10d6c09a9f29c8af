"""A consumer's requests to the leaders: they find each partition's position, then fetch ahead.

`core.positions` decides which positions need a request; this module sends it. At most one fetch per
broker is outstanding: a long poll for all of its partitions that have room in their buffer, which
names only the changes since the last (`core.fetch_session`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from typing import Any, Final, NamedTuple

from quorumlog import clock
from quorumlog.chance import random_fraction
from quorumlog.client.core.fetch_session import Asked, FetchSession, SessionFetch
from quorumlog.client.core.metadata_cache import Leader, Node
from quorumlog.client.core.position import Position, PositionState
from quorumlog.client.core.positions import Positions
from quorumlog.client.errors import KafkaError
from quorumlog.client.io.cluster import Cluster
from quorumlog.client.io.list_offsets import ISOLATION_LEVELS, Refused, ask_offsets
from quorumlog.client.io.pump import Pump
from quorumlog.client.io.stalled_requests import StalledRequests
from quorumlog.client.records import OffsetAndMetadata
from quorumlog.client.settings import ConsumerSettings
from quorumlog.wire.codec.error_codes import ErrorCode, known
from quorumlog.wire.codec.identifiers import ZERO_TOPIC_ID, TopicPartition
from quorumlog.wire.codec.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from quorumlog.wire.io.connection import (
    ConnectionLost,
    KafkaConnection,
    RequestTimedOut,
    UnsupportedVersion,
)

_logger: Final = logging.getLogger(__name__)

NAMED_TOPICS_MAX: Final = 12  # from the next version on, Fetch has topic ids only
SHORT_WAIT_MS: Final = 10  # for a fetch that leaves out partitions with a full buffer

_SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""Errors that a full fetch ends: it is sent at once."""
_TOPIC_ID_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)

LookUpCommitted = Callable[
    [Collection[TopicPartition], Mapping[str, bytes]],
    Awaitable[Mapping[TopicPartition, OffsetAndMetadata]],
]
"""Returns the group's offsets of partitions; the mapping has their topic ids by name."""


class _Ask(NamedTuple):
    """One partition of a fetch. `offset` and `leader.topic_id` as sent: the position may change."""

    position: Position
    offset: int
    leader: Leader


class Fetcher:
    """The fetches and offset lookups of one consumer.

    A request with an unexpected error is logged, raised by `poll`, and retried after a delay.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ConsumerSettings,
        positions: Positions,
        *,
        look_up_committed: LookUpCommitted | None,
        wake_poll: Callable[[], None],
    ) -> None:
        """`wake_poll`: called when `poll` may have records to return or an error to raise."""
        self._cluster: Final = cluster
        self._settings: Final = settings
        self._positions: Final = positions
        self._look_up_committed: Final = look_up_committed
        self._wake_poll: Final = wake_poll
        self._fetching: Final[set[int]] = set()  # brokers with an outstanding fetch
        self._sessions: Final[dict[int, FetchSession]] = {}  # by broker
        self._without_offset: Refused = {}  # of the latest lookup
        self._outlived: Final[dict[TopicPartition, Position]] = {}  # in a deleted topic
        self._pump: Final = Pump(cluster, self._start_requests, on_error=self._handle_unexpected)
        self._stalls: Final = StalledRequests(cluster, "Fetch")
        self.missing_is_error = True
        """True after `assign`: `poll` raises for a partition that does not exist."""
        cluster.lookout.partitions.append(self._needed)
        cluster.lookout.refusals.append(self._refused)
        cluster.on_refused.append(self._report_refused)
        cluster.on_metadata.append(self._report_topics)

    def _needed(self) -> Collection[TopicPartition]:
        return self._positions.by_partition.keys()

    def _refused(self) -> dict[TopicPartition, str]:
        """Return the error of each partition whose leader refused its last request."""
        refused = {}
        for name, position in self._positions.by_partition.items():
            if position.state is PositionState.RESETTING and name in self._without_offset:
                refused[name] = f"its leader returns no offset: {self._without_offset[name]}"
            elif position.refusal != ErrorCode.NONE:
                refused[name] = f"its leader refuses to be read: {position.refusal.name}"
        return refused

    def wake(self) -> None:
        """Start soon the requests that may be made."""
        self._pump.wake()

    def _start_requests(self, now_ms: float) -> float:
        if self.missing_is_error:
            self._report_missing(now_ms)
        waiting = self._positions.waiting(now_ms, PositionState.LOOKING)
        looking = [position for position in waiting if self._may_look_up(position)]
        if looking:
            self._start(looking, self._find_committed(looking))
        resetting = self._positions.waiting(now_ms, PositionState.RESETTING)
        if resetting:
            self._start(resetting, self._find_offsets(resetting))
        for broker_id, asks in self._by_broker(now_ms).items():
            connection = self._cluster.connected(broker_id)
            if connection is not None:
                positions = [ask.position for ask in asks]
                self._start(positions, self._fetch(connection, broker_id, asks), broker_id)
        return self._positions.wake_at_ms(now_ms)

    def _may_look_up(self, position: Position) -> bool:
        """Return whether the committed offset may be requested: the position needs a topic id.

        An assigned topic id is valid, even if the metadata does not have it.
        """
        is_known = self._look_up_committed is None or position.is_assigned_id
        if is_known or self._is_in_topic(position):
            return True
        try:
            self._cluster.add_topics([position.topic_partition.topic])
        except KafkaError as error:  # an illegal name, from a classic group's leader
            self._report(error, [position])
        self._cluster.request_update()
        return False

    def _is_in_topic(self, position: Position) -> bool:
        """Return whether the metadata has the topic, and the position belongs to its id."""
        view = self._cluster.metadata.topics.get(position.topic_partition.topic)
        is_there = view is not None and bool(view.partitions)
        return (
            is_there and view is not None and self._positions.maybe_enter(position, view.topic_id)
        )

    def follow_topics(self) -> None:
        """Move positions from deleted topics to the new topics of the same names.

        Call it during `poll`: see `Positions.follow`.
        """
        while self._outlived:
            name, position = self._outlived.popitem()
            if self._positions.is_current(position):
                self._positions.follow(position, self._cluster.metadata.topic_id(name.topic))
                self._pump.wake()
        self._log_moves()

    def _log_moves(self) -> None:
        for move in self._positions.take_moves():
            _logger.warning("%s: %s", self._settings.client_id, move)

    def _by_broker(self, now_ms: float) -> dict[int, list[_Ask]]:
        asks: dict[int, list[_Ask]] = {}
        metadata, connected = self._cluster.metadata, set[int]()
        for position in self._positions.fetchable(now_ms):
            leader = metadata.leader(position.topic_partition)
            if leader is None or leader.broker_id not in connected:  # once for each broker
                leader = self._cluster.leader(position.topic_partition)
                if leader is None:
                    continue
                connected.add(leader.broker_id)
            if not self._positions.maybe_enter(position, leader.topic_id):
                self._note_outlived(position)
                continue
            broker_id = leader.broker_id
            preferred = position.prefers(now_ms)
            if preferred >= 0:
                is_connected = self._cluster.connected(preferred) is not None
                if is_connected or not self._cluster.is_failing(preferred):
                    broker_id = preferred
                else:
                    self._positions.leave_preferred(now_ms, position)
                    self._cluster.request_update()
            if broker_id not in self._fetching:
                ask = _Ask(position, position.fetch_offset, leader)
                asks.setdefault(broker_id, []).append(ask)
        return asks

    def _note_outlived(self, position: Position) -> None:
        if position.is_assigned_id:
            self._cluster.request_update()  # the next assignment has the new topic id
        else:
            self._outlived[position.topic_partition] = position
            self._wake_poll()

    def _start(
        self, positions: list[Position], work: Coroutine[Any, Any, None], fetched: int | None = None
    ) -> None:
        """Start a request about the positions; `fetched`: the broker of a fetch."""
        for position in positions:
            position.is_asked = True
        if fetched is not None:
            self._fetching.add(fetched)

        def ended(task: asyncio.Task[None]) -> None:
            for position in positions:
                position.is_asked = False
            # Only now: a fetch of the other positions alone would make these wait for it.
            if fetched is not None:
                self._fetching.discard(fetched)
            if not task.cancelled() and task.exception() is not None:
                self._failed(positions)
            self._wake_poll()
            self._pump.wake()

        self._pump.start(work).add_done_callback(ended)

    def _handle_unexpected(self, error: BaseException) -> None:
        _logger.error("a consumer's request failed", exc_info=error)
        message = f"a request of the consumer failed, see the log: {error!r}"
        failure = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, message, definite=True)
        self._positions.report(None, failure)

    def _report_refused(self, error: KafkaError) -> None:
        """Let `poll` raise: TLS or SASL refused a connection."""
        self._positions.report(None, error)
        self._wake_poll()

    def _report_topics(self) -> None:
        """Let `poll` raise, once for each response, the errors of topics such as a missing right.

        Java's client raises TopicAuthorizationException and InvalidTopicException likewise.
        """
        assigned = {name.topic for name in self._positions.by_partition}
        needed = assigned | self._cluster.lookout.needed_topics()
        errors = {name: self._cluster.topic_error(name) for name in sorted(needed)}
        failed = {name: error for name, error in errors.items() if error is not None}
        self._positions.report_topics(failed)
        if failed:
            self._wake_poll()

    def _report_missing(self, now_ms: float) -> None:
        """Let `poll` raise for partitions that were missing for `default_api_timeout_ms`."""
        limit_ms = self._settings.default_api_timeout_ms
        for name in self._cluster.lookout.missing_since(now_ms, limit_ms):
            if name not in self._positions.by_partition:
                continue  # no longer assigned
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            message = f"{name} does not exist: no broker has returned it for {limit_ms} ms"
            message += " (default_api_timeout_ms)"
            self._positions.report(name, KafkaError(code, message, definite=True))
            self._wake_poll()

    def _failed(self, positions: list[Position]) -> None:
        now_ms = self._cluster.now_ms()
        for position in positions:
            self._positions.handle_failure(now_ms, position, random_fraction())

    # --- positions ---

    async def _find_committed(self, positions: list[Position]) -> None:
        found: Mapping[TopicPartition, OffsetAndMetadata] = {}
        if self._look_up_committed is not None:
            names = [one.topic_partition for one in positions]
            topic_ids = {one.topic_partition.topic: one.topic_id for one in positions}
            try:
                found = await self._look_up_committed(names, topic_ids)
            except KafkaError as error:
                self._report(error, positions)
                return
        for position in positions:
            self._positions.handle_committed(position, found.get(position.topic_partition))

    async def _find_offsets(self, positions: list[Position]) -> None:
        self._cluster.add_topics({position.topic_partition.topic for position in positions})
        resets = {one.topic_partition: one.reset for one in positions if self._is_in_topic(one)}
        if len(resets) < len(positions):
            self._cluster.request_update()
        wall_ms = clock.wall_clock_ms()
        timestamps = {name: reset.asked_timestamp(wall_ms) for name, reset in resets.items()}
        isolation = self._settings.isolation_level
        refused: Refused = {}
        try:
            found = await ask_offsets(self._cluster, timestamps, isolation, refused)
        except KafkaError as error:
            same = [p for p in positions if p.reset is resets.get(p.topic_partition, p.reset)]
            self._failed(positions)
            self._let_poll_raise(error, same)
            return
        if self._without_offset and not refused:
            self._cluster.lookout.observe_soon()
        self._without_offset = refused
        for position in positions:
            answer = found.get(position.topic_partition)
            is_current = position.reset is resets.get(position.topic_partition)
            if answer is not None and is_current:
                self._positions.handle_offset(position, answer.offset, answer.leader_epoch)
        self._log_moves()
        self._failed([one for one in positions if one.topic_partition not in found])

    def _report(self, error: KafkaError, positions: list[Position]) -> None:
        """Retry later; let `poll` raise an error that is not retriable."""
        self._failed(positions)
        self._let_poll_raise(error, positions)

    def _let_poll_raise(self, error: KafkaError, positions: list[Position]) -> None:
        """Report an error once, with a partition that is still assigned: it ends with that."""
        current = next(filter(self._positions.is_current, positions), None)
        if current is not None and not error.retriable:
            self._positions.report(current.topic_partition, error)

    # --- fetches ---

    async def _fetch(self, connection: KafkaConnection, broker_id: int, asks: list[_Ask]) -> None:
        wanted = {
            position.topic_partition: Asked(topic_id, offset, leader_epoch, position.fetch_epoch)
            for position, offset, (_, leader_epoch, topic_id) in asks
        }
        session = self._sessions.setdefault(broker_id, FetchSession())
        max_wait_ms = self._settings.fetch_max_wait_ms
        if self._leaves_out_full(broker_id):
            max_wait_ms = min(max_wait_ms, SHORT_WAIT_MS)
        outstanding = self._stalls.begin(broker_id, wanted, wait_ms=max_wait_ms)
        try:
            version = connection.version_for(FetchRequest)
            if ZERO_TOPIC_ID in {asked.topic_id for asked in wanted.values()}:
                version = min(version, NAMED_TOPICS_MAX)
            fetch = session.next_fetch(wanted, has_ids=version > NAMED_TOPICS_MAX)
            request = self._request(fetch, wanted, max_wait_ms, self._rack(asks))
            response = await connection.send(request, version=version)
        except (ConnectionLost, RequestTimedOut) as error:
            _logger.debug("fetch from broker %d: %r", broker_id, error)
            self._cluster.request_update()
            self._failed([ask.position for ask in asks])
        except UnsupportedVersion as error:
            stays = KafkaError(ErrorCode.UNSUPPORTED_VERSION, str(error), definite=True)
            self._report(stays, [ask.position for ask in asks])
        else:
            # The ids as sent: a topic that was re-created since has another id in the metadata.
            names = {asked.topic_id: name.topic for name, asked in wanted.items()}
            answers = {
                TopicPartition(
                    topic.topic or names.get(topic.topic_id, ""), one.partition_index
                ): one
                for topic in response.responses
                for one in topic.partitions
            }
            if session.handle_answered(fetch, response.error_code, response.session_id, answers):
                self._handle(response, asks, answers, is_full=fetch.is_full)
            else:
                self._handle_refused(known(response.error_code), asks, is_full=fetch.is_full)
        finally:
            self._stalls.end(outstanding)

    def _request(
        self,
        fetch: SessionFetch,
        wanted: Mapping[TopicPartition, Asked],
        max_wait_ms: int,
        rack_id: str,
    ) -> FetchRequest:
        by_topic: dict[tuple[str, bytes], list[FetchPartition]] = {}
        for name in fetch.named:
            asked = wanted[name]
            partition = FetchPartition(
                partition=name.partition,
                current_leader_epoch=asked.leader_epoch,
                fetch_offset=asked.fetch_offset,
                last_fetched_epoch=asked.fetched_epoch,
                partition_max_bytes=self._settings.max_partition_fetch_bytes,
            )
            by_topic.setdefault((name.topic, asked.topic_id), []).append(partition)
        forgotten: dict[tuple[str, bytes], list[int]] = {}
        for name, topic_id in fetch.forgotten:
            forgotten.setdefault((name.topic, topic_id), []).append(name.partition)
        return FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=self._settings.fetch_min_bytes,
            max_bytes=self._settings.fetch_max_bytes,
            isolation_level=ISOLATION_LEVELS[self._settings.isolation_level],
            session_id=fetch.session_id,
            session_epoch=fetch.epoch,
            topics=[
                FetchTopic(topic=topic, topic_id=topic_id, partitions=partitions)
                for (topic, topic_id), partitions in by_topic.items()
            ],
            forgotten_topics_data=[
                ForgottenTopic(topic=topic, topic_id=topic_id, partitions=indexes)
                for (topic, topic_id), indexes in forgotten.items()
            ],
            rack_id=rack_id,
        )

    def _rack(self, asks: list[_Ask]) -> str:
        """Return the client's rack; "" while the leader itself must serve one of the partitions."""
        if not self._settings.client_rack:
            return ""
        now_ms = self._cluster.now_ms()
        is_near = all(ask.position.leader_until_ms <= now_ms for ask in asks)
        return self._settings.client_rack if is_near else ""

    def _leaves_out_full(self, broker_id: int) -> bool:
        """Return whether a partition of this broker has buffered records that `poll` may take."""
        for position in self._positions:
            if position.buffered_bytes and not position.is_asked and not position.paused:
                leader = self._cluster.metadata.leader(position.topic_partition)
                serving = position.preferred_replica
                if serving < 0 and leader is not None:
                    serving = leader.broker_id
                if serving == broker_id:
                    return True
        return False

    def _handle_refused(self, code: ErrorCode, asks: list[_Ask], *, is_full: bool) -> None:
        """Handle a response without usable partitions; the next fetch begins a session."""
        _logger.debug("fetch: %s", code.name)
        if code in _TOPIC_ID_ERRORS:
            self._cluster.request_update()
        if is_full or code not in _SESSION_ERRORS:
            self._failed([ask.position for ask in asks])

    def _handle(
        self,
        response: FetchResponse,
        asks: list[_Ask],
        answers: Mapping[TopicPartition, PartitionData],
        *,
        is_full: bool,
    ) -> None:
        metadata, now_ms = self._cluster.metadata, self._cluster.now_ms()
        nodes = [Node(one.node_id, one.host, one.port, one.rack) for one in response.node_endpoints]
        for position, offset, leader in asks:
            answer = answers.get(position.topic_partition)
            if answer is None and not is_full:
                continue  # nothing new
            is_left = position.topic_id != leader.topic_id
            if is_left or not self._positions.is_current(position):
                continue
            if answer is None:
                self._failed([position])
                self._cluster.request_update()
                continue
            if answer.current_leader is not None:
                hinted = answer.current_leader
                hint = Leader(hinted.leader_id, hinted.leader_epoch, leader.topic_id)
                metadata.hint(position.topic_partition, hint, nodes)
            if self._positions.handle_fetched(now_ms, position, offset, answer, random_fraction()):
                self._cluster.request_update()
        self._log_moves()

    async def close(self) -> None:
        """Cancel all requests and wait until they have ended."""
        self._pump.stop()
        self._cluster.lookout.partitions.remove(self._needed)
        self._cluster.lookout.refusals.remove(self._refused)
        self._cluster.on_refused.remove(self._report_refused)
        self._cluster.on_metadata.remove(self._report_topics)
        self._stalls.close()
        await self._pump.close()
