"""Ports of this machine: choice of free ports, and the process that listens on a port."""

import errno
import os
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from quorumlog.cluster.errors import ClusterError

FREE_PORTS: Final = range(15_000, 30_000)
AT_ONCE_MAX: Final = 500
_BLOCK: Final = 50  # ports reserved for one process by a socket that is bound to the first
_BLOCKS_MAX: Final = 20  # per process; then ports of stopped clusters are reused
_PROC: Final = Path("/proc")
_LISTEN: Final = "0A"  # the state in /proc/net/tcp


class _Blocks:
    """The ports that this process may choose from, in blocks reserved for it.

    A process binds the first port of its blocks until it ends. So other processes do not choose a
    port whose node is not started yet, or is down for a while.
    """

    def __init__(self) -> None:
        self._guards: Final[list[int]] = []  # descriptors of the sockets at the first ports
        self._fresh: Final[list[int]] = []
        self._given: Final[list[int]] = []

    def candidates(self, host: str) -> Iterator[int]:
        """Yield ports, unused ports first, then ports that were chosen before."""
        given_before = random.SystemRandom().sample(self._given, len(self._given))
        while self._fresh or (len(self._guards) < _BLOCKS_MAX and self._take_block(host)):
            port = self._fresh.pop()
            self._given.append(port)
            yield port
        yield from given_before

    def _take_block(self, host: str) -> bool:
        """Reserve a free block; return whether there was one."""
        starts = range(FREE_PORTS.start, FREE_PORTS.stop, _BLOCK)
        for start in random.SystemRandom().sample(starts, len(starts)):
            guard = _bound_alone(host, start)
            if guard is not None:
                self._guards.append(guard.detach())
                self._fresh.extend(range(start + 1, start + _BLOCK))
                return True
        return False

    def let_go(self) -> None:
        """Close the descriptors in a forked child: the blocks belong to its parent."""
        for guard in self._guards:
            os.close(guard)
        for numbers in (self._guards, self._fresh, self._given):
            numbers.clear()


_blocks: Final = _Blocks()
_choosing: Final = threading.Lock()
os.register_at_fork(after_in_child=_blocks.let_go)


def family_of(host: str) -> socket.AddressFamily:
    """Return the address family of a host: IPv6 for an IPv6 address, else IPv4."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _bound_alone(host: str, port: int) -> socket.socket | None:
    """Return a socket that is bound to the port, or None if another socket still uses it."""
    probe = socket.socket(family_of(host))  # no SO_REUSEADDR: a closing connection counts as use
    try:
        probe.bind((host, port))
    except OSError:
        probe.close()
        return None
    return probe


def free_ports(host: str, count: int) -> list[int]:
    """Choose ports of `host` that have no listener now. Raises ClusterError.

    The range excludes the kernel's ports of outgoing connections: the kernel could use a chosen
    port before the node binds it. Other processes that call this function choose other ports. If
    another program binds a chosen port first, the node's error names it.
    """
    _require_local(host)
    ports: list[int] = []
    with _choosing:
        for port in _blocks.candidates(host) if count <= AT_ONCE_MAX else ():
            if (probe := _bound_alone(host, port)) is not None:
                probe.close()
                ports.append(port)
            if len(ports) == count:
                return ports
    raise ClusterError(f"{host} has no {count} free ports; give one with --port")


def _require_local(host: str) -> None:
    """Raise ClusterError unless a socket of this machine can be bound to the host."""
    with socket.socket(family_of(host)) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            raise ClusterError(
                f"no listener of this machine can be bound to {host}: {error.strerror or error}"
            ) from error


class Obstacle(NamedTuple):
    """Why a node cannot listen at an address; `pid`: the listening process, if visible."""

    reason: str
    pid: int | None = None


def obstacle(host: str, port: int) -> Obstacle | None:
    """Return why a node cannot listen at `host:port`, or None if it can."""
    with socket.socket(family_of(host)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return Obstacle(str(error.strerror or error))
            process = listener(port)
            if process is None:
                return Obstacle(f"in use{_by_a_connection(port)}")
            pid, command = process
            return Obstacle(f"in use by process {pid} ({command})", pid)
    return None


def connection_ports(file: Path = _PROC / "sys/net/ipv4/ip_local_port_range") -> range:
    """Return the ports that the system gives to outgoing connections; empty: they are unknown."""
    try:
        first, last = map(int, file.read_text().split())
    except (OSError, ValueError):  # not Linux
        return range(0)
    return range(first, last + 1)


def _by_a_connection(port: int) -> str:
    theirs = connection_ports()
    if port not in theirs:
        return ""
    return f", as by a connection, which gets a port from {theirs[0]} to {theirs[-1]}"


def listener(port: int, *, proc: Path = _PROC) -> tuple[int, str] | None:
    """Return (id, command) of the process that listens on `port`, or None if it is not visible.

    On Linux, processes of the same user are visible.
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
