"""The control plane's requests: `POST /rpc/<Name>` over HTTP, bodies in CBOR.

Every request names the cluster, the protocol version and its sender; one for another cluster is
refused (INCONSISTENT_CLUSTER_ID). Bytes that are no request get status 400 and the reason. With a
shared secret, any request without it gets status 403. The
refusing node logs it at most every 10 s; the refused one logs it once, until a call succeeds.
"""

import asyncio
import hmac
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import aiohttp
import cbor2
from aiohttp import web

from quorumlog.metadata_quorum import cluster_changes
from quorumlog.metadata_quorum.cbor_values import MalformedValue, from_plain, to_plain
from quorumlog.metadata_quorum.controller import requests
from quorumlog.metadata_quorum.controller_client import (
    BrokerHeartbeat,
    BrokerRegistration,
    HeartbeatReply,
    QuorumDescription,
    RegistrationReply,
)
from quorumlog.metadata_quorum.core import messages
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId

PROTOCOL_VERSION: Final = 1
SECRET_HEADER: Final = "X-Quorumlog-Secret"  # noqa: S105 - the header's name, not a secret
REQUEST_BYTES_MAX: Final = 16 * 1024 * 1024
RESPONSE_BYTES_MAX: Final = 64 * 1024 * 1024
REASON_CHARS_MAX: Final = 300  # of the answer of an unknown server
QUIET_S: Final = 10.0  # after a line about a request that was refused
CONTENT_TYPE: Final = "application/cbor"
_logger: Final = logging.getLogger(__name__)

# Name -> (request, response): those of the quorum, and those of the active controller.
QUORUM_RPCS: Final[Mapping[str, tuple[type[Any], type[Any]]]] = MappingProxyType(
    {
        "Vote": (messages.VoteRequest, messages.VoteResponse),
        "BeginQuorumEpoch": (messages.BeginQuorumEpochRequest, messages.BeginQuorumEpochResponse),
        "EndQuorumEpoch": (messages.EndQuorumEpochRequest, messages.EndQuorumEpochResponse),
        "Fetch": (messages.FetchRequest, messages.FetchResponse),
        "FetchSnapshot": (messages.FetchSnapshotRequest, messages.FetchSnapshotResponse),
        "AddVoter": (messages.AddVoterRequest, messages.VoterChangeResponse),
        "RemoveVoter": (messages.RemoveVoterRequest, messages.VoterChangeResponse),
        "UpdateVoter": (messages.UpdateVoterRequest, messages.VoterChangeResponse),
        "UpgradeKRaftVersion": (
            messages.UpgradeKRaftVersionRequest,
            messages.VoterChangeResponse,
        ),
    }
)
CONTROLLER_RPCS: Final[Mapping[str, tuple[type[Any], type[Any]]]] = MappingProxyType(
    {
        "RegisterBroker": (BrokerRegistration, RegistrationReply),
        "BrokerHeartbeat": (BrokerHeartbeat, HeartbeatReply),
        "CreateTopics": (requests.CreateTopics, requests.TopicResults),
        "FindTopics": (requests.FindTopics, requests.TopicResults),
        "DeleteTopics": (requests.DeleteTopics, requests.TopicResults),
        "CreatePartitions": (requests.CreatePartitions, requests.TopicResults),
        "AlterConfigs": (requests.AlterConfigs, requests.ConfigResults),
        "ElectLeaders": (requests.ElectLeaders, requests.ElectionResults),
        "AlterPartitionReassignments": (
            requests.AlterReassignments,
            requests.ReassignmentResults,
        ),
        "AlterPartition": (requests.AlterPartitions, requests.IsrResults),
        "UnregisterBroker": (cluster_changes.UnregisterBroker, cluster_changes.Outcomes),
        "CreateAcls": (cluster_changes.CreateAcls, cluster_changes.Outcomes),
        "DeleteAcls": (cluster_changes.DeleteAcls, cluster_changes.Outcomes),
        "AlterClientQuotas": (cluster_changes.AlterClientQuotas, cluster_changes.Outcomes),
        "AlterUserScramCredentials": (
            cluster_changes.AlterScramCredentials,
            cluster_changes.Outcomes,
        ),
        "UpdateFeatures": (cluster_changes.UpdateFeatures, cluster_changes.Outcomes),
        "DescribeQuorum": (requests.DescribeQuorum, QuorumDescription),
        "AllocateProducerIds": (requests.AllocateProducerIds, requests.ProducerIdsReply),
    }
)
RPCS: Final = MappingProxyType({**QUORUM_RPCS, **CONTROLLER_RPCS})
# REQUEST_TIMED_OUT: of a leader that was deposed before the commit; the change may be made.
_PASSING: Final = frozenset(
    {ErrorCode.NOT_CONTROLLER, ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.REQUEST_TIMED_OUT}
)
_NAMES: Final = {request: name for name, (request, _) in RPCS.items()}


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
    """The request was not sent: no node takes as many bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Envelope:
    cluster_id: str
    protocol_version: int
    sender_id: BrokerId
    body: Mapping[str, object]
    request_id: str | None = None  # the same when a request is repeated
    sender_address: str = ""  # `host:port` of its control listener; empty: it does not tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer: `body`, a response as plain values, if `error_code` is NONE.

    A fetch has its records beside it. `leader_id`: the node that leads, if this one does not.
    """

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    leader_id: BrokerId = NO_LEADER
    body: Mapping[str, object] | None = None
    records: bytes | None = None

    @classmethod
    def of(cls, response: object, records: bytes | None = None) -> "Reply":
        """Return the reply that carries `response`."""
        body: Any = to_plain(response)
        return cls(body=body, records=records)


