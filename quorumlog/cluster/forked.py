"""Nodes forked by `quorumlog.node.fork_server`: children of that process, not of this one.

docs/decisions/0045-fork-server.md
"""

import atexit
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from typing import Final

from quorumlog.cluster import process_identity
from quorumlog.cluster.processes import NodeProcess, Program
from quorumlog.cluster.time_limit import LOOK_EVERY_S, TimeLimit
from quorumlog.invariants import some
from quorumlog.node import openssl
from quorumlog.node.fork_server import OUTLIVES_NODES, NodePlan, Plan

_READ_BYTES: Final = 4096
_TOGETHER_MIN: Final = 2
_ROOM: Final = " " * 4000  # for the command line of a node in `ps`
_prepared: "Final[list[ForkServer]]" = []
_kept: "Final[list[_Kept]]" = []


def spawn_together(nodes: Sequence[NodeProcess], limit: TimeLimit) -> None:
    """Start the processes of several nodes; `wait_ready` of each must be called.

    On Linux, two or more plain nodes share their imports, and single ones those of a fork server
    that is kept. Raises NodeFailed if one cannot be started; the others may run then.
    """
    plain = [node for node in nodes if node.is_plain] if sys.platform == "linux" else []
    if len(plain) < _TOGETHER_MIN and not any(_kept_for(node) for node in plain):
        plain = []
    for node in nodes:
        if node not in plain:
            node.spawn()
    if plain:
        _fork(plain, limit)
    _drop_prepared()  # it was not needed


def spawn_again(
    node: NodeProcess, siblings: Iterable[NodeProcess], limit: TimeLimit, *, report_ready: bool
) -> None:
    """Start the process of one node; with `report_ready`, `wait_ready` must be called.

    The fork server of a sibling that runs, or that is kept, forks it: the imports are made.
    Otherwise it is started alone, as a node with a launch of its own.
    """
    servers = [one.child.server for one in siblings if isinstance(one.child, ForkedChild)]
    fitting = [server for server in servers if node.is_plain and server.may_fork_again(node)]
    if node.is_plain and not fitting:
        fitting = [kept.server(with_tls=node.may_use_tls) for kept in _kept_for(node)]
    if not fitting or not _is_forked_by(fitting[0], node, limit, report_ready=report_ready):
        node.spawn(report_ready=report_ready)


def _is_forked_by(
    server: "ForkServer", node: NodeProcess, limit: TimeLimit, *, report_ready: bool
) -> bool:
    """Let a server that runs fork one more node; return False if it has ended instead."""
    with server.one_at_a_time, node.starting(report_ready=report_ready) as started:
        before = len(server.children)
        plan = Plan(nodes=[_plan_of(node, *started)], descriptors=started[1])
        server.fork(plan)
        try:
            server.wait_forked(limit)
        finally:
            for child in server.children[before:]:
                node.adopt(child)
        if len(server.children) == before and limit.is_over():
            raise node.late(limit)
        is_forked = len(server.children) > before
    if not is_forked:
        node.forget_start()
    return is_forked


def _plan_of(node: NodeProcess, arguments: list[str], descriptors: list[int]) -> NodePlan:
    module, *words = node.program.module.split()
    return NodePlan(
        command=[*node.program.command, *arguments],
        module=module,
        arguments=[*words, *arguments],
        log=str(node.log),
        descriptors=descriptors,
    )


def preloaded_for(program: Program, *, with_tls: bool = False) -> list[str]:
    """Return the modules to import before the forks; another program may have to patch some."""
    first = [openssl.MODULE] if with_tls else []
    return [*first, "quorumlog.node.preloaded"] if program.is_ours else []


def prepare() -> None:
    """Start a fork server early: it imports the modules of nodes while this process goes on.

    The server ends if the next start does not need it, or with this process.
    """
    if sys.platform == "linux" and not _prepared:
        program = Program()
        _prepared.append(ForkServer(program.interpreter, preloaded_for(program)))
        atexit.register(_drop_prepared)


def _drop_prepared() -> None:
    while _prepared:
        _prepared.pop().drop()


def keep() -> None:
    """Keep a fork server from the first start on, in the present environment, until this ends.

    For a process that starts clusters one after the other, such as a run of tests.
    """
    if sys.platform == "linux" and not _kept:
        _kept.append(_Kept())


def _kept_for(node: NodeProcess) -> "list[_Kept]":
    if not node.program.is_ours:
        return []
    return [kept for kept in _kept if kept.environment == _environment()]


