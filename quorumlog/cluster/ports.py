"""Ports of this machine: which are free, and which process listens on the others."""

import errno
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from quorumlog.cluster.errors import ClusterError

FREE_PORTS: Final = range(15_000, 30_000)
FREE_PORT_ATTEMPTS: Final = 500
_PROC: Final = Path("/proc")
_LISTEN: Final = "0A"  # the state in /proc/net/tcp


def free_ports(host: str, count: int) -> list[int]:
    """Choose ports of `host` at random that have no listener now. Raises ClusterError.

    The range is not the one that the kernel gives to outgoing connections: the kernel could hand
    out one of ours before the node has bound it. If another process takes one meanwhile, the node
    says so.
    """
    ports: list[int] = []
    for port in random.SystemRandom().sample(FREE_PORTS, FREE_PORT_ATTEMPTS):
        with socket.socket() as probe:  # without SO_REUSEADDR: it takes no port that closes yet
            try:
                probe.bind((host, port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise ClusterError(f"{host} has no {count} free ports; give one with --port")


class Obstacle(NamedTuple):
    """Why a node cannot listen at an address; `pid`: the process that does, if it can be seen."""

    reason: str
    pid: int | None = None


def obstacle(host: str, port: int) -> Obstacle | None:
    """Return why a node cannot listen at `host:port`, or None if it can."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return Obstacle(str(error.strerror or error))
            process = listener(port)
            if process is None:
                return Obstacle("in use")
            pid, command = process
            return Obstacle(f"in use by process {pid} ({command})", pid)
    return None


def listener(port: int, *, proc: Path = _PROC) -> tuple[int, str] | None:
    """Return (id, command) of the process that listens on `port`, or None if it cannot be seen.

    It can be seen on Linux, for processes of the same user.
    """
    inodes = {inode for table in ("tcp", "tcp6") for inode in _inodes(proc / "net" / table, port)}
    if not inodes:
        return None
    sockets = {f"socket:[{inode}]" for inode in inodes}
    for process in proc.iterdir():
        if process.name.isdigit() and _holds(process, sockets):
            try:
                return int(process.name), (process / "comm").read_text().strip()
            except OSError:  # it has ended since
                return None
    return None


def _inodes(table: Path, port: int) -> Iterator[str]:
    try:
        lines = table.read_text().splitlines()[1:]
    except OSError:  # not Linux
        return
    for fields in (line.split() for line in lines):
        if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
            yield fields[9]


def _holds(process: Path, sockets: set[str]) -> bool:
    try:
        descriptors = list((process / "fd").iterdir())
    except OSError:  # of another user, or it has ended
        return False
    for descriptor in descriptors:
        try:
            if str(descriptor.readlink()) in sockets:
                return True
        except OSError:  # closed since
            continue
    return False
