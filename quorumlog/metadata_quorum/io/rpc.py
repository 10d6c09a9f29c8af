"""The control plane's requests, and the answering side: `POST /rpc/<Name>`, bodies in CBOR.

Every request names the cluster, the protocol version and its sender; a request for another cluster
is refused (INCONSISTENT_CLUSTER_ID). A malformed request gets status 400 and the reason. With a
shared secret, any request without it gets status 403. The refusing node logs it at most every 10 s.
"""

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import cbor2
from aiohttp import web

from quorumlog.metadata_quorum import cluster_changes
from quorumlog.metadata_quorum import controller_requests as requests
from quorumlog.metadata_quorum.cbor_values import MalformedValue, from_plain, to_plain
from quorumlog.metadata_quorum.controller_client import (
    BrokerHeartbeat,
    BrokerRegistration,
    HeartbeatReply,
    QuorumDescription,
    RegistrationReply,
)
from quorumlog.metadata_quorum.core import messages
from quorumlog.metadata_quorum.io.control_tls import ControlTls, role_of
from quorumlog.metadata_quorum.io.strangers import Strangers, WatchedSite
from quorumlog.settings.tls import node_role
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId

PROTOCOL_VERSION: Final = 1
SECRET_HEADER: Final = "X-Quorumlog-Secret"  # noqa: S105 - the header's name, not a secret
REQUEST_BYTES_MAX: Final = 16 * 1024 * 1024
BATCH_REQUESTS_MAX: Final = 1000
REASON_CHARS_MAX: Final = 300  # of an unknown server's response
QUIET_S: Final = 10.0  # after a line about a request that was refused
CONTENT_TYPE: Final = "application/cbor"
_logger: Final = logging.getLogger(__name__)

# Name -> (request, response): of the quorum, and of the active controller.
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
        "UpgradeKRaftVersion": (messages.UpgradeKRaftVersionRequest, messages.VoterChangeResponse),
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
        "AlterPartitionReassignments": (requests.AlterReassignments, requests.ReassignmentResults),
        "AlterPartition": (requests.AlterPartitions, requests.IsrResults),
        "UnregisterBroker": (cluster_changes.UnregisterBroker, cluster_changes.Outcomes),
        "CreateAcls": (cluster_changes.CreateAcls, cluster_changes.Outcomes),
        "DeleteAcls": (cluster_changes.DeleteAcls, cluster_changes.Outcomes),
        "AlterClientQuotas": (cluster_changes.AlterClientQuotas, cluster_changes.Outcomes),
        "AlterUserScramCredentials": (
            cluster_changes.AlterScramCredentials,
            cluster_changes.Outcomes,
        ),
        "AlterGroupConfigs": (cluster_changes.AlterGroupConfigs, cluster_changes.Outcomes),
        "AlterClientMetrics": (cluster_changes.AlterClientMetrics, cluster_changes.Outcomes),
        "UpdateFeatures": (cluster_changes.UpdateFeatures, cluster_changes.Outcomes),
        "DescribeQuorum": (requests.DescribeQuorum, QuorumDescription),
        "AssignReplicasToDirs": (requests.AssignReplicas, requests.ReportReply),
        "ReportLogs": (requests.ReportLogs, requests.ReportReply),
        "AllocateProducerIds": (requests.AllocateProducerIds, requests.ProducerIdsReply),
    }
)
RPCS: Final = MappingProxyType({**QUORUM_RPCS, **CONTROLLER_RPCS})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    body: Mapping[str, object]
    request_id: str | None = None  # the same when a request is repeated