class _Kept:
    """Fork servers that outlive their nodes: for nodes with TLS, and for nodes without.

    If one ends, another one takes its place.
    """

    def __init__(self) -> None:
        self.environment: Final = _environment()
        self._servers: Final[dict[bool, ForkServer]] = {}
        self._lock: Final = threading.Lock()

    def server(self, *, with_tls: bool) -> "ForkServer":
        """Return the server; start it if it does not run."""
        with self._lock:
            found = self._servers.get(with_tls)
            if found is None or not found.is_usable():
                program = Program()
                found = ForkServer(
                    program.interpreter,
                    preloaded_for(program, with_tls=with_tls),
                    outlives_nodes=True,
                    has_tls=with_tls,
                )
                self._servers[with_tls] = found
                atexit.register(found.drop)
            return found


def _fork_server(nodes: Sequence[NodeProcess]) -> "ForkServer":
    program = nodes[0].program
    with_tls = any(node.may_use_tls for node in nodes)
    if program.is_ours and _prepared and not with_tls:
        return _prepared.pop()
    for kept in _kept_for(nodes[0]):
        return kept.server(with_tls=with_tls)
    modules = preloaded_for(program, with_tls=with_tls)
    return ForkServer(program.interpreter, modules, has_tls=with_tls)


def _fork(nodes: Sequence[NodeProcess], limit: TimeLimit) -> None:
    with ExitStack() as stack:
        plan = Plan(nodes=[], descriptors=[])
        for node in nodes:
            arguments, descriptors = stack.enter_context(node.starting())
            plan["nodes"].append(_plan_of(node, arguments, descriptors))
            plan["descriptors"] += [one for one in descriptors if one not in plan["descriptors"]]
        server = _fork_server(nodes)
        stack.enter_context(server.one_at_a_time)
        before = len(server.children)
        server.fork(plan)
        try:
            server.wait_forked(limit)
        finally:
            for node, child in zip(nodes, server.children[before:], strict=False):
                node.adopt(child)
        for node in nodes[len(server.children) - before :]:
            raise node.late(limit) if limit.is_over() else node.failed(server.process)


