"""The options of `up` for the addresses of the Kafka listeners."""

import socket
from typing import Annotated

import typer

from quorumlog.addresses import host_and_port
from quorumlog.cli.output import say
from quorumlog.cluster import LocalCluster

Host = Annotated[
    str | None,
    typer.Option(
        metavar="HOST",
        help="Where the Kafka listeners are bound: 0.0.0.0 or :: are all interfaces, and need "
        "--advertised. The control listeners stay on loopback. Default: 127.0.0.1.",
    ),
]
Advertised = Annotated[
    str | None,
    typer.Option(
        metavar="HOST[:PORT]",
        help="The address that clients receive: with the port of each node, or counting up from "
        "PORT. Default: where the listeners are bound.",
    ),
]
Listeners = Annotated[
    list[str] | None,
    typer.Option(
        "--listener",
        metavar="NAME://BIND[:PORT],advertised=HOST[:PORT]",
        help="A further Kafka listener, for clients that reach this machine by another address, "
        "such as containers: DOCKER://0.0.0.0,advertised=host.docker.internal. Repeatable.",
    ),
]


def warn_of_unknown_hosts(cluster: LocalCluster) -> None:
    """Warn if an address of the first listener resolves to nothing here: commands here use it."""
    shown = {host_and_port(node.advertised)[0] for node in cluster.nodes if node.advertised}
    for host in sorted(shown):
        try:
            socket.getaddrinfo(host, None)
        except OSError:
            say(
                f"quorumlog: {host} does not resolve on this machine, so clients and commands here "
                f"cannot use it; --listener NAME://0.0.0.0,advertised={host} serves both"
            )
