"""The routes of a run: the address through which each party reaches each listener of a node."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from quorumlog.addresses import address_text, host_and_port
from quorumlog.chaos.faults.links import CLIENTS, Link, Plane
from quorumlog.chaos.network.links import Route
from quorumlog.cluster.layout import NodeSpec
from quorumlog.cluster.node_listeners import local_address
from quorumlog.cluster.ports import free_ports
from quorumlog.cluster.secured_properties import advertised_listeners

_LISTENERS: Final[tuple[Plane, ...]] = ("kafka", "control")


def plan_routes(nodes: Sequence[NodeSpec]) -> list[Route]:
    """Give each party an address of its own for each listener of each other node."""
    wanted = _dialled(nodes)
    host, _ = host_and_port(nodes[0].control)
    ports = free_ports(host, len(wanted))
    return [
        Route(link=link, listen=address_text(host, port), target=target)
        for (link, target), port in zip(wanted, ports, strict=True)
    ]


def are_used(nodes: Sequence[NodeSpec], links: Iterable[Link]) -> bool:
    """Return whether nodes or clients send on any of the links.

    Clients and a node that is no broker do not connect.
    """
    used: set[Link] = set()
    for link, _ in _dialled(nodes):
        used |= {link, Link(link.destination, link.source, link.plane)}
    return any(
        Link(link.source, link.destination, plane) in used
        for link in links
        for plane in (_LISTENERS if link.plane == "all" else (link.plane,))
    )


def _dialled(nodes: Sequence[NodeSpec]) -> list[tuple[Link, str]]:
    """Return each link with the address of the listener that its source dials."""
    wanted: list[tuple[Link, str]] = []
    for node in nodes:
        addresses: dict[Plane, str] = {"control": node.control}
        if node.is_broker:
            addresses["kafka"] = local_address(node.peer_address)
        for other in nodes:
            if other.id != node.id:
                wanted += [
                    (Link(str(other.id), str(node.id), plane), address)
                    for plane, address in addresses.items()
                ]
        if node.is_broker:
            wanted.append((Link(CLIENTS, str(node.id), "kafka"), local_address(node.kafka)))
    return wanted


def detours(routes: Iterable[Route], nodes: Sequence[NodeSpec]) -> Mapping[int, Mapping[str, str]]:
    """Return the properties of each node that lead its connections, and its clients', there.

    The routes lead clients to the first Kafka listener, and brokers to their own; clients of
    another listener connect directly.
    """
    by_id = {node.id: node for node in nodes}
    peers: dict[int, dict[str, list[str]]] = {}
    properties: dict[int, dict[str, str]] = {}
    for route in routes:
        source, destination = route.link.source, int(route.link.destination)
        if source == CLIENTS:
            node = replace(by_id[destination], advertised=route.listen)
            shown = ",".join(advertised_listeners(node))
            properties.setdefault(destination, {})["advertised.listeners"] = shown
        else:
            name = f"peer.{route.link.plane}.addresses"
            entries = peers.setdefault(int(source), {}).setdefault(name, [])
            entries.append(f"{destination}@{route.listen}")
    for node_id, named in peers.items():
        for name, entries in named.items():
            properties.setdefault(node_id, {})[name] = ",".join(entries)
    return properties
