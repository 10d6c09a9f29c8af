"""The sending side of the control plane: requests `POST /rpc/<Name>` to other nodes.

A node that refuses our requests is logged once, until a call succeeds.
"""

import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import aiohttp
import cbor2
from aiohttp import web

from quorumlog.metadata_quorum.cbor_values import MalformedValue, from_plain, to_plain
from quorumlog.metadata_quorum.io.control_tls import ControlTls, NodeConnector
from quorumlog.metadata_quorum.io.rpc import (
    CONTENT_TYPE,
    PROTOCOL_VERSION,
    REASON_CHARS_MAX,
    REQUEST_BYTES_MAX,
    RPCS,
    SECRET_HEADER,
    Replies,
    Reply,
    load,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId

RESPONSE_BYTES_MAX: Final = 64 * 1024 * 1024
# REQUEST_TIMED_OUT: of a leader that was deposed before the commit; the change may be made.
_PASSING: Final = frozenset(
    {ErrorCode.NOT_CONTROLLER, ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT}
)
_NAMES: Final = {request: name for name, (request, _) in RPCS.items()}
_logger: Final = logging.getLogger(__name__)


class RpcFailed(Exception):
    """No usable answer: not connected, timed out, refused, or not understood.

    `definite`: the request certainly was not carried out, and never will be.
    """

    def __init__(
        self,
        message: str,
        error_code: ErrorCode = ErrorCode.NETWORK_EXCEPTION,
        *,
        definite: bool = False,
    ) -> None:
        super().__init__(message)
        self.error_code = error_code
        self.definite = definite


class RpcTooLarge(RpcFailed):
    """The request was not sent: it exceeds the size limit of every node."""


class RpcMalformed(RpcFailed):
    """The other node could not decode the request, and carried out no part of it."""


class RpcClient:
    """Sends requests to other nodes, over one HTTP session with kept-alive connections."""

    def __init__(
        self,
        *,
        cluster_id: str,
        node_id: BrokerId,
        shared_secret: str | None,
        own_address: str = "",
        socket_factory: Callable[[Any], socket.socket] | None = None,
        tls: ControlTls | None = None,
    ) -> None:
        """Create it in a running loop. `close` it.

        Every request contains `own_address`, that of this node's control listener.
        `socket_factory`: see aiohttp.TCPConnector. `tls`: None: plain text.
        """
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._own_address = own_address
        headers = {} if shared_secret is None else {SECRET_HEADER: shared_secret}
        self._refused_by: set[str] = set()  # addresses of voters: there are few
        options: dict[str, Any] = {"limit": 0, "keepalive_timeout": 60}
        if socket_factory is not None:  # of a simulation; aiohttp has it since 3.12
            options["socket_factory"] = socket_factory
        self.scheme: Final = "http" if tls is None else "https"
        connector = (
            aiohttp.TCPConnector(**options)
            if tls is None
            else NodeConnector(ssl=tls.client, **options)
        )
        self.session: Final = aiohttp.ClientSession(
            headers={"Content-Type": CONTENT_TYPE, **headers},
            connector=connector,
            auto_decompress=False,
        )
        self.close: Final = self.session.close

    async def call(
        self, address: str, request: object, *, timeout_ms: int, request_id: str | None = None
    ) -> tuple[Any, bytes | None]:
        """Return the response and the records beside it. Raises RpcFailed."""
        name = _NAMES[type(request)]
        fields = {"body": to_plain(request), "request_id": request_id}
        reply = await self._post(address, name, fields, timeout_ms)
        return self._response(address, name, reply), reply.records

    async def call_many(
        self, address: str, batch: Sequence[tuple[object, str]], *, timeout_ms: int
    ) -> list[Any]:
        """Send several requests of one kind, each with its id, in one message.

        Returns a response or a RpcFailed for each, in their order. Raises RpcFailed if the message
        got no usable answer; RpcMalformed also if the other node takes no batches.
        """
        name = _NAMES[type(batch[0][0])]
        plain = [{"body": to_plain(one), "request_id": request_id} for one, request_id in batch]
        reply = await self._post(address, name, {"batch": plain}, timeout_ms)
        try:
            self._raise_refusal(address, name, reply)
            replies = from_plain(Replies, reply.body).replies
        except MalformedValue as error:
            raise self._refused(address, f"{name} to {address}: {error}") from error
        if len(replies) != len(batch):
            raise self._refused(address, f"{name} to {address}: {len(replies)} answers")
        return [self._response_or_failure(address, name, one) for one in replies]

    def _response_or_failure(self, address: str, name: str, reply: Reply) -> Any:
        try:
            return self._response(address, name, reply)
        except RpcFailed as failure:
            return failure

    async def _post(
        self, address: str, name: str, fields: Mapping[str, object], timeout_ms: int
    ) -> Reply:
        envelope = {
            "cluster_id": self._cluster_id,
            "protocol_version": PROTOCOL_VERSION,
            "sender_id": self._node_id,
            "sender_address": self._own_address,
            **fields,
        }
        content = cbor2.dumps(envelope)
        if len(content) > REQUEST_BYTES_MAX:
            message = f"{name}: {len(content)} bytes, where {REQUEST_BYTES_MAX} may be"
            raise RpcTooLarge(message, definite=True)
        timeout = aiohttp.ClientTimeout(total=timeout_ms / 1000)
        try:
            async with self.session.post(
                f"{self.scheme}://{address}/rpc/{name}",
                data=content,
                timeout=timeout,
                allow_redirects=False,  # the secret is for this address alone
            ) as answer:
                content = await _read_limited(answer)
                status = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError, UnicodeError) as error:
            not_sent = isinstance(error, aiohttp.ClientConnectorError | aiohttp.InvalidURL)
            raise RpcFailed(f"{name} to {address}: {error!r}", definite=not_sent) from error
        try:
            return _read_reply(status, content)
        except MalformedValue as error:
            kind = RpcMalformed if status == web.HTTPBadRequest.status_code else RpcFailed
            raise self._refused(address, f"{name} to {address}: {error}", kind=kind) from error

    def _response(self, address: str, name: str, reply: Reply) -> Any:
        self._raise_refusal(address, name, reply)
        try:
            response = from_plain(RPCS[name][1], reply.body)
        except MalformedValue as error:
            raise self._refused(address, f"{name} to {address}: {error}") from error
        self._refused_by.discard(address)
        return response

    def _raise_refusal(self, address: str, name: str, reply: Reply) -> None:
        if reply.error_code is ErrorCode.NONE:
            return
        message = f"{name} to {address}: {reply.error_message or reply.error_code.name}"
        if reply.error_code in _PASSING:
            definite = reply.error_code is not ErrorCode.REQUEST_TIMED_OUT
            raise RpcFailed(message, reply.error_code, definite=definite)
        raise self._refused(address, message, reply.error_code)

    def _refused(
        self,
        address: str,
        message: str,
        error_code: ErrorCode = ErrorCode.INVALID_REQUEST,
        *,
        kind: type[RpcFailed] = RpcFailed,
    ) -> RpcFailed:
        """Log once, until a call succeeds, that a node refuses our requests; return the error."""
        if address not in self._refused_by:
            self._refused_by.add(address)
            _logger.warning("%s", message)
        return kind(message, error_code)


async def _read_limited(answer: aiohttp.ClientResponse) -> bytes:
    """Read the whole body, with or without a length. Raises aiohttp.ClientPayloadError."""
    content = bytearray()
    while chunk := await answer.content.readany():
        content += chunk
        if len(content) > RESPONSE_BYTES_MAX:
            raise aiohttp.ClientPayloadError(f"an answer of more than {RESPONSE_BYTES_MAX} bytes")
    return bytes(content)


def _read_reply(status: int, content: bytes) -> Reply:
    if status != 200:
        said = content[:REASON_CHARS_MAX].decode(errors="replace").strip()
        raise MalformedValue(f"status {status}: {said}")
    return from_plain(Reply, load(content))