class ForkServer:
    """The process that forks nodes, and reports their ends. Thread-safe.

    It ends with the last of its nodes unless it `outlives_nodes`, with this process, or when this
    object is deleted.
    `one_at_a_time` is held from `fork` until `wait_forked` returns, by all that fork again.
    """

    def __init__(
        self,
        interpreter: Sequence[str],
        preloaded: Sequence[str],
        *,
        outlives_nodes: bool = False,
        has_tls: bool = False,
    ) -> None:
        ours, its_end = socket.socketpair()
        self._its_input: Final = ours
        words = [OUTLIVES_NODES] if outlives_nodes else []
        with its_end:
            self.process: Final = subprocess.Popen(  # noqa: S603 - our own module
                [*interpreter, "quorumlog.node.fork_server", ",".join(preloaded), _ROOM, *words],
                stdin=its_end.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # the log of the first node, once there is a plan
                bufsize=0,
                start_new_session=True,  # this process handles a Ctrl-C at the terminal
            )
        self._its_output: Final = some(self.process.stdout, "it is a pipe")
        self._outlives_nodes: Final = outlives_nodes
        self._has_tls: Final = has_tls
        self.one_at_a_time: Final = threading.Lock()
        self._environment: Final = _environment()
        self._count = 0
        self._running = 0
        self.children: Final[list[ForkedChild]] = []  # in the order of the plan
        self._statuses: Final[dict[int, int]] = {}  # by process id
        self._lock: Final = threading.Lock()
        self._unread = b""
        self._has_ended = False
        self._kill: Final = weakref.finalize(self, _kill_server, os.getpid(), ours, self.process)
        self._kill.atexit = False  # the clusters that are ended at exit may still need its reports

    def drop(self) -> None:
        """Kill the server; nodes that it has forked continue."""
        with self._lock:
            self._kill()
            self._has_ended = True

    def fork(self, plan: Plan) -> None:
        """Send the plan of the nodes to fork; `wait_forked` must be called."""
        line = json.dumps(plan).encode() + b"\n"
        with self._lock:
            if self._has_ended:
                return
            self._count += len(plan["nodes"])
            with suppress(BrokenPipeError, ConnectionResetError):  # it has ended: see `wait_forked`
                sent = socket.send_fds(self._its_input, [line], plan["descriptors"])
                self._its_input.sendall(line[sent:])

    def is_usable(self) -> bool:
        """Return whether it runs, and a node started alone would inherit nothing else from here.

        In a forked child of its owner it does not run: the two would read each other's reports.
        """
        is_running = not self._has_ended and self.process.poll() is None
        return is_running and self._environment == _environment()

    def may_fork_again(self, node: NodeProcess) -> bool:
        """Return whether it can fork this node: with TLS, only if it has imported `ssl` first."""
        return self.is_usable() and (self._has_tls or not node.may_use_tls)

    def wait_forked(self, limit: TimeLimit) -> None:
        """Wait until the server has forked all nodes, or has ended, or the time is over.

        After the wait it forks no more nodes: `children` is complete.
        """
        try:
            while self._is_forking and not limit.is_over():
                self._look(LOOK_EVERY_S)
        finally:
            if self._is_forking:
                self._its_input.close()
            while self._is_forking:
                self._look(LOOK_EVERY_S)

    @property
    def _is_forking(self) -> bool:
        return len(self.children) < self._count and not self._has_ended

    def status_of(self, child: "ForkedChild", wait_s: float) -> int | None:
        """Return the exit status of a process; None: it still runs after at most `wait_s`."""
        if child.pid not in self._statuses:
            self._look(wait_s)
        return self._statuses.get(child.pid)

    def _look(self, wait_s: float) -> None:
        with self._lock:
            if self._has_ended:
                self._look_without_it(wait_s)
                return
            if not select.select([self._its_output], [], [], wait_s)[0]:
                return
            chunk = os.read(self._its_output.fileno(), _READ_BYTES)
            *lines, self._unread = (self._unread + chunk).split(b"\n")
            for line in lines:
                self._take(**json.loads(line))
            is_needed = self._outlives_nodes or self._running or self._is_forking
            if not chunk or not is_needed:
                self._its_input.close()
                with self.process:  # closes its pipe, and waits for its end
                    self._has_ended = True

    def _take(self, pid: int, status: int | None = None) -> None:
        if status is None:
            self._running += 1
            self._statuses.pop(pid, None)  # of an earlier process with this number
            self.children.append(ForkedChild(self, pid))
        else:
            self._running -= 1
            self._statuses[pid] = status

    def _look_without_it(self, wait_s: float) -> None:
        """Check the nodes after the server's end: ended nodes get the server's exit status."""
        for child in self.children:
            if child.pid not in self._statuses and not child.is_seen:
                self._statuses[child.pid] = self.process.returncode
        left = [child.pid for child in self.children if child.pid not in self._statuses]
        if left:
            _wait_for_an_end(left, wait_s)


def _kill_server(
    owner_pid: int, its_input: socket.socket, process: "subprocess.Popen[bytes]"
) -> None:
    """Kill a fork server and wait for its end; no effect in a forked child of its owner."""
    if os.getpid() == owner_pid:
        its_input.close()
        with process:
            process.kill()


_UNREAD: Final = ("PYTEST_CURRENT_TEST", "XDG_STATE_HOME")
"""The test that runs; the place of the registry, which no node imports."""


def _environment() -> dict[str, str]:
    """Return all variables that a node inherits and may read."""
    return {name: text for name, text in os.environ.items() if name not in _UNREAD}


def _wait_for_an_end(pids: Iterable[int], wait_s: float) -> None:
    """Wait at most `wait_s` until one of these processes, which are no children, has ended."""
    with ExitStack() as stack:
        descriptors = []
        for pid in pids:
            try:
                descriptors.append(os.pidfd_open(pid))
            except ProcessLookupError:
                return
            stack.callback(os.close, descriptors[-1])
        select.select(descriptors, [], [], wait_s)


class ForkedChild:
    """A forked process, with the interface of `subprocess.Popen`."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid: Final = pid
        self.server: Final = server
        self._started: Final = process_identity.started(pid)

    @property
    def is_seen(self) -> bool:
        """Whether this process still exists."""
        return self._started is not None and process_identity.is_running(self.pid, self._started)

    def poll(self) -> int | None:
        """Return its exit status, below 0 by a signal; None: it runs."""
        return self.server.status_of(self, 0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit status. Raises subprocess.TimeoutExpired."""
        until_s = None if timeout is None else time.monotonic() + timeout
        while (status := self.server.status_of(self, LOOK_EVERY_S)) is None:
            if until_s is not None and time.monotonic() >= until_s:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return status
