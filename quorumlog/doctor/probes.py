"""One address, probed from here: its name, its port, and the protocol behind it.

The first bytes of the answer to an ApiVersions request give the protocol. A server that closes the
connection without an answer is tried with a TLS handshake, because some TLS servers send no alert.
"""

import asyncio
import ssl
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from time import monotonic, time
from typing import Final, TypeVar

from quorumlog.addresses import address_text
from quorumlog.wire.codec.message import Request, Response
from quorumlog.wire.codec.messages.api_versions import ApiVersionsRequest
from quorumlog.wire.codec.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from quorumlog.wire.codec.messages.describe_quorum import (
    DescribeQuorumRequest,
    RequestPartitionData,
    RequestTopicData,
)
from quorumlog.wire.codec.messages.metadata import MetadataRequest, MetadataResponse
from quorumlog.wire.codec.schemas import UnsupportedVersion, encode_request
from quorumlog.wire.io.connection import (
    AuthenticationFailed,
    ConnectionLost,
    KafkaConnection,
    RequestTimedOut,
)
from quorumlog.wire.io.security import PLAINTEXT, ConnectionSecurity

TIMEOUT_S: Final = 5.0
_HTTP_TIMEOUT_S: Final = 1.0
CLIENT_ID: Final = "quorumlog-doctor"
_FRAME_MAX: Final = 100 * 1024 * 1024
_HTTP: Final = b"HTTP"
_TLS_RECORDS: Final = (b"\x15\x03", b"\x16\x03")
_BROKER: Final = 4  # ConfigResource.Type.BROKER
_METADATA_TOPIC: Final = "__cluster_metadata"
ResponseT = TypeVar("ResponseT", bound=Response)


class Reached(Enum):
    """The end of a probe: the first step that failed, or KAFKA."""

    NO_SUCH_HOST = "no such host"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    SILENT = "silent"
    TLS = "TLS"
    HTTP = "HTTP"
    OTHER = "another protocol"
    CLOSED = "closed"
    UNAUTHENTICATED = "unauthenticated"  # TLS or SASL refuses
    LOGIN = "login"  # it answers ApiVersions, but no other request
    NO_METADATA = "no metadata"  # it serves no Metadata in a version of this release
    KAFKA = "Kafka"


class QuorumUnavailable(Exception):
    """A broker cannot describe the metadata quorum; the message is the broker's."""


@dataclass(kw_only=True)
class Probe:
    """The state of one address. `address`: `host:port`, as it was given or advertised.

    `has_tls`: the port speaks TLS, and Kafka's protocol in it.
    `skew_ms`: the clock of the quorum's leader minus the clock here; None: not visible.
    `quorum_problem`: the reason why the broker cannot describe the quorum; empty: it can.
    """

    address: str
    reached: Reached
    has_tls: bool = False
    detail: str = ""
    api_versions: Mapping[int, range] = field(default_factory=dict)
    metadata: MetadataResponse | None = None
    configs: dict[str, str] = field(default_factory=dict)  # of the broker that was expected here
    other_identity: str = ""  # the broker's refusal to be the expected one
    skew_ms: int | None = None
    quorum_problem: str = ""


async def probe(
    host: str, port: int, broker_id: int | None = None, security: ConnectionSecurity = PLAINTEXT
) -> Probe:
    """Probe an address; `broker_id`: the broker that should answer there, None: any.

    `security`: of the client. A password for TLS is not sent to a plain port.
    """
    reached, detail = await _first_answer(host, port)
    found = Probe(address=address_text(host, port), reached=reached, detail=detail)
    if reached is Reached.TLS and security.tls is not None:
        found.reached, found.has_tls = Reached.KAFKA, True
    elif security.tls is not None:
        security = PLAINTEXT
    if found.reached is Reached.KAFKA:
        try:
            async with asyncio.timeout(4 * TIMEOUT_S):
                await _question(found, host, port, broker_id, security)
        except AuthenticationFailed as error:
            found.reached, found.detail = Reached.UNAUTHENTICATED, str(error)
        except (ConnectionLost, RequestTimedOut, TimeoutError) as error:
            found.reached, found.detail = Reached.LOGIN, str(error)
    return found


