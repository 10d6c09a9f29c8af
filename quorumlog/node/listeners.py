"""The sockets of a node: bound before the start, listening once the node can serve."""

import socket

from quorumlog.addresses import address_text
from quorumlog.broker.server.server import BACKLOG
from quorumlog.settings.listeners import Address


class StartFailed(Exception):
    """The node cannot run here, now; the message gives the remedy."""


def bind(name: str, address: Address) -> socket.socket:
    """Bind without listening, to detect a port in use before the start.

    Until `listen`, connections are refused. Raises StartFailed.
    """
    host = address.host
    if not host and socket.has_dualstack_ipv6():
        host = "::"  # all interfaces, of both families
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if host == "::" and socket.has_dualstack_ipv6():
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind((host, address.port))
    except OSError as error:
        bound.close()
        raise StartFailed(f"{name}={address}: {error.strerror}") from error
    return bound


def listen(name: str, bound: socket.socket) -> None:
    """Accept connections from now on.

    Raises StartFailed: another process may have bound the same port, and listened first.
    """
    try:
        bound.listen(BACKLOG)
    except OSError as error:
        host, port, *_ = bound.getsockname()
        raise StartFailed(f"{name}={address_text(host, port)}: {error.strerror}") from error
