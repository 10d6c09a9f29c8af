"""Sends questions to other brokers: one connection each, many questions in a request.

Questions that come while a request is under way are collected for the next request: the higher the
load, the larger the requests. A question is sent once. If the connection is lost, or no response
comes in time, all questions of the channel are refused, so that the caller can look for the leader
again; a pause follows.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from quorumlog.backoff import Backoff
from quorumlog.broker.peer_addresses import PeerAddresses, connecting
from quorumlog.broker.settings import BrokerSettings
from quorumlog.chance import random_fraction
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.tasks import OnError, Tasks
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId
from quorumlog.wire.codec.message import Request
from quorumlog.wire.io.connection import ConnectionLost, RequestTimedOut, UnsupportedVersion
from quorumlog.wire.io.security import ConnectionSecurity

REQUEST_WEIGHT_MAX: Final = 1_000  # partitions in one request, except for a single large question
WAITING_WEIGHT_MAX: Final = 100_000  # partitions that wait for one broker: some 20 MB
ANSWERED_AT_ONCE: Final = 20  # questions; an answer may complete a transaction: tenths of a ms
BACKOFF: Final = Backoff(20, 1000)

_logger: Final = logging.getLogger(__name__)


class Question(Protocol):
    """A question for a broker. It is answered or refused exactly once."""

    @property
    def key(self) -> Hashable:
        """Return the key of its answer; `answer` finds the answer in the response by it."""

    @property
    def group(self) -> Hashable:
        """Return the group; questions with the same key share a request only within one group."""

    @property
    def weight(self) -> int:
        """Return the number of partitions in the question."""

    def refuse(self, error_code: ErrorCode, /) -> None:
        """Refuse: the broker did not answer. It may have performed the request."""


QuestionT = TypeVar("QuestionT", bound=Question)
Question_contra = TypeVar("Question_contra", bound=Question, contravariant=True)
Address = tuple[str, int]


class Exchange(Protocol[Question_contra]):
    """Builds a request from questions, and finds their answers in its response."""

    def request_of(self, questions: Sequence[Question_contra], /) -> Request[Any]:
        """Return the request."""

    def answers_of(self, response: Any, /) -> Any:
        """Return the answers of the response, in the form that `answer` uses."""

    def answer(self, question: Question_contra, answers: Any, /) -> None:
        """Answer one question."""


class Connection(Protocol):
    """A connection to a broker (`KafkaConnection`)."""

    @property
    def closed(self) -> "asyncio.Future[Exception | None]":
        """Return a future that is done when the connection is lost."""

    async def send(self, request: Request[Any], /) -> Any:
        """Return the response. Raises ConnectionLost, RequestTimedOut or UnsupportedVersion."""

    async def close(self) -> None:
        """Close the connection."""


Connect = Callable[[str, int], Awaitable[Connection]]
Open = Callable[[], Awaitable[Connection]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """How to reach all brokers, also this broker; `on_error` gets internal errors.

    `shortcuts`: functions that open connections to some brokers, in place of their addresses.
    """

    connect: Connect
    addresses: PeerAddresses
    on_error: OnError
    shortcuts: dict[BrokerId, Open] = field(default_factory=dict)

    def opener(self, broker_id: BrokerId, address: Address) -> Open:
        """Return the function that opens a connection to a broker."""
        return self.shortcuts.get(broker_id) or partial(self.connect, *address)


def kafka_peers(
    broker_id: BrokerId,
    settings: BrokerSettings,
    set_addresses: Mapping[int, str],
    security: ConnectionSecurity,
    on_error: OnError,
) -> Peers:
    """Return the peers in a real cluster; `set_addresses`: see `PeerAddresses`.

    `security`: of the listener for other brokers.
    """
    connect = connecting(f"broker-{broker_id}-transactions", security, settings)
    return Peers(connect=connect, addresses=PeerAddresses(set_addresses), on_error=on_error)


class BrokerChannels(Generic[QuestionT]):
    """The channels to all brokers, at their current addresses."""

    def __init__(self, exchange: Exchange[QuestionT], peers: Peers) -> None:
        self._exchange, self._peers = exchange, peers
        self._tasks: Final = Tasks(peers.on_error)
        self._channels: Final[dict[BrokerId, _Channel[QuestionT]]] = {}
        self._image = ClusterImage()

    def ask(self, broker_id: BrokerId, question: QuestionT) -> None:
        """Send the question soon; refuse it at once if the broker is fenced or unregistered."""
        address = self._address_of(broker_id)
        if address is None:
            question.refuse(ErrorCode.BROKER_NOT_AVAILABLE)
            return
        channel = self._channels.get(broker_id)
        if channel is None:
            opener = self._peers.opener(broker_id, address)
            channel = _Channel(address, self._exchange, opener)
            channel.task = self._tasks.start(channel.run())
            self._channels[broker_id] = channel
        channel.ask(question)

    def load(self, broker_id: BrokerId) -> int:
        """Return the number of questions ahead of a new one; 0: it is sent at once."""
        channel = self._channels.get(broker_id)
        return 0 if channel is None else channel.load

    def publish(self, image: ClusterImage) -> None:
        """Close the channels to brokers that are fenced, unregistered, or at a new address."""
        self._image = image
        for broker_id, channel in sorted(self._channels.items()):
            if self._address_of(broker_id) != channel.address:
                del self._channels[broker_id]
                channel.close()

    async def stop(self) -> None:
        """Refuse all questions, and close all connections."""
        for _, channel in sorted(self._channels.items()):
            channel.close()
        self._channels.clear()
        self._image = ClusterImage()  # refuses later questions
        await self._tasks.join()

    def _address_of(self, broker_id: BrokerId) -> Address | None:
        broker = self._image.brokers.get(broker_id)
        return None if broker is None or broker.fenced else self._peers.addresses.of(broker)


class _Channel(Generic[QuestionT]):
    """The channel to one broker at one address, until `close`."""

    def __init__(self, address: Address, exchange: Exchange[QuestionT], opener: Open) -> None:
        self.address: Final = address
        self.task: asyncio.Task[None] | None = None
        self._exchange, self._open = exchange, opener
        self._connection: Connection | None = None
        self._waiting: Final[deque[QuestionT]] = deque()
        self._asked: list[QuestionT] = []  # of the request under way
        self._weight = 0  # of `_waiting`
        self._changed: Final = asyncio.Event()

    def ask(self, question: QuestionT) -> None:
        """Send the question with the next request; refuse it if too many wait."""
        if self._waiting and self._weight + question.weight > WAITING_WEIGHT_MAX:
            question.refuse(ErrorCode.BROKER_NOT_AVAILABLE)
            return
        self._waiting.append(question)
        self._weight += question.weight
        self._changed.set()

    @property
    def load(self) -> int:
        """The number of questions under way and behind them; 0: no request is under way."""
        return len(self._asked) + len(self._waiting) if self._asked else 0

    def close(self) -> None:
        """Refuse all questions; the connection is closed soon."""
        if self.task is not None:
            self.task.cancel()
        self._refuse_all()

    async def run(self) -> None:
        """Send requests, one at a time."""
        failures = 0
        try:
            while True:
                await self._changed.wait()
                self._collect()
                try:
                    response = await self._send()
                except (ConnectionLost, RequestTimedOut, UnsupportedVersion) as error:
                    _logger.info("request to %s:%d failed: %s", *self.address, error)
                    failures += 1
                    self._refuse_all()
                    await self._discard()
                    await asyncio.sleep(BACKOFF.delay_ms(failures, random_fraction()) / 1000)
                    continue
                failures = 0
                await self._answer(response)
        finally:
            with suppress(asyncio.CancelledError):
                await self._discard()

    def _collect(self) -> None:
        """Take the questions of the next request; a second group of the same key waits."""
        groups: dict[Hashable, Hashable] = {}  # by key
        rest: list[QuestionT] = []
        weight = 0
        while self._waiting:
            question = self._waiting.popleft()
            if groups.setdefault(question.key, question.group) != question.group:
                rest.append(question)
                continue
            if self._asked and weight + question.weight > REQUEST_WEIGHT_MAX:
                self._waiting.appendleft(question)
                break
            weight += question.weight
            self._asked.append(question)
        self._waiting.extendleft(reversed(rest))
        self._weight -= weight
        if not self._waiting:
            self._changed.clear()

    async def _send(self) -> Any:
        if self._connection is not None and self._connection.closed.done():
            await self._discard()
        if self._connection is None:
            self._connection = await self._open()
        return await self._connection.send(self._exchange.request_of(self._asked))

    async def _answer(self, response: Any) -> None:
        """Answer the questions of the request, in slices; `close` refuses the rest."""
        answers = self._exchange.answers_of(response)
        while self._asked:
            part, self._asked = self._asked[:ANSWERED_AT_ONCE], self._asked[ANSWERED_AT_ONCE:]
            for question in part:
                self._exchange.answer(question, answers)
            if self._asked:
                await asyncio.sleep(0)

    def _refuse_all(self) -> None:
        refused = [*self._asked, *self._waiting]
        self._asked = []
        self._waiting.clear()
        self._weight = 0
        self._changed.clear()
        for question in refused:
            question.refuse(ErrorCode.NETWORK_EXCEPTION)

    async def _discard(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            await connection.close()
