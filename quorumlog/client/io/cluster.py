"""A client's metadata of the cluster, kept up to date, and its connections to the brokers.

While a leader is missing, the client requests metadata repeatedly, from any broker that responds:
at first after `metadata_retry_backoff_ms`, so that it finds a new leader within about 100 ms of the
election.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Final

from quorumlog.backoff import Backoff
from quorumlog.chance import random_fraction, shuffle
from quorumlog.client.core.absences import may_appear
from quorumlog.client.core.metadata_cache import Leader, MetadataCache, Node, TopicView
from quorumlog.client.core.waits import Attempt
from quorumlog.client.errors import KafkaError, answered, denied, of_topic
from quorumlog.client.io.broker_connections import BrokerConnections, api_of, unsupported
from quorumlog.client.io.closing import Close, begin_closing
from quorumlog.client.io.lookout import Failure, Lookout
from quorumlog.client.io.metadata_source import MetadataSource
from quorumlog.client.settings import Address, CommonSettings
from quorumlog.tasks import Tasks
from quorumlog.wire.codec.error_codes import RETRIABLE, ErrorCode, known
from quorumlog.wire.codec.errors import UnencodableMessage
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.message import Request, ResponseT
from quorumlog.wire.codec.messages.metadata import MetadataRequest, MetadataRequestTopic
from quorumlog.wire.codec.topic_names import is_topic_name
from quorumlog.wire.io.connection import (
    ConnectionLost,
    KafkaConnection,
    RequestTimedOut,
    UnsupportedVersion,
)

_logger: Final = logging.getLogger(__name__)

BACKOFF_RESET_MS: Final = 1_000  # after this idle time the next request is sent at once
QUESTION_TIMEOUT_MS: Final = 5_000  # for requests without a long wait in the broker
NEXT_BROKER_MS: Final = 1_000  # for a connection, before `any_broker` tries the next broker
UNKNOWN_TOPIC_MS: Final = 3_000
"""Within this time every broker has a new topic's metadata; then a missing topic is an error."""
MESSAGE_MAX: Final = 200  # characters, for errors that contain a whole request
_CODE_OF_LOSS: Final = (ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.SASL_AUTHENTICATION_FAILED)
MISSING_TOPIC_REFRESH_MS: Final = 1_000  # a needed topic may be created at any time


class Purpose(Enum):
    """A connection's purpose; each has its own, so that no request waits for a long one before it.

    DATA: Produce and Fetch. GROUP: coordinators; a join may take minutes. CONTROL: all others.
    """

    DATA = auto()
    GROUP = auto()
    CONTROL = auto()


