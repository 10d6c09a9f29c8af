"""The addresses of a cluster's Kafka listeners: bound, and advertised to clients.

The first listener, PLAINTEXT, serves the other brokers and the clients of this machine; `--host`
and `--advertised` describe it. Each `--listener` adds a listener with addresses of its own, for
clients to which another address leads: in a container, on another machine. The nodes' ports count
up. Raises InvalidArgument, with the option.
"""

import re
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from quorumlog.addresses import DEFAULT_LISTENER, EVERYWHERE, address_text, host_and_port
from quorumlog.cluster.errors import InvalidArgument
from quorumlog.cluster.ports import free_ports

LAST_PORT: Final = 65_535
_FORM: Final = "write it as NAME://BIND[:PORT],advertised=HOST[:PORT]"
_OPTION: Final = re.compile(
    r"(?P<name>[A-Za-z0-9_-]+)://(?P<bind>[^,=]+)(,advertised=(?P<advertised>[^,=]+))?"
)
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - of all interfaces


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeListener:
    """A listener of one node, beside the first: `host:port` to bind, and to advertise."""

    name: str
    bind: str
    advertised: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerOption:
    """An option `--listener`, read. A port of None: bound to a free one; advertised as bound."""

    name: str
    host: str
    port: int | None
    advertised_host: str
    advertised_port: int | None


def local_host(host: str) -> str:
    """Return the host at which this machine reaches a listener bound to `host`."""
    return _LOOPBACK.get(host, host)


def local_address(address: str) -> str:
    """Return the address at which this machine reaches a listener bound to `address`."""
    host, port = host_and_port(address)
    return address_text(local_host(host), port)


def control_host(host: str) -> str:
    """Return the host of the control listeners: on loopback, as all nodes are on this machine."""
    if host.startswith("127.") or host == "localhost":
        return host
    return "::1" if ":" in host else "127.0.0.1"


def read_host(option: str, text: str) -> tuple[str, int | None]:
    """Read HOST or HOST:PORT; a host of IPv6 with a port has brackets."""
    has_port = text.count(":") == 1 or "]:" in text
    host, port_text = text.rpartition(":")[::2] if has_port else (text, "")
    host = host.strip("[]")
    if has_port and not (port_text.isascii() and port_text.isdecimal()):
        raise InvalidArgument(f"{option} {text}: write it as HOST or HOST:PORT")
    port = int(port_text[:6]) if has_port else None
    if not host or any(map(str.isspace, host)) or "/" in host or not _may_be_address(host):
        raise InvalidArgument(f"{option} {text}: write it as HOST or HOST:PORT")
    if port is not None and not 0 < port <= LAST_PORT:
        raise InvalidArgument(f"{option} {text}: choose a port from 1 to {LAST_PORT}")
    return host, port


def _may_be_address(host: str) -> bool:
    """Return False for colons outside of an IPv6 address."""
    try:
        return ":" not in host or bool(socket.inet_pton(socket.AF_INET6, host.partition("%")[0]))
    except OSError:
        return False


def read_option(text: str) -> ListenerOption:
    """Read NAME://BIND[:PORT],advertised=HOST[:PORT]."""
    found = _OPTION.fullmatch(text)
    if found is None:
        raise InvalidArgument(f"--listener {text}: {_FORM}")
    name = found["name"].upper()
    if name == DEFAULT_LISTENER:
        raise InvalidArgument(
            f"--listener {text}: {DEFAULT_LISTENER} is the first listener, which --host, --port "
            "and --advertised describe; choose another name"
        )
    host, port = read_host(f"--listener {text}:", found["bind"])
    if found["advertised"] is None and host in EVERYWHERE:
        raise InvalidArgument(
            f"--listener {text}: clients cannot connect to all interfaces; "
            f"add ,advertised=HOST, the address at which they reach this machine"
        )
    shown_host, shown_port = host, None
    if found["advertised"] is not None:
        shown_host, shown_port = read_host(f"--listener {text}:", found["advertised"])
    _require_routable(f"--listener {text}", shown_host)
    return ListenerOption(
        name=name, host=host, port=port, advertised_host=shown_host, advertised_port=shown_port
    )


def _require_routable(option: str, host: str) -> None:
    if host in EVERYWHERE:
        raise InvalidArgument(f"{option}: clients cannot connect to all interfaces; name one host")


