"""The handler of one API, and its context: the parts of the broker."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from quorumlog.addresses import DEFAULT_LISTENER
from quorumlog.broker.controller_requests.image_watch import ImageWatch
from quorumlog.broker.controller_requests.producer_ids import ProducerIds
from quorumlog.broker.fetching.core.response_memory import ResponseAccount
from quorumlog.broker.groups.io.group_service import GroupService
from quorumlog.broker.partitions.io.transaction_verifier import TransactionVerifier
from quorumlog.broker.quotas.throttle import BrokerQuotas, Throttle
from quorumlog.broker.replicas import Replicas
from quorumlog.broker.settings import BrokerSettings
from quorumlog.broker.transactions.io.transaction_service import TransactionService
from quorumlog.metadata_quorum.controller_client import ControllerClient
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.metadata_quorum.image.acls import AclOperation, AclResourceType
from quorumlog.settings import releases
from quorumlog.settings.servers import BrokerConfig, StaticConfig
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId
from quorumlog.wire.codec.message import Buffer, Request, Response
from quorumlog.wire.codec.messages.api_versions import ApiVersion, ApiVersionsResponse
from quorumlog.wire.codec.produce_template import ProduceTemplate, TemplateMatch
from quorumlog.wire.codec.schemas import RequestHeader
from quorumlog.wire.io.connection import NODE_SOFTWARE_NAME

if TYPE_CHECKING:  # a broker that needs none of them does not load them
    from quorumlog.broker.authorization.access_control import AccessControl
    from quorumlog.broker.telemetry.core.instances import ClientInstances

R = TypeVar("R")

ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of a connection without authentication: Kafka's KafkaPrincipal.ANONYMOUS."""


class Disconnect(Exception):
    """Raised by a handler: close the connection, because no answer can report the error."""


Reply: TypeAlias = Response | asyncio.Future[Any] | Coroutine[Any, Any, Response | None] | None
"""A response now, later (Future), as a task (coroutine), or never (None, also a task's: acks=0)."""

Handle: TypeAlias = Callable[["BrokerContext", RequestHeader, Any], Reply]
HandleAlike: TypeAlias = Callable[["BrokerContext", Any], Reply]
"""A handler that does the same for all versions and clients: it gets no header."""

Deliver: TypeAlias = Callable[[Sequence[Buffer], int], None]
"""Receives the frames of the responses to the next so many requests of a run; none for acks=0."""


RunReply: TypeAlias = tuple[int, list[Buffer] | Callable[[Deliver], None]]
"""The reply to so many leading requests of a run: the frames of their responses, or, if they wait,
a function to call once, with the receiver of the responses."""