class Cluster:
    """Brokers, topics, leaders and connections, from `start` to `close`, in one event loop.

    The callbacks in `on_change` run after every change of metadata or connections, those in
    `on_metadata` after every response with metadata, those in `on_refused` when TLS or SASL has
    refused a connection: the next attempts follow with backoff.
    """

    def __init__(
        self,
        settings: CommonSettings,
        *,
        auto_create_topics: bool = False,
        topic_right: str = "DESCRIBE",
    ) -> None:
        """`topic_right`: the right on topics that the client needs, for messages."""
        self.settings: Final = settings
        self.metadata: Final = MetadataCache()
        self.on_change: Final[list[Callable[[], None]]] = []
        self.on_metadata: Final[list[Callable[[], None]]] = []
        self.on_refused: Final[list[Callable[[KafkaError], None]]] = []
        self._topics: set[str] = set()
        self._lists_topics = False
        self._auto_create: Final = auto_create_topics
        self.topic_right: Final = topic_right
        self._loop: Final = asyncio.get_running_loop()
        security = settings.connection_security()
        self._connections: Final = {
            purpose: BrokerConnections(
                settings, security, self._changed, self._observe_late, self._refused
            )
            for purpose in Purpose
        }
        self._source: Final = MetadataSource(settings, security, self._nodes)
        self._backoff: Final = Backoff(
            settings.metadata_retry_backoff_ms, settings.metadata_retry_backoff_max_ms
        )
        self._awaited: Final[Counter[str]] = Counter()  # topics for which `topic` waits
        self.lookout: Final = Lookout(
            settings.client_id,
            self.metadata,
            why_failing=self._why_failing,
            why_unheard=lambda node: self._source.why_unheard(node.address),
        )
        self.lookout.topics.append(self._awaited.keys)
        self._update_requested: Final = asyncio.Event()
        self._updated: asyncio.Future[None] = self._loop.create_future()
        self._unchanged_updates = 0  # in a row, successful or failed
        self._tasks: Final = Tasks(self._restart_updates)
        self._is_closed = False

    # --- life ---

    async def start(self) -> None:
        """Get the first metadata.

        Raises KafkaError (definite) if no broker responds in time, or all refuse TLS or SASL.
        """
        self._tasks.start(self._keep_updated())
        try:
            async with asyncio.timeout(self.settings.socket_connection_setup_timeout_ms / 1000):
                while not self.metadata.nodes:
                    await self.next_update()
                    self._check_refusal()
        except TimeoutError:
            why = self._source.why_silent() or "bootstrap_servers are still being tried"
            await self.close()
            limit = self.settings.socket_connection_setup_timeout_ms
            setting = f"socket_connection_setup_timeout_ms={limit}"
            message = f"no broker of bootstrap_servers answered within {setting}: {why}"
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, message, definite=True) from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End all connections and tasks. Callers of `next_update` get KafkaError."""
        self._is_closed = True
        self.lookout.close()
        if not self._updated.done():
            self._updated.set_result(None)
        await self._tasks.stop()
        closings = [one.close() for one in self._connections.values()]
        await asyncio.gather(self._source.close(), *closings)

    def close_later(self, *closings: Close) -> None:
        """Close the parts of a dropped client, if the event loop still runs. Thread-safe."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and so are its sockets
            self._loop.call_soon_threadsafe(begin_closing, *closings)

    def check_loop(self, client: object) -> None:
        """Raise RuntimeError unless called in the client's event loop, or outside any loop."""
        try:
            is_own = asyncio.get_running_loop() is self._loop
        except RuntimeError:  # between two calls of run_until_complete
            return
        if not is_own:
            message = (
                f"this {type(client).__name__} was started on another event loop: a client belongs"
                " to the loop (the asyncio.run) of its start(); make one there, or use"
                " quorumlog.client.sync"
            )
            raise RuntimeError(message)

    def now_ms(self) -> float:
        """Return the event loop's time in milliseconds."""
        return self._loop.time() * 1000

    def _observe_late(self) -> None:
        if not self._is_closed:
            self.lookout.observe_again()

    def _refused(self, error: KafkaError) -> None:
        for callback in list(self.on_refused):
            callback(error)

    def _check_refusal(self) -> None:
        """Raise the error if TLS or SASL refused, and no broker responds."""
        if self._source.refusal is not None:
            raise self._source.refusal.again()

    def _changed(self) -> None:
        for callback in list(self.on_change):
            callback()

    # --- leaders and connections ---

    def connected(self, broker_id: int, purpose: Purpose = Purpose.DATA) -> KafkaConnection | None:
        """Return the live connection to a broker; without one, begin to open it, return None."""
        node = self.metadata.nodes.get(broker_id)
        return self._connections[purpose].connected(node) if node is not None else None

    def is_failing(self, broker_id: int, purpose: Purpose = Purpose.DATA) -> bool:
        """Return whether a broker is missing in the metadata, or the last attempt to it failed."""
        node = self.metadata.nodes.get(broker_id)
        return node is None or self._connections[purpose].is_failing(node)

    def _is_out_of_reach(self, broker_id: int, purpose: Purpose) -> bool:
        """Return whether the broker is failing, or a connection attempt to it is overdue."""
        node = self.metadata.nodes.get(broker_id)
        silent = None if node is None else self._connections[purpose].why_silent(node)
        return silent is not None or self.is_failing(broker_id, purpose)

    def leader(self, topic_partition: TopicPartition) -> Leader | None:
        """Return the leader if it is connected; else begin to find it, and return None."""
        leader = self.metadata.leader(topic_partition)
        if leader is not None and self.connected(leader.broker_id) is not None:
            return leader
        if leader is None or self.is_failing(leader.broker_id, Purpose.DATA):
            self.request_update()
        return None

    async def send(
        self,
        broker_id: int | None,
        request: Request[ResponseT],
        *,
        purpose: Purpose = Purpose.CONTROL,
        version_max: int | None = None,
        version_min: int = 0,
        timeout_ms: float | None = None,
        expected_ms: float = 0,
    ) -> ResponseT:
        """Send a request to one broker (None: any), once. Raises KafkaError; definite: not sent.

        `version_min`: the first version with all fields that the request needs.
        `expected_ms`: how long the request allows the broker to wait before it responds.
        """
        with self.lookout.asking(api_of(request), expected_ms=expected_ms) as attempt:
            if broker_id is None:
                broker_id = await self.any_broker(attempt)
            attempt.broker = self.name_of(broker_id)
            connection = await self.connect(broker_id, purpose)
            attempt.is_sent = True
            versions = (version_min, version_max)
            return await self._send_over(connection, broker_id, request, versions, timeout_ms)

    def name_of(self, broker_id: int) -> str:
        """Return a broker's id and address, for messages."""
        node = self.metadata.nodes.get(broker_id)
        return f"broker {broker_id}" + ("" if node is None else f" at {node}")

    async def _send_over(
        self,
        connection: KafkaConnection,
        broker_id: int,
        request: Request[ResponseT],
        versions: tuple[int, int | None],
        timeout_ms: float | None,
    ) -> ResponseT:
        version_min, version_max = versions
        try:
            version = connection.version_for(request)
            if version_max is not None:
                version = min(version, version_max)
            if version < version_min:
                needed = f"version {version_min} of {api_of(request)} is needed"
                message = f"{needed}, and broker {broker_id} answers {version} at most"
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, message, definite=True)
            return await connection.send(request, version=version, timeout_ms=timeout_ms)
        except UnsupportedVersion as error:
            message = unsupported(broker_id, connection, request)
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, message, definite=True) from error
        except UnencodableMessage as error:
            message = f"{api_of(request)} cannot be written: {str(error)[:MESSAGE_MAX]}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message, definite=True) from error
        except (ConnectionLost, RequestTimedOut) as error:
            self.request_update()
            is_timeout = isinstance(error, RequestTimedOut)
            code = ErrorCode.REQUEST_TIMED_OUT if is_timeout else ErrorCode.NETWORK_EXCEPTION
            raise KafkaError(code, f"{self.name_of(broker_id)}: {error}", definite=False) from error

    async def connect(self, broker_id: int, purpose: Purpose) -> KafkaConnection:
        """Return a connection to a broker; open it if needed. Raises KafkaError (definite)."""
        node = self.metadata.nodes.get(broker_id)
        connection = await self._connections[purpose].connect(node) if node is not None else None
        if connection is None:
            self.request_update()
            why = self._why_unreachable(broker_id, purpose)
            message = f"broker {broker_id} cannot be reached: {why}"
            is_refused = node is not None and self._connections[purpose].is_refused(node)
            raise KafkaError(_CODE_OF_LOSS[is_refused], message, definite=True)
        return connection

    def _why_unreachable(self, broker_id: int, purpose: Purpose = Purpose.CONTROL) -> str:
        node = self.metadata.nodes.get(broker_id)
        if node is None:
            live = ", ".join(map(str, sorted(self.metadata.nodes)))
            return f"it is not among the live brokers ({live})"
        return self._connections[purpose].why_failing(node)

    def _why_failing(self, node: Node) -> Failure | None:
        """Return why the DATA connection to a broker fails; None if no attempt has failed.

        Without a DATA attempt, the connections for other purposes count.
        """
        data, *others = self._connections.values()  # in the order of Purpose
        why = data.why_silent(node)
        if why is not None or any(one.has(node) for one in self._connections.values()):
            return why
        return next(filter(None, (one.why_silent(node) for one in others)), None)

    async def any_broker(self, attempt: Attempt) -> int:
        """Return a broker that can be reached. Raises KafkaError (definite) if there is none.

        `attempt.broker` is set to the broker that is tried. A broker without a connection after
        `NEXT_BROKER_MS`, such as a paused broker, is skipped, except the last.
        """
        brokers = list(self.metadata.nodes)
        shuffle(brokers)
        brokers.sort(key=lambda one: self._is_out_of_reach(one, Purpose.CONTROL))
        for broker_id in brokers:
            attempt.broker = self.name_of(broker_id)
            is_last = broker_id == brokers[-1]
            try:
                async with asyncio.timeout(None if is_last else NEXT_BROKER_MS / 1000):
                    await self.connect(broker_id, Purpose.CONTROL)
            except (KafkaError, TimeoutError):
                continue
            return broker_id
        why = "; ".join(self._why_unreachable(broker_id) for broker_id in brokers)
        message = f"no broker can be reached: {why}"
        control = self._connections[Purpose.CONTROL]
        is_refused = any(map(control.is_refused, self.metadata.nodes.values()))
        raise KafkaError(_CODE_OF_LOSS[is_refused], message, definite=True)

    # --- metadata ---

    def _nodes(self) -> list[tuple[Address, bool]]:
        nodes = self.metadata.nodes.values()
        data = self._connections[Purpose.DATA]
        return [(node.address, data.is_failing(node)) for node in nodes]

    def request_update(self) -> None:
        """Request metadata soon; several calls make one request."""
        self._update_requested.set()

    async def next_update(self) -> None:
        """Wait until a metadata request that starts from now on has succeeded or failed.

        Raises KafkaError (definite) if the client is closed.
        """
        self.request_update()
        await asyncio.shield(self._updated)
        if self._is_closed:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "the client was closed", definite=True)

    def add_topics(self, topics: Iterable[str]) -> None:
        """Request these topics, too, from now on. Raises TypeError or KafkaError for a bad name."""
        topics = list(topics)
        for name in topics:
            if not isinstance(name, str):
                raise TypeError(f"a topic is named by a str, not {type(name).__name__}")
            if not is_topic_name(name):
                message = f"{name[:60]!r}: a topic's name is 1 to 249 of a-z A-Z 0-9 . _ -"
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message, definite=True)
        missing = {*topics} - self._topics
        if missing:
            self._topics |= missing
            self.request_update()

    def list_topics(self, *, wanted: bool) -> None:
        """Request all topics from now on: `metadata.listed` has their names; or no longer."""
        self._lists_topics, self.metadata.listed = wanted, None
        if wanted:
            self.request_update()

    async def topic(
        self, name: str, timeout_ms: float, *, holding: Iterable[int] = ()
    ) -> TopicView:
        """Return the topic once its metadata has partitions, including the numbers in `holding`.

        Raises KafkaError (definite): UNKNOWN_TOPIC_OR_PARTITION after `UNKNOWN_TOPIC_MS`, or with
        auto-creation after `timeout_ms`; and TypeError if `name` is not a str.
        """
        self.add_topics([name])
        limit_ms = timeout_ms if self._auto_create else min(timeout_ms, UNKNOWN_TOPIC_MS)
        missing = frozenset(holding)
        view, began_ms, is_new = None, self.now_ms(), False
        self._awaited[name] += 1
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while True:
                    view = self.metadata.topics.get(name)
                    if view is not None and view.partitions:
                        missing -= view.partitions.keys()
                        if not missing:
                            return view
                    # An error from before this call may be over: a right may have been granted.
                    error = self.topic_error(name) if is_new else None
                    if error is not None:
                        raise error
                    if view is not None and self.now_ms() - began_ms >= limit_ms:
                        break
                    await self.next_update()
                    self._check_refusal()
                    is_new = True
        except TimeoutError:
            pass
        finally:
            self._awaited[name] -= 1
            if not self._awaited[name]:
                del self._awaited[name]
        raise _absent(name, view, missing, self.now_ms() - began_ms)

    def topic_error(self, name: str) -> KafkaError | None:
        """Return the error in the topic's metadata that a retry does not end; None without one."""
        view = self.metadata.topics.get(name)
        code = ErrorCode.NONE if view is None else known(view.error_code)
        if code == ErrorCode.NONE or code in RETRIABLE:
            return None
        return of_topic(code, name, denied(code, f"topic {name!r}", self.topic_right))

    async def _keep_updated(self) -> None:
        while True:
            await self._wait_for_request()
            await self._update()

    def _restart_updates(self, error: BaseException) -> None:
        """Continue after an unexpected error, with backoff: without metadata the client hangs."""
        _logger.error("a metadata request failed", exc_info=error)
        if not self._is_closed:
            self._tasks.start(self._keep_updated())
            self.request_update()

    async def _wait_for_request(self) -> None:
        idle_since_ms = self.now_ms()
        limit_ms = self.settings.metadata_max_age_ms
        if may_appear(self.metadata, self.lookout.needed_topics()):
            limit_ms = min(limit_ms, MISSING_TOPIC_REFRESH_MS)
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self._update_requested.wait()
        except TimeoutError:
            return
        if self.now_ms() - idle_since_ms > BACKOFF_RESET_MS:
            self._unchanged_updates = 0
        if self._unchanged_updates:
            delay_ms = self._backoff.delay_ms(self._unchanged_updates, random_fraction())
            await asyncio.sleep(delay_ms / 1000)

    async def _update(self) -> None:
        self._update_requested.clear()
        waiting, self._updated = self._updated, self._loop.create_future()
        names, lists_all = sorted(self._topics), self._lists_topics
        topics = None if lists_all else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=self._auto_create)
        self._unchanged_updates += 1
        began_ms = self.now_ms()
        try:
            response = await self._source.ask(request)
            if response is not None and lists_all and self._lists_topics:
                self._topics &= self.lookout.needed_names()
                self.metadata.complete(response, self._topics)
            if response is not None and self.metadata.update(response):
                self._unchanged_updates = 0
            if response is not None:
                for callback in list(self.on_metadata):
                    callback()
            if self._source.refusal is not None:
                self._refused(self._source.refusal)
            why_silent = self._source.why_silent() if response is None else None
            self.lookout.observe(self.now_ms(), why_silent, began_ms)
        finally:
            if not waiting.done():
                waiting.set_result(None)
        self._changed()


def _absent(
    name: str, view: TopicView | None, missing: Iterable[int], waited_ms: float
) -> KafkaError:
    """Return the error for a topic without metadata, or without the `missing` partitions."""
    if view is not None and view.partitions:
        indexes = ", ".join(map(str, sorted(missing)))
        message = f"{name} has {len(view.partitions)} partitions, counted from 0: no {indexes}"
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message, definite=True)
    message = f"no metadata of topic {name!r} within {waited_ms:.0f} ms"
    code = ErrorCode.NONE if view is None else known(view.error_code)
    if code == ErrorCode.NONE:
        code = ErrorCode.REQUEST_TIMED_OUT
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        message += ": it does not exist"
    return KafkaError(code, message, definite=True)


def labelled(subject: object, message: str | None) -> str:
    """Return "subject: message", or only the subject if the message is empty."""
    return f"{subject}: {message}" if message else str(subject)


def check(code: int, message: str = "") -> None:
    """Raise KafkaError unless `code` is NONE."""
    if code != ErrorCode.NONE:
        raise answered(code, message)