@dataclass(frozen=True, slots=True, kw_only=True)
class _Envelope:
    """One request, or a batch of several of the kind that the path names, in place of `body`."""

    cluster_id: str
    protocol_version: int
    sender_id: BrokerId
    body: Mapping[str, object] | None = None
    request_id: str | None = None
    batch: tuple[_Request, ...] | None = None
    sender_address: str = ""  # `host:port` of its control listener; empty: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A reply: `body`, a response as plain values, if `error_code` is NONE.

    `records`: those of a fetch response. `leader_id`: the node that leads, if this one does not.
    """

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    leader_id: BrokerId = NO_LEADER
    body: Mapping[str, object] | None = None
    records: bytes | None = None

    @classmethod
    def of(cls, response: object, records: bytes | None = None) -> "Reply":
        """Return the reply with `response` as its body."""
        body: Any = to_plain(response)
        return cls(body=body, records=records)

    def plain(self) -> dict[str, object]:
        """Return it as `to_plain` does, but keep the body: that is plain, and may be large."""
        fields = {
            "error_code": int(self.error_code),
            "error_message": self.error_message,
            "leader_id": self.leader_id,
            "body": self.body,
            "records": self.records,
        }
        return {name: field for name, field in fields.items() if field is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Replies:
    """The replies to a batch: one for each of its requests, in their order."""

    replies: tuple[Reply, ...]


Handler = Callable[[Any, str | None], Awaitable[Reply]]
Hear = Callable[[int, str, object], None]


class RpcServer:
    """Answers `/rpc/<Name>`.

    `handle` gets the request, of the type that belongs to the name, and its id if it has one.
    `hear` gets the sender's id and address, and the request, before `handle`; only from this
    cluster.
    """

    def __init__(
        self,
        *,
        cluster_id: str,
        shared_secret: str | None,
        handle: Handler,
        hear: Hear = lambda *_: None,
        tls: ControlTls | None = None,
    ) -> None:
        self._strangers = Strangers()  # who have not shown the secret, if there is one
        self._tls = tls
        self._cluster_id = cluster_id
        self._secret_bytes = None if shared_secret is None else shared_secret.encode()
        self._handle = handle
        self._hear = hear
        self._quiet_until_s = 0.0
        self._open_paths: set[str] = set()

    def open_to_strangers(self, paths: Iterable[str]) -> None:
        """Serve these routes to peers without a role, if the listener's TLS admits such peers."""
        self._open_paths.update(paths)

    def add_routes(self, app: web.Application) -> None:
        """Serve from `app`."""
        app.router.add_post("/rpc/{name}", self._serve)
        app.middlewares.extend([self._strangers.middleware, self._require_role])

    @web.middleware
    async def _require_role(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Refuse a peer whose certificate has no role, except on the open paths."""
        if self._tls is not None and role_of(request.transport) is None:
            resource = request.match_info.route.resource  # None: there is no such route
            if resource is None or resource.canonical not in self._open_paths:
                reason = "the certificate of a node or an operator of the cluster is required"
                self._say_refused(request, reason)
                raise web.HTTPForbidden(text=f"{reason}\n")
        return await handler(request)

    def site(self, runner: web.AppRunner, **where: Any) -> web.BaseSite:
        """Return the listener of the application: see `WatchedSite`."""
        return WatchedSite(runner, self._strangers, tls=self._tls, **where)

    def check_secret(self, request: web.Request) -> None:
        """Raise the response 403 unless the request has the secret, if there is one."""
        given = request.headers.get(SECRET_HEADER, "").encode(errors="surrogateescape")
        if self._secret_bytes is not None and not hmac.compare_digest(given, self._secret_bytes):
            self._say_refused(request, "the shared secret is missing or wrong")
            raise web.HTTPForbidden(text="the shared secret is missing or wrong\n")
        self._strangers.admit(request)

    async def _serve(self, request: web.Request) -> web.Response:
        self.check_secret(request)
        kinds = RPCS.get(request.match_info["name"])
        if kinds is None:
            raise web.HTTPNotFound(text=f"no such RPC: {request.match_info['name']}\n")
        try:
            envelope = from_plain(_Envelope, load(await request.read()))
            batch = _requests_of(envelope, kinds[0])
        except MalformedValue as error:
            self._say_refused(request, f"malformed request: {error}")
            raise web.HTTPBadRequest(text=f"malformed request: {error}\n") from error
        except (ConnectionError, web.RequestPayloadError) as error:
            # The sender died in the middle of it, or its length or encoding is wrong.
            request.content.feed_eof()  # else aiohttp reads on, and logs the rest
            raise web.HTTPBadRequest(text=f"no whole request: {error}\n") from error
        if self._tls is not None and role_of(request.transport) != node_role(envelope.sender_id):
            reason = f"the certificate is not of node {envelope.sender_id}"
            self._say_refused(request, reason)
            raise web.HTTPForbidden(text=f"{reason}\n")
        reply = self._refuse(envelope)
        if reply is not None:
            self._say_refused(
                request, f"{reply.error_message}; requested by node {envelope.sender_id}"
            )
        else:
            reply = await self._answer(envelope, batch)
        return web.Response(body=cbor2.dumps(reply.plain()), content_type=CONTENT_TYPE)

    async def _answer(self, envelope: _Envelope, batch: list[tuple[Any, str | None]]) -> Reply:
        for request, _ in batch:
            self._hear(envelope.sender_id, envelope.sender_address, request)
        if envelope.batch is None:
            return await self._handle(*batch[0])
        replies = await asyncio.gather(*(self._handle(*one) for one in batch))
        return Reply(body={"replies": [reply.plain() for reply in replies]})

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


def _requests_of(envelope: _Envelope, kind: type[Any]) -> list[tuple[Any, str | None]]:
    if envelope.batch is None:
        return [(from_plain(kind, envelope.body), envelope.request_id)]
    if len(envelope.batch) > BATCH_REQUESTS_MAX:
        raise MalformedValue(f"a batch of more than {BATCH_REQUESTS_MAX} requests")
    return [(from_plain(kind, one.body), one.request_id) for one in envelope.batch]


def load(content: bytes) -> object:
    """Return the plain value of these CBOR bytes. Raises MalformedValue."""
    try:
        plain: object = cbor2.loads(content)
    except (cbor2.CBORDecodeError, ValueError) as error:
        raise MalformedValue(f"not CBOR: {error}") from error
    return plain
