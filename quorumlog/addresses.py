"""The text of an address: `host:port`, and `[host]:port` for an IPv6 address.

Without the brackets, most clients take the end of such a host for its port (RFC 3986, 3.2.2).
"""

from typing import Final

DEFAULT_LISTENER: Final = "PLAINTEXT"
"""The name of Kafka's default listener."""
EVERYWHERE: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - refused as an advertised host
"""The hosts that mean all interfaces: a listener binds them, no client connects to them."""


def address_text(host: str, port: int | str) -> str:
    """Return the text of an address. The host may have its brackets already."""
    return f"[{host.strip('[]')}]:{port}" if ":" in host else f"{host}:{port}"


def host_and_port(text: str) -> tuple[str, int]:
    """Return the host, without brackets, and the port. Raises ValueError if there is no port."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)
