"""Ports of this machine: which are free, and which process listens on the others."""

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
_BLOCK: Final = 50  # ports that one process has for its clusters; the first one shows that
_BLOCKS_MAX: Final = 20  # of one process; then those of stopped clusters are used again
_PROC: Final = Path("/proc")
_LISTEN: Final = "0A"  # the state in /proc/net/tcp


class _Blocks:
    """The ports that this process may choose from, in blocks that no other process has.

    A process that has a block holds its first port for as long as it lives. So no other process
    gives away a port whose node is not started yet, or is down for a while.
    """

    def __init__(self) -> None:
        self._guards: Final[list[int]] = []  # descriptors of the sockets at the first ports
        self._fresh: Final[list[int]] = []
        self._given: Final[list[int]] = []

    def candidates(self, host: str) -> Iterator[int]:
        """Yield ports, those first that were not given before."""
        given_before = random.SystemRandom().sample(self._given, len(self._given))
        while self._fresh or (len(self._guards) < _BLOCKS_MAX and self._take_block(host)):
            port = self._fresh.pop()
            self._given.append(port)
            yield port
        yield from given_before

    def _take_block(self, host: str) -> bool:
        """Take a block that no process has; return whether there was one."""
        starts = range(FREE_PORTS.start, FREE_PORTS.stop, _BLOCK)
        for start in random.SystemRandom().sample(starts, len(starts)):
            guard = _bound_alone(host, start)
            if guard is not None:
                self._guards.append(guard.detach())
                self._fresh.extend(range(start + 1, start + _BLOCK))
                return True
        return False

    def let_go(self) -> None:
        """Close the descriptors, as in a forked child: the blocks are its parent's."""
        for guard in self._guards:
            os.close(guard)
        for numbers in (self._guards, self._fresh, self._given):
            numbers.clear()


_blocks: Final = _Blocks()
_choosing: Final = threading.Lock()
os.register_at_fork(after_in_child=_blocks.let_go)


def family_of(host: str) -> socket.AddressFamily:
    """Return the family of sockets that bind a host: IPv6 for an address of it, else IPv4."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _bound_alone(host: str, port: int) -> socket.socket | None:
    """Return a socket that has the port, or None if any other has it, or a part of it yet."""
    probe = socket.socket(family_of(host))  # no SO_REUSEADDR: it takes no port that closes yet
    try:
        probe.bind((host, port))
    except OSError:
        probe.close()
        return None
    return probe


def free_ports(host: str, count: int) -> list[int]:
    """Choose ports of `host` that have no listener now. Raises ClusterError.

    The range is not the one that the kernel gives to outgoing connections: the kernel could hand
    out one of ours before the node has bound it. Other processes that choose by this function
    choose other ports. If a process of another kind takes one meanwhile, the node says so.
    """
    ports: list[int] = []
    with _choosing:
        for port in _blocks.candidates(host) if count <= AT_ONCE_MAX else ():
            if (probe := _bound_alone(host, port)) is not None:
                probe.close()
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
    with socket.socket(family_of(host)) as probe:
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