Handler = Callable[[Any, str | None], Awaitable[Reply]]
Hear = Callable[[int, str, object], None]


def _ignore(_sender_id: int, _sender_address: str, _request: object) -> None:
    """Hear nothing."""


class RpcServer:
    """Answers `/rpc/<Name>`.

    `handle` gets the request, of the type that belongs to the name, and its id if it has one.
    `hear` gets the sender's id and address before, and the request: of this cluster only.
    """

    def __init__(
        self,
        *,
        cluster_id: str,
        shared_secret: str | None,
        handle: Handler,
        hear: Hear = _ignore,
    ) -> None:
        self._cluster_id = cluster_id
        self._secret_bytes = None if shared_secret is None else shared_secret.encode()
        self._handle = handle
        self._hear = hear
        self._quiet_until_s = 0.0

    def add_routes(self, app: web.Application) -> None:
        """Serve from `app`."""
        app.router.add_post("/rpc/{name}", self._serve)

    def check_secret(self, request: web.Request) -> None:
        """Raise the answer 403 unless the request carries the secret, if there is one."""
        if self._secret_bytes is None:
            return
        given = request.headers.get(SECRET_HEADER, "")
        if not hmac.compare_digest(given.encode(errors="surrogateescape"), self._secret_bytes):
            self._say_refused(request, "the shared secret is missing or wrong")
            raise web.HTTPForbidden(text="the shared secret is missing or wrong\n")

    async def _serve(self, request: web.Request) -> web.Response:
        self.check_secret(request)
        kinds = RPCS.get(request.match_info["name"])
        if kinds is None:
            raise web.HTTPNotFound(text=f"no such RPC: {request.match_info['name']}\n")
        try:
            envelope = from_plain(_Envelope, _load(await request.read()))
            body = from_plain(kinds[0], envelope.body)
        except MalformedValue as error:
            self._say_refused(request, f"malformed request: {error}")
            raise web.HTTPBadRequest(text=f"malformed request: {error}\n") from error
        except (ConnectionError, web.RequestPayloadError) as error:
            # The sender died in the middle of it, or its length or encoding is wrong.
            request.content.feed_eof()  # else aiohttp reads on, and logs what it meets
            raise web.HTTPBadRequest(text=f"no whole request: {error}\n") from error
        reply = self._refuse(envelope)
        if reply is None:
            self._hear(envelope.sender_id, envelope.sender_address, body)
            reply = await self._handle(body, envelope.request_id)
        else:
            self._say_refused(request, f"{reply.error_message}; node {envelope.sender_id} asked")
        return web.Response(body=cbor2.dumps(to_plain(reply)), content_type=CONTENT_TYPE)

    def _say_refused(self, request: web.Request, reason: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._quiet_until_s:
            self._quiet_until_s = now_s + QUIET_S
            said = reason[:REASON_CHARS_MAX]
            _logger.warning("refused %s from %s: %s", request.path, request.remote, said)

    def _refuse(self, envelope: _Envelope) -> Reply | None:
        if envelope.cluster_id != self._cluster_id:
            return Reply(
                error_code=ErrorCode.INCONSISTENT_CLUSTER_ID,
                error_message=f"this is cluster {self._cluster_id}, not {envelope.cluster_id}",
            )
        if envelope.protocol_version != PROTOCOL_VERSION:
            return Reply(
                error_code=ErrorCode.UNSUPPORTED_VERSION,
                error_message=f"this node speaks control protocol {PROTOCOL_VERSION}",
            )
        return None


class RpcClient:
    """Asks other nodes, over one HTTP session with kept-alive connections."""

    def __init__(
        self,
        *,
        cluster_id: str,
        node_id: BrokerId,
        shared_secret: str | None,
        own_address: str = "",
        socket_factory: Callable[[Any], socket.socket] | None = None,
    ) -> None:
        """Create it in a running loop. `close` it.

        `own_address` of this node's control listener is told to every node that is asked.
        `socket_factory`: see aiohttp.TCPConnector.
        """
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._own_address = own_address
        headers = {} if shared_secret is None else {SECRET_HEADER: shared_secret}
        self._refused_by: set[str] = set()  # addresses of voters: there are few
        options: dict[str, Any] = {"limit": 0, "keepalive_timeout": 60}
        if socket_factory is not None:  # of a simulation; aiohttp has it since 3.12
            options["socket_factory"] = socket_factory
        self.session: Final = aiohttp.ClientSession(
            headers={"Content-Type": CONTENT_TYPE, **headers},
            connector=aiohttp.TCPConnector(**options),
            auto_decompress=False,
        )

    async def close(self) -> None:
        """Close every connection."""
        await self.session.close()

    async def call(
        self, address: str, request: object, *, timeout_ms: int, request_id: str | None = None
    ) -> tuple[Any, bytes | None]:
        """Return the response and the records beside it. Raises RpcFailed."""
        name = _NAMES[type(request)]
        envelope = {
            "cluster_id": self._cluster_id,
            "protocol_version": PROTOCOL_VERSION,
            "sender_id": self._node_id,
            "body": to_plain(request),
            "request_id": request_id,
            "sender_address": self._own_address,
        }
        content = cbor2.dumps(envelope)
        if len(content) > REQUEST_BYTES_MAX:
            message = f"{name}: {len(content)} bytes, where {REQUEST_BYTES_MAX} may be"
            raise RpcTooLarge(message, definite=True)
        timeout = aiohttp.ClientTimeout(total=timeout_ms / 1000)
        try:
            async with self.session.post(
                f"http://{address}/rpc/{name}",
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
            reply = _read_reply(status, content)
            if reply.error_code is ErrorCode.NONE:
                response = from_plain(RPCS[name][1], reply.body)
                self._refused_by.discard(address)
                return response, reply.records
        except MalformedValue as error:
            raise self._refused(address, f"{name} to {address}: {error}") from error
        message = f"{name} to {address}: {reply.error_message or reply.error_code.name}"
        if reply.error_code in _PASSING:
            definite = reply.error_code is not ErrorCode.REQUEST_TIMED_OUT
            raise RpcFailed(message, reply.error_code, definite=definite)
        raise self._refused(address, message, reply.error_code)

    def _refused(
        self, address: str, message: str, error_code: ErrorCode = ErrorCode.INVALID_REQUEST
    ) -> RpcFailed:
        """Log once, until a call succeeds, that a node refuses our requests."""
        if address not in self._refused_by:
            self._refused_by.add(address)
            _logger.warning("%s", message)
        return RpcFailed(message, error_code)


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
    return from_plain(Reply, _load(content))


def _load(content: bytes) -> object:
    try:
        plain: object = cbor2.loads(content)
    except (cbor2.CBORDecodeError, ValueError) as error:
        raise MalformedValue(f"not CBOR: {error}") from error
    return plain