def advertised_addresses(text: str | None, bound: Sequence[str]) -> list[str | None]:
    """Return the advertised address of each node's first listener; None: the bound one.

    `text`: HOST, with each node's own port, or HOST:PORT with the port of the first node.
    """
    if text is None:
        return [None] * len(bound)
    host, first = read_host("--advertised", text)
    _require_routable(f"--advertised {text}", host)
    own = [host_and_port(address)[1] for address in bound]
    return [*_addresses(f"--advertised {text}", host, first, own)]


def _addresses(option: str, host: str, first: int | None, own: Sequence[int]) -> list[str]:
    """Return an address for each node: ports count up from `first`, or are the nodes' `own`."""
    if first is not None and first + len(own) - 1 > LAST_PORT:
        raise InvalidArgument(f"{option}: {len(own)} nodes have no ports above {first}")
    ports = own if first is None else range(first, first + len(own))
    return [address_text(host, port) for port in ports]


def plan_listeners(texts: Sequence[str], count: int) -> list[tuple[NodeListener, ...]]:
    """Return the listeners of each of `count` nodes, beside the first, as the options have them."""
    options = [read_option(text) for text in texts]
    names = [option.name for option in options]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(f"--listener {name}: each listener must have a different name")
    planned = [_plan(option, count) for option in options]
    return [tuple(of_node) for of_node in zip(*planned, strict=True)] if planned else [()] * count


def _plan(option: ListenerOption, count: int) -> list[NodeListener]:
    text = f"--listener {option.name}"
    free = sorted(free_ports(option.host, count)) if option.port is None else []
    bound = _addresses(text, option.host, option.port, free or [0] * count)
    own = [host_and_port(address)[1] for address in bound]
    advertised = _addresses(text, option.advertised_host, option.advertised_port, own)
    return [
        NodeListener(name=option.name, bind=bind, advertised=shown)
        for bind, shown in zip(bound, advertised, strict=True)
    ]


def properties(
    kafka: str, advertised: str | None, others: Sequence[NodeListener], peers: Mapping[int, str]
) -> Iterator[tuple[str, str]]:
    """Yield the properties of a node's Kafka listeners.

    `kafka`, `advertised`: of its first listener; `peers`: that of each other broker, as bound.
    """
    first = f"{DEFAULT_LISTENER}://"
    yield "listeners", ",".join([first + kafka, *(f"{one.name}://{one.bind}" for one in others)])
    if others or advertised:
        shown = [f"{one.name}://{one.advertised}" for one in others]
        yield "advertised.listeners", ",".join([first + (advertised or kafka), *shown])
    if others:
        names = [DEFAULT_LISTENER, *(one.name for one in others)]
        yield "listener.security.protocol.map", ",".join(f"{name}:PLAINTEXT" for name in names)
        yield "inter.broker.listener.name", DEFAULT_LISTENER
    if advertised and peers:  # that address need not lead here from this machine
        addresses = [f"{node_id}@{local_address(bound)}" for node_id, bound in peers.items()]
        yield "peer.kafka.addresses", ",".join(addresses)


def require_other_names(others: Sequence[NodeListener], taken: Collection[str]) -> None:
    """Refuse an option `--listener` with the name of a listener that the cluster has anyway."""
    for one in others:
        if one.name in taken:
            raise InvalidArgument(
                f"--listener {one.name}://{one.bind}: the cluster has a listener of this name; "
                "choose another name"
            )


def require_different_ports(addresses: Sequence[str]) -> None:
    """Refuse a port that two listeners of the cluster would bind."""
    ports = [host_and_port(address)[1] for address in addresses]
    for port in ports:
        if ports.count(port) > 1:
            raise InvalidArgument(
                f"--listener: port {port} would be bound twice; the ports of the nodes count up "
                "from the given one, so leave room, or leave the port out"
            )


def why_not_kept(recorded: Sequence[NodeListener], texts: Sequence[str]) -> str | None:
    """Return the difference of the options to the recorded listeners of the first node."""
    given = {option.name: option for option in map(read_option, texts)}
    here = {one.name: one for one in recorded}
    for name in given.keys() | here.keys():
        if name not in here or name not in given:
            state = "no" if name not in here else "a"
            return f"it has {state} listener {name}"
        option, one = given[name], here[name]
        host, port = host_and_port(one.bind)
        shown_host, shown_port = host_and_port(one.advertised)
        if (
            (option.host, option.port or port) != (host, port)
            or option.advertised_host != shown_host
            or (option.advertised_port or option.port or shown_port) != shown_port
        ):
            return f"it has {name}://{one.bind},advertised={one.advertised}"
    return None