class HandleRun(Protocol):
    """Handles requests that differ only in correlation id and records, in one step."""

    def __call__(
        self,
        context: "BrokerContext",
        template: ProduceTemplate,
        requests: Sequence[TemplateMatch],
        *,
        may_continue: Callable[[], bool],
    ) -> RunReply | None:
        """Handle the leading requests that are plain; None: the first is not.

        `may_continue`: whether there is time for another request. The other requests go to the
        handler of single requests.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiHandler:
    """One API: `handle` is called inside the socket callback, so it must not block.

    Buffers in a request are views that are valid until `handle` returns; for a coroutine handler,
    until the coroutine ends. The broker serves versions `min_version..max_version`.
    """

    api_key: int
    min_version: int
    max_version: int
    handle: Handle
    advertised_min_version: int  # in ApiVersions
    handle_run: HandleRun | None = None


def answers(
    request: type[Request[Any]],
    min_version: int,
    max_version: int,
    *,
    advertised_min_version: int | None = None,
    handle_run: HandleRun | None = None,
) -> Callable[[Handle | HandleAlike], ApiHandler]:
    """Make a function the handler of these versions of a request."""
    shown = min_version if advertised_min_version is None else advertised_min_version
    return lambda handle: ApiHandler(
        api_key=request.API_KEY,
        min_version=min_version,
        max_version=max_version,
        handle=_with_header(handle),
        advertised_min_version=shown,
        handle_run=handle_run,
    )


def _with_header(handle: Any) -> Handle:
    takes_header: bool = handle.__code__.co_argcount > 2
    return handle if takes_header else lambda context, _, request: handle(context, request)


class Client(NamedTuple):
    """The other end of a connection, with the names that it has sent."""

    address: str = "?"  # host:port
    host: str = "?"
    software: str = ""  # of KIP-511, or else the client id of its last request


@dataclass(slots=True, kw_only=True)
class BrokerContext:
    """Assembled once per node; each connection has a copy with its own last fields."""

    broker_id: BrokerId
    cluster_id: str
    settings: BrokerSettings
    static: StaticConfig  # the node's configuration at its start, `settings` and more
    metadata: ImageWatch
    replicas: Replicas
    groups: GroupService
    transactions: TransactionService
    verifier: TransactionVerifier
    producer_ids: ProducerIds
    controller: ControllerClient
    handlers: Mapping[int, ApiHandler]  # by API key: every API that is served and advertised
    wall_ms: Callable[[], int]  # ms since 1970
    listener: str = DEFAULT_LISTENER  # that accepted the connection
    client_host: str = ""  # the peer's address
    client_port: int = 0
    software: tuple[str, str] = "", ""  # its name and version (KIP-511), if there is telemetry
    principal: str = ANONYMOUS  # type:name of the authenticated client
    quotas: BrokerQuotas = field(default_factory=BrokerQuotas)  # of all connections
    throttle: Throttle | None = None  # of the connection, since there was a quota of clients
    may_send_files: bool = True  # under TLS, ranges of files would be read into uncounted memory
    account: ResponseAccount | None = None  # counts response bytes that the peer has not taken
    node_handlers: Mapping[int, ApiHandler] | None = None  # for other brokers, if they differ
    access: "AccessControl | None" = None  # None: every client may do everything
    telemetry: "ClientInstances | None" = None  # None: clients report no metrics

    def may(
        self,
        operation: AclOperation,
        resource_type: AclResourceType,
        name: str,
        *,
        api: str,
        log_denied: bool = True,
    ) -> bool:
        """Whether the client may do the operation on the resource, by the ACLs of the image.

        `api`: Kafka's name of the request, for the audit log.
        """
        return self.access is None or self.access.may(
            self.principal,
            self.client_host,
            operation,
            resource_type,
            name,
            api=api,
            log_denied=log_denied,
        )

    def introduced(self, name: str, version: str) -> "BrokerContext":
        """Return the context of a connection whose client has sent its software (KIP-511).

        Another broker gets all versions, which `as.version` does not concern.
        """
        context = self
        if self.telemetry is not None:
            context = replace(context, software=(name, version))
        if name != NODE_SOFTWARE_NAME or self.node_handlers is None:
            return context
        return replace(context, handlers=self.node_handlers)

    @property
    def config(self) -> BrokerConfig:
        """The node's configuration, including alterations since its start."""
        own, cluster = self.image.broker_config(self.broker_id), self.image.broker_config(None)
        return BrokerConfig(self.static, own, cluster)

    @property
    def image(self) -> ClusterImage:
        """The newest committed metadata that this broker acts on."""
        return self.metadata.image


def when_done(
    result: asyncio.Future[R], respond: Callable[[R], Response]
) -> Response | asyncio.Future[Response]:
    """Return the response to `result`: now if it is done, or as a Future."""
    if result.done():
        return respond(result.result())
    response: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    def done(_result: asyncio.Future[R]) -> None:
        if response.done():  # the connection is gone
            return
        error = result.exception()
        if error is None:
            response.set_result(respond(result.result()))
        else:
            response.set_exception(error)

    result.add_done_callback(done)
    return response


def as_release(context: BrokerContext) -> BrokerContext:
    """Return the context for clients: their APIs and versions are those of `as.version` at most.

    The other brokers keep all versions. The lowest versions are this broker's own.
    """
    release = context.settings.as_version
    if release == releases.NEWEST:
        return context
    highest = releases.api_versions(release)
    limited = {
        key: replace(handler, max_version=min(handler.max_version, highest[key]))
        for key, handler in context.handlers.items()
        if highest.get(key, -1) >= handler.min_version
    }
    return replace(context, handlers=limited, node_handlers=context.handlers)


def version_ranges(context: BrokerContext) -> list[ApiVersion]:
    """Return the versions of every API that has a handler, by API key."""
    return [
        ApiVersion(
            api_key=handler.api_key,
            min_version=handler.advertised_min_version,
            max_version=handler.max_version,
        )
        for _, handler in sorted(context.handlers.items())
    ]


def unsupported_version(context: BrokerContext) -> ApiVersionsResponse:
    """Return the response, in version 0, to an ApiVersions request of an unsupported version."""
    return ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=version_ranges(context)
    )