async def _first_answer(host: str, port: int) -> tuple[Reached, str]:
    """Return the protocol at an address, from the first bytes of its answer."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.get_running_loop().getaddrinfo(host, port)
    except (OSError, UnicodeError) as error:
        return Reached.NO_SUCH_HOST, getattr(error, "strerror", None) or str(error)
    except TimeoutError:
        return Reached.NO_SUCH_HOST, "the name server does not answer"
    try:
        async with asyncio.timeout(TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return Reached.REFUSED, ""
    except TimeoutError:
        return Reached.UNREACHABLE, f"no connection within {TIMEOUT_S:.0f} s"
    except OSError as error:
        refused = "refused" in str(error).lower()  # of several addresses: the text has all errors
        return (Reached.REFUSED if refused else Reached.UNREACHABLE), str(error)
    try:
        return await _protocol(reader, writer, host, port)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _protocol(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int
) -> tuple[Reached, str]:
    request = encode_request(
        ApiVersionsRequest(), api_version=0, correlation_id=1, client_id=CLIENT_ID
    )
    start = b""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            writer.write(b"".join(request))
            start = await reader.readexactly(4)
    except TimeoutError:
        if not await _answers_http(host, port):
            return Reached.SILENT, f"no answer to ApiVersions within {TIMEOUT_S:.0f} s"
        start = _HTTP
    except asyncio.IncompleteReadError as error:
        start = error.partial
    except OSError:  # reset: as a close
        start = b""
    if start == _HTTP:
        return Reached.HTTP, ""
    if start.startswith(_TLS_RECORDS) or (not start and await _shakes_hands(host, port)):
        return Reached.TLS, ""
    if len(start) < 4:
        return Reached.CLOSED, "the connection is closed without an answer"
    (size,) = struct.unpack(">i", start)
    if not 0 < size <= _FRAME_MAX:
        return Reached.OTHER, f"its answer begins with {start!r}"
    return Reached.KAFKA, ""


async def _answers_http(host: str, port: int) -> bool:
    """Return whether an HTTP server answers: some wait for the end of a line, which Kafka lacks."""
    try:
        async with asyncio.timeout(_HTTP_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(b"HEAD / HTTP/1.0\r\n\r\n")
                return await reader.readexactly(len(_HTTP)) == _HTTP
            finally:
                writer.close()
    except (OSError, EOFError, TimeoutError):
        return False


async def _shakes_hands(host: str, port: int) -> bool:
    """Return whether a TLS server answers; its certificate is not checked, nothing is sent."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLError as error:
        return error.reason not in {"WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING"}
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def _question(
    found: Probe, host: str, port: int, broker_id: int | None, security: ConnectionSecurity
) -> None:
    """Read metadata, the broker's configuration and the clock of the quorum's leader."""
    connection = await KafkaConnection.open(
        host, port, client_id=CLIENT_ID, request_timeout_ms=int(TIMEOUT_S * 1000), security=security
    )
    try:
        found.api_versions = connection.api_versions
        found.metadata = await _sent(connection, MetadataRequest(topics=[]))
        if found.metadata is None:
            found.reached = Reached.NO_METADATA
            return
        if broker_id is not None:
            await _read_configs(found, connection, broker_id)
        try:
            found.skew_ms = await _skew_ms(connection)
        except (ConnectionLost, RequestTimedOut, QuorumUnavailable) as error:
            found.quorum_problem = str(error)
    finally:
        await connection.close()


async def _sent(connection: KafkaConnection, request: Request[ResponseT]) -> ResponseT | None:
    """Return the response; None if the broker does not serve the request."""
    try:
        return await connection.send(request)
    except UnsupportedVersion:
        return None


async def _read_configs(found: Probe, connection: KafkaConnection, broker_id: int) -> None:
    """Read the broker's configuration: a broker refuses to describe another one."""
    resource = DescribeConfigsResource(resource_type=_BROKER, resource_name=str(broker_id))
    response = await _sent(connection, DescribeConfigsRequest(resources=[resource]))
    for result in response.results if response is not None else ():
        if result.error_code:
            found.other_identity = result.error_message or f"error {result.error_code}"
        found.configs = {one.name: one.value or "" for one in result.configs}


async def _skew_ms(connection: KafkaConnection) -> int | None:
    """Return the difference of the clocks; the leader of the quorum dates itself (KIP-836).

    Raises QuorumUnavailable.
    """
    partition = RequestPartitionData(partition_index=0)
    topic = RequestTopicData(topic_name=_METADATA_TOPIC, partitions=[partition])
    began_s = monotonic()
    here_ms = time() * 1000
    response = await _sent(connection, DescribeQuorumRequest(topics=[topic]))
    took_ms = (monotonic() - began_s) * 1000
    if response is not None and response.error_code:
        raise QuorumUnavailable(response.error_message or f"error {response.error_code}")
    if response is None:
        return None
    for one in (part for found in response.topics for part in found.partitions):
        for voter in one.current_voters:
            if voter.replica_id == one.leader_id and voter.last_fetch_timestamp > 0:
                return round(voter.last_fetch_timestamp - here_ms - took_ms / 2)
    return None
