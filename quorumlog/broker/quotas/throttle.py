"""Counts the requests of one connection against its quotas, and holds the connection.

A response leaves at once and carries the delay; meanwhile no request is read (KIP-219). The delay
begins with the request that exceeds a quota, so a response that waits carries the rest of it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterable
from copy import copy
from functools import partial
from inspect import iscoroutine
from typing import Any, Final, Protocol

from quorumlog import clock
from quorumlog.broker.quotas.core.client_quotas import ClientQuotas, QuotaClient, QuotaKind
from quorumlog.broker.quotas.core.connection_limits import ConnectionLimits
from quorumlog.broker.quotas.core.windows import WindowLengths
from quorumlog.broker.settings import BrokerSettings
from quorumlog.clock import monotonic_ms
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage
from quorumlog.metadata_quorum.image.acls import CLUSTER_NAME, AclOperation, AclResourceType
from quorumlog.wire.codec.message import Response
from quorumlog.wire.codec.messages.create_partitions import CreatePartitionsRequest
from quorumlog.wire.codec.messages.create_topics import CreateTopicsRequest
from quorumlog.wire.codec.messages.delete_topics import DeleteTopicsRequest
from quorumlog.wire.codec.messages.fetch import FetchRequest
from quorumlog.wire.codec.messages.produce import ProduceRequest
from quorumlog.wire.codec.messages.write_txn_markers import WriteTxnMarkersRequest
from quorumlog.wire.codec.schemas import RequestHeader

STRICT_SINCE: Final = {
    CreateTopicsRequest.API_KEY: 6,
    DeleteTopicsRequest.API_KEY: 5,
    CreatePartitionsRequest.API_KEY: 3,
}
"""The first version of each API whose clients handle THROTTLING_QUOTA_EXCEEDED (KIP-599)."""
_PERCENT: Final = 100  # a second of CPU time is 100 % of one second


class Connected(Protocol):
    """The context of a connection."""

    principal: str  # type:name


class BrokerQuotas:
    """The quotas in force on one broker: an ImagePublisher, shared by all connections."""

    def __init__(self, settings: BrokerSettings | None = None) -> None:
        settings = settings or BrokerSettings()
        lengths = WindowLengths(
            samples=settings.quota_window_num, sample_ms=settings.quota_window_size_seconds * 1000
        )
        mutation_lengths = WindowLengths(
            samples=settings.controller_quota_window_num,
            sample_ms=settings.controller_quota_window_size_seconds * 1000,
        )
        self.clients: Final = ClientQuotas(lengths, mutation_lengths)
        self.connections: Final = ConnectionLimits(lengths)
        self._seen: object = None

    def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:  # noqa: ARG002 - ImagePublisher's signature
        """Apply the quotas of the image; the windows of clients stay."""
        quotas = image.access.quotas
        if quotas is not self._seen and (quotas or self._seen):
            self.clients.apply(quotas)
            self.connections.apply(quotas)
        self._seen = quotas


class Throttle:
    """The delays of one connection.

    `pause` stops the reads of the connection, `resume` continues them. Invariant: while `is_held`,
    one timer is armed, and it calls `resume`.
    """

    __slots__ = ("_pause", "_quotas", "_resume", "_timer", "_until_ms")

    def __init__(
        self, quotas: ClientQuotas, pause: Callable[[], None], resume: Callable[[], None]
    ) -> None:
        self._quotas: Final = quotas
        self._pause: Final = pause
        self._resume: Final = resume
        self._timer: asyncio.TimerHandle | None = None
        self._until_ms = 0

    @property
    def is_held(self) -> bool:
        """Whether no request may be read now."""
        return self._timer is not None

    def close(self) -> None:
        """Release the timer: the connection is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def limits_produce(self, context: Connected, header: RequestHeader) -> bool:
        """Whether a quota holds for the produce requests of a client."""
        return self._is_limited(QuotaKind.PRODUCE, client_of(context, header))

    def limits_fetch(self, context: Connected, header: RequestHeader) -> bool:
        """Whether a quota holds for the fetches of a client."""
        return self._is_limited(QuotaKind.FETCH, client_of(context, header))

    def _is_limited(self, kind: QuotaKind, client: QuotaClient) -> bool:
        """Whether a quota of this kind, or of request time, holds."""
        bound = self._quotas.bound
        return bound(kind, client) is not None or bound(QuotaKind.REQUEST, client) is not None

    def handle(
        self, handle: Callable[[Any, RequestHeader, Any], Any], size: int, context: Any,
        header: RequestHeader, request: Any,
    ) -> Any:  # fmt: skip
        """Call a handler; count the `size` of a produce request, and the time of the handler."""
        client = client_of(context, header)
        is_answered = True
        if isinstance(request, ProduceRequest):
            is_answered = request.acks != 0
            self._record(QuotaKind.PRODUCE, client, size)
        if self._quotas.bound(QuotaKind.REQUEST, client) is None or not is_answered:
            return handle(context, header, request)
        start_s = clock.busy_s()
        reply = handle(context, header, request)
        spent_s, is_exempt = clock.busy_s() - start_s, _is_exempt(context, request)
        if iscoroutine(reply):
            return self._measured(_Steps(reply, spent_s), client, is_exempt=is_exempt)
        self._record_time(client, spent_s, is_exempt=is_exempt)
        return reply

    async def _measured(self, steps: "_Steps", client: QuotaClient, *, is_exempt: bool) -> Any:
        try:
            response = await steps
        finally:
            steps.close()
        self._record_time(client, steps.spent_s, is_exempt=is_exempt)
        return response

    def with_delay(self, response: Response) -> Response:
        """Return the response with the rest of the delay, if any, if it has a field for it."""
        if self._timer is None or not hasattr(response, "throttle_time_ms"):
            return response
        left_ms = self._until_ms - monotonic_ms()
        delayed: Any = copy(response)  # some responses are shared
        delayed.throttle_time_ms = max(delayed.throttle_time_ms, left_ms)
        return delayed  # type: ignore[no-any-return]

    def admit_fetch(self, context: Connected, header: RequestHeader, size: int) -> int:
        """Count a fetch response of so many bytes; return 0, or the delay in ms of an empty one."""
        client, now_ms = client_of(context, header), monotonic_ms()
        delay_ms = self._quotas.admit_fetch(client, size, now_ms)
        self.hold(delay_ms)
        return delay_ms

    def fetch_bytes(self, context: Connected, header: RequestHeader, max_bytes: int) -> int:
        """Return the most bytes of one fetch response: `max_bytes`, or a window's amount."""
        amount = self._quotas.window_amount(QuotaKind.FETCH, client_of(context, header))
        return max_bytes if amount is None else min(max_bytes, int(amount))

    def mutations(self, context: Connected, header: RequestHeader) -> "Mutations":
        """Return the quota of a request that creates or deletes partitions."""
        return Mutations(self, self._quotas, client_of(context, header), header)

    def _record_time(self, client: QuotaClient, spent_s: float, *, is_exempt: bool) -> None:
        if is_exempt:
            self._quotas.exempt_s += spent_s
        else:
            self._record(QuotaKind.REQUEST, client, spent_s * _PERCENT)

    def _record(self, kind: QuotaKind, client: QuotaClient, amount: float) -> None:
        self.hold(self._quotas.record(kind, client, amount, monotonic_ms()))

    def hold(self, delay_ms: int) -> None:
        """Read no request for so long; several delays overlap."""
        if delay_ms <= 0:
            return
        self._until_ms = max(self._until_ms, monotonic_ms() + delay_ms)
        if self._timer is None:
            self._arm(delay_ms)
            self._pause()

    def _arm(self, delay_ms: int) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._wake)

    def _wake(self) -> None:
        left_ms = self._until_ms - monotonic_ms()
        if left_ms > 0:
            self._arm(left_ms)
        else:
            self._timer = None
            self._resume()


