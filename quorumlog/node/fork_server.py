"""Starts several nodes that share the cost of their imports, and reports their ends. For Linux.

`python -m quorumlog.node.fork_server MODULES ROOM` imports the modules, a list separated by commas.
Then it reads a line of JSON from standard input, which is a socket: a `Plan`, sent with the
descriptors that its nodes keep. It forks one process for each node. Each process is equivalent to
one started by itself: it has its own session, output and command line in `ps`, and its own end.
ROOM is arbitrary text: the command line of a node may be as long as this process's.
It writes one line of JSON to standard output for each process, in order: {"pid"}, and one for each
that has ended: {"pid", "status"}. The status is below 0 if a signal ended it. Once all processes of
a plan are forked, another plan may follow, such as for a node that starts again.

It ends with the last node, unless a third word OUTLIVES_NODES follows ROOM; or when its standard
input is closed, that is, with the process that started it. The nodes then continue.

Invariants: it has one thread when it forks, and has neither decided nor opened anything for a node.
"""

import fcntl
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypedDict

OUTLIVES_NODES: Final = "outlives-nodes"
_STDIN, _STDOUT, _STDERR = 0, 1, 2
_WOKEN_BYTES: Final = 4096
_READ_BYTES: Final = 65_536
_DESCRIPTORS_MAX: Final = 253  # Linux's limit for one message
_ARGUMENTS_START: Final = 45  # index in /proc/self/stat behind the command's name; the end is next


class NodePlan(TypedDict):
    """One process. `command`: its words in `ps`, as of a process started by itself."""

    command: list[str]
    module: str
    arguments: list[str]
    log: str  # its output is appended to this file
    descriptors: list[int]  # kept open, beside standard input and output


class Plan(TypedDict):
    """All processes. `descriptors`: of all nodes, in the order in which they are sent."""

    nodes: list[NodePlan]
    descriptors: list[int]


def main(modules: Sequence[str], *, outlives_nodes: bool = False) -> None:
    """Fork the nodes and wait for them; in a node's process, run the node."""
    failure = _import(modules)
    received = _receive()
    if received is None:
        return
    log = _opened(received[0]["nodes"][0]["log"])  # for errors before the forks
    os.dup2(log, _STDERR)
    os.close(log)
    if failure is not None:
        raise failure
    wakes, running = _Wakes(), list[int]()
    while received is not None:
        plan, sent = received
        forked = _fork(plan["nodes"], running)
        if forked is not None:
            wakes.close()
            _become(forked, sent)
            # Does not return: the node's module ends the process, by SystemExit or an error.
            runpy.run_module(forked["module"], run_name="__main__", alter_sys=True)
            return
        for descriptor in sent.values():
            os.close(descriptor)
        is_input = _tell_ends(running, wakes, outlives_nodes=outlives_nodes)
        received = _receive() if is_input else None


def _fork(nodes: Iterable[NodePlan], running: list[int]) -> NodePlan | None:
    """Fork the nodes while the starter lives; return None, and in a forked process its node."""
    for node in nodes:
        if _is_closed(_STDIN):
            return None
        pid = os.fork()
        if not pid:
            return node
        running.append(pid)
        _tell(pid=pid)
    return None


def _import(modules: Iterable[str]) -> Exception | None:
    """Import the modules; return the exception, which is raised once there is a log."""
    try:
        for module in modules:
            importlib.import_module(module)
    except Exception as failure:  # noqa: BLE001 - the caller raises it again
        return failure
    return None


def _receive() -> tuple[Plan, dict[int, int]] | None:
    """Return the plan, and its descriptors' numbers here; None: the starter sends no plan."""
    control = socket.socket(fileno=_STDIN)
    line, received = b"", list[int]()
    try:
        while not line.endswith(b"\n"):
            chunk, descriptors, _, _ = socket.recv_fds(control, _READ_BYTES, _DESCRIPTORS_MAX)
            if not chunk:
                return None
            line += chunk
            received += descriptors
    finally:
        control.detach()
    plan: Plan = json.loads(line)
    return plan, dict(zip(plan["descriptors"], _moved_above(plan, received), strict=True))


def _moved_above(plan: Plan, received: Iterable[int]) -> Iterator[int]:
    """Move descriptors above all numbers in the plan, so that those numbers are free."""
    first = max(plan["descriptors"], default=_STDERR) + 1
    for descriptor in received:
        yield fcntl.fcntl(descriptor, fcntl.F_DUPFD, first)
        os.close(descriptor)


def _is_closed(descriptor: int) -> bool:
    """Return whether the other end is closed: it writes nothing after the plan."""
    return bool(select.select([descriptor], [], [], 0)[0])


def _tell(**what: int) -> None:
    with suppress(BrokenPipeError):  # the starter has ended
        os.write(_STDOUT, json.dumps(what).encode() + b"\n")


def _opened(log: str) -> int:
    return os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)


def _become(node: NodePlan, sent: Mapping[int, int]) -> None:
    os.setsid()
    log = _opened(node["log"])
    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor, standard in ((null, _STDIN), (log, _STDOUT), (log, _STDERR)):
        os.dup2(descriptor, standard)
    os.close(null)
    os.close(log)
    for wanted in node["descriptors"]:
        os.dup2(sent[wanted], wanted, inheritable=False)
    for descriptor in sent.values():
        os.close(descriptor)
    _show_in_ps(node["command"])
    sys.argv = [node["module"], *node["arguments"]]


def _show_in_ps(command: Sequence[str]) -> None:
    """Overwrite the command line of this process, as far as there is room."""
    text = b"".join(os.fsencode(word) + b"\0" for word in command)
    try:
        fields = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
        start, end = map(int, fields[_ARGUMENTS_START : _ARGUMENTS_START + 2])
        with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(text[: end - start - 1].ljust(end - start, b"\0"))
    except (OSError, ValueError):
        return  # for people only: `ps` then shows the fork server's command


class _Wakes:
    """A pipe that the end of a process writes to."""

    def __init__(self) -> None:
        self.woken, self._wakes = os.pipe()
        for descriptor in (self.woken, self._wakes):
            os.set_blocking(descriptor, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler it does not wake
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)

    def close(self) -> None:
        """Close it, in a process that has become a node."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self.woken)
        os.close(self._wakes)


def _tell_ends(running: list[int], wakes: _Wakes, *, outlives_nodes: bool) -> bool:
    """Report the end of each process; return True for more input, False after the last end."""
    while True:
        running[:] = [pid for pid in running if not _has_ended(pid)]
        if not (running or outlives_nodes):
            return False
        readable, _, _ = select.select([_STDIN, wakes.woken], [], [])
        if wakes.woken in readable:
            os.read(wakes.woken, _WOKEN_BYTES)
        if _STDIN in readable:
            return True


def _has_ended(pid: int) -> bool:
    found, status = os.waitpid(pid, os.WNOHANG)
    if found:
        _tell(pid=pid, status=os.waitstatus_to_exitcode(status))
    return bool(found)


if __name__ == "__main__":
    main(
        [name for name in sys.argv[1].split(",") if name],
        outlives_nodes=sys.argv[3:] == [OUTLIVES_NODES],
    )
