"""The control server of one cluster as a process: `python -m quorumlog.chaos.control DIRECTORY`.

It starts before the nodes, because their connections go through its forwarders, and ends after
them: at its end it heals all faults on links, stops all nodes, and only then the forwarders. Nodes
that it has started again end with it, however it ends.
"""

import argparse
import asyncio
import json
import os
import secrets
import signal
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from quorumlog.addresses import address_text
from quorumlog.chaos.back_ends.back_end import BackEndFailed, NodeUnavailable
from quorumlog.chaos.back_ends.local_processes import LocalProcesses
from quorumlog.chaos.back_ends.run_resources import launch_with, shim_of
from quorumlog.chaos.control.lab import Lab, opened
from quorumlog.chaos.control.server import ControlServer
from quorumlog.chaos.network.link_proxy import LinkProxy
from quorumlog.chaos.network.links import LinksFailed
from quorumlog.chaos.network.routes import detours, plan_routes
from quorumlog.chaos.shim.shim import ShimFailed
from quorumlog.cluster import ClusterError, LocalCluster, forked
from quorumlog.cluster.control_server import HISTORIES_DIRECTORY, Connection, forget, save

_TOKEN_BYTES: Final = 32


def main(arguments: list[str]) -> int:
    """Serve until SIGTERM, or until the owner ends; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m quorumlog.chaos.control")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--node-module", default="quorumlog.node")
    parser.add_argument("--breakable", action="store_true", help="break disks and clocks, too")
    parser.add_argument("--parent-fd", type=int, help="end when the other end of this pipe closes")
    parser.add_argument("--ready-fd", type=int, required=True, help="write a line when ready")
    given = parser.parse_args(arguments)
    try:
        _run(given)
    except (
        BackEndFailed, ClusterError, LinksFailed, NodeUnavailable, ShimFailed, OSError,
    ) as error:  # fmt: skip
        sys.stderr.write(f"{_text(error, given)}\n")
        return 1
    return 0


def _text(error: Exception, given: argparse.Namespace) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename is None:
        where = f"{address_text(given.host, given.port)} (control server)"
        return f"{where}: {error.strerror}; choose another --control"
    return str(error)


def _run(given: argparse.Namespace) -> None:
    forked.keep()  # from the first start on, a node is back without the time of its imports
    with ExitStack() as stack:
        cluster = LocalCluster.open(given.directory, node_module=given.node_module)
        routes = plan_routes(cluster.nodes)
        links = stack.enter_context(LinkProxy(routes))
        ways = detours(routes, cluster.nodes)
        cluster.take_detours(ways)
        shim = stack.enter_context(shim_of(cluster)) if given.breakable else None
        environments = {} if shim is None else launch_with(cluster, shim)
        stack.callback(forget, given.directory)
        stack.callback(cluster.stop_nodes)
        back_end = LocalProcesses(cluster, links, shim)
        lab = stack.enter_context(opened(back_end, given.directory / HISTORIES_DIRECTORY))
        asyncio.run(_serve(lab, given, ways, environments))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is ending: the nodes come first


async def _serve(
    lab: Lab,
    given: argparse.Namespace,
    ways: Mapping[int, Mapping[str, str]],
    environments: Mapping[int, Mapping[str, str]],
) -> None:
    loop, ending = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    if given.parent_fd is not None:
        # Only the owner holds the write end, and never writes: the pipe is readable at its end.
        loop.add_reader(given.parent_fd, ending.set)
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    server = ControlServer(lab, token=token)
    try:
        url = await server.start(host=given.host, port=given.port)
        connection = Connection.of_this_process(
            url=url, token=token, detours=ways, environments=environments
        )
        save(given.directory, connection)
        os.write(given.ready_fd, json.dumps({"url": url}).encode() + b"\n")
        os.close(given.ready_fd)
        await ending.wait()
    finally:
        await server.stop()


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(status)  # all is closed; the thread of a wait may last for minutes
