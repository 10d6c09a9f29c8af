"""TLS between nodes: both ends show a certificate of the cluster's CA, with a role.

A role is an alternative name: `node-<id>`, or `operator` for status, metrics and waits. The
cluster's CA issues certificates to its users, too: those have no role. Hosts are not compared: a
node is its role, whatever address leads to it. docs/decisions/0062-tls.md
"""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp

from quorumlog.settings.tls import is_node_role, role_in

if TYPE_CHECKING:
    from ssl import SSLContext


@dataclass(frozen=True, slots=True)
class ControlTls:
    """The contexts of a node: of its control listener, and of its requests to others.

    serves_strangers: the listener also has routes for peers without a role, or a certificate.
    """

    server: "SSLContext"
    client: "SSLContext"
    serves_strangers: bool = False


def role_of(transport: asyncio.BaseTransport | None) -> str | None:
    """Return the role in the certificate of a connection's other end; None: it has none."""
    return role_in((transport and transport.get_extra_info("peercert")) or {})


class NodeConnector(aiohttp.TCPConnector):
    """Connects to nodes alone: a request, with its secret, goes to no other certificate."""

    async def connect(self, *args: Any, **options: Any) -> Any:
        """Return a connection as TCPConnector does. Raises aiohttp.ClientConnectionError."""
        connection = await super().connect(*args, **options)
        role = role_of(connection.transport)
        if role is None or not is_node_role(role):
            connection.close()
            raise aiohttp.ClientConnectionError("the server's certificate is not a node's")
        return connection