def client_of(context: Connected, header: RequestHeader) -> QuotaClient:
    """Return the client of a request."""
    return QuotaClient(context.principal.partition(":")[2], header.client_id or "")


def _is_exempt(context: Any, request: Any) -> bool:
    """Whether a request is never throttled: the other brokers need its response.

    A client without the right of brokers that sends their requests is refused, and counted.
    """
    if isinstance(request, FetchRequest):
        state = request.replica_state  # since version 15
        is_broker = request.replica_id >= 0 or (state is not None and state.replica_id >= 0)
    else:
        is_broker = isinstance(request, WriteTxnMarkersRequest)
    right = AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, CLUSTER_NAME
    return is_broker and context.may(*right, api=type(request).__name__, log_denied=False)


class _Steps:
    """Awaits a coroutine, and sums up the time of its steps, without the time between them."""

    __slots__ = ("_coroutine", "spent_s")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], spent_s: float) -> None:
        self._coroutine: Final = coroutine
        self.spent_s = spent_s

    def close(self) -> None:
        """End the coroutine, if it never began."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[], Any] = partial(self._coroutine.send, None)
        while True:
            start_s = clock.busy_s()
            try:
                awaited = step()
            except StopIteration as end:
                return end.value
            finally:
                self.spent_s += clock.busy_s() - start_s
            try:
                step = partial(self._coroutine.send, (yield awaited))
            except BaseException as error:  # noqa: BLE001 - thrown into the coroutine: a cancel
                step = partial(self._coroutine.throw, error)


class Mutations:
    """The quota of partitions that one request creates or deletes (KIP-599), by topic.

    # DEVIATION: each broker has its own tokens, Kafka's active controller has them for all.
    # docs/decisions/0063-quotas.md
    """

    def __init__(
        self, throttle: Throttle, quotas: ClientQuotas, client: QuotaClient, header: RequestHeader
    ) -> None:
        self._throttle: Final = throttle
        self._quotas: Final = quotas
        self._client: Final = client
        self._is_strict: Final = header.api_version >= STRICT_SINCE[header.api_key]
        self._admitted: Final[dict[str, int]] = {}  # partitions by topic

    def admit(self, topic: str, partitions: int) -> bool:
        """Count new or deleted partitions; False: the client must retry after the delay.

        Older versions lack this error: their clients are admitted, and then wait.
        """
        now_ms = monotonic_ms()
        owed_ms = self._quotas.owed_ms(QuotaKind.MUTATION, self._client, now_ms)
        if owed_ms and self._is_strict:
            self._throttle.hold(owed_ms)
            return False
        self._admitted[topic] = max(0, partitions)
        delay_ms = self._quotas.record(
            QuotaKind.MUTATION, self._client, self._admitted[topic], now_ms
        )
        if not self._is_strict:
            self._throttle.hold(delay_ms)
        return True

    def give_back(self, topics: Iterable[str]) -> None:
        """Count the partitions of these topics no longer: the controller has refused them."""
        refused = sum(self._admitted.get(topic, 0) for topic in topics)
        if refused:
            self._quotas.record(QuotaKind.MUTATION, self._client, -refused, monotonic_ms())


class _NoQuota(Mutations):
    """Admits all: there is no quota of clients."""

    def __init__(self) -> None:
        pass

    def admit(self, topic: str, partitions: int) -> bool:  # noqa: ARG002 - the signature of its class
        return True

    def give_back(self, topics: Iterable[str]) -> None:
        pass


NO_QUOTA: Final = _NoQuota()
