"""Connections of this machine's user to the control listeners of a cluster's nodes.

If the nodes use `control.tls.*`, the user shows the certificate `operator` in the cluster's
directory, and accepts a certificate of the cluster's CA that is a node's, whatever its address.
"""

import http.client
from pathlib import Path
from typing import TYPE_CHECKING, Final

from quorumlog.addresses import host_and_port
from quorumlog.cluster.certificates import SECURITY_DIRECTORY
from quorumlog.cluster.errors import ClusterError
from quorumlog.settings.tls import OPERATOR, role_in

if TYPE_CHECKING:
    from ssl import SSLContext

_PROPERTIES: Final = "node-*/node.properties"
_SETTING: Final = "control.tls.ca.file"


def operator_context(directory: Path) -> "SSLContext | None":
    """Return the context for the control listeners of a cluster; None: they have plain text.

    Raises ClusterError: the operator's certificate is missing or damaged.
    """
    if not _has_control_tls(directory):
        return None
    import ssl  # a cluster without TLS does not need it

    files = directory / SECURITY_DIRECTORY
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # see `open_connection`
    try:
        context.load_verify_locations(files / "ca.pem")
        context.load_cert_chain(files / f"{OPERATOR}.pem", files / f"{OPERATOR}.key")
    except OSError as error:  # of a file, or of OpenSSL
        raise ClusterError(f"{files}/{OPERATOR}.pem, .key and ca.pem: {error}") from error
    return context


def _has_control_tls(directory: Path) -> bool:
    written = next(directory.glob(_PROPERTIES), None)  # all nodes have it, or none
    if written is None:
        return False
    lines = written.read_text(encoding="utf-8").splitlines()
    return any(line.partition("=")[0].strip() == _SETTING for line in lines)


def open_connection(
    address: str, tls: "SSLContext | None", timeout_s: float | None = None
) -> http.client.HTTPConnection:
    """Return a connection to a control listener; it connects with its first request."""
    host, port = host_and_port(address)
    if tls is None:
        return http.client.HTTPConnection(host, port, timeout=timeout_s)
    return _NodeConnection(host, port, timeout=timeout_s, context=tls)


class _NodeConnection(http.client.HTTPSConnection):
    """Connects to nodes alone."""

    def connect(self) -> None:
        """Connect. Raises OSError, also if the certificate is not a node's."""
        super().connect()
        if role_in(self.sock.getpeercert()) in {None, OPERATOR}:
            self.close()
            raise OSError("the server's certificate is not a node's")
