"""One node as a process of this machine: starts it, signals it, checks whether it runs.

A node holds a lock on its `node.pid` until its process ends, in whatever way. So the check needs no
guess about recycled process ids: if the lock is free, the node does not run.

A node that is not detached ends with the process that started it: see `read_end`. Nodes do not
import modules from the working directory (`python -P`): a `queue.py` there is not the standard
library's.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from typing import Any, Final, Protocol

from quorumlog.cluster import layout, process_identity, registry
from quorumlog.cluster.cluster_status import NodeState
from quorumlog.cluster.errors import ClusterError, NodeFailed
from quorumlog.cluster.layout import NodeSpec
from quorumlog.cluster.time_limit import LOOK_EVERY_S, TimeLimit
from quorumlog.node.lock import is_held
from quorumlog.node.openssl import mentions_tls, settings_texts
from quorumlog.node.progress import blank, exit_status_in, progress_file

_ends: tuple[int, int] | None = None  # (read, write): one pipe for all nodes of this process


def read_end() -> int:
    """Return the read end of a pipe, for a node that must end with this process.

    This process alone holds the write end, and never writes. The kernel closes it however the
    process ends, also by SIGKILL; the node then reads the end of the file and stops.
    """
    global _ends  # noqa: PLW0603 - the pipe belongs to the process
    if _ends is None:
        _ends = os.pipe()
        os.set_blocking(_ends[0], False)
    return _ends[0]


def _let_go() -> None:
    """Close both ends in a forked child: it may outlive this process, the nodes' owner."""
    global _ends  # noqa: PLW0603 - as above
    if _ends is not None:
        for descriptor in _ends:
            os.close(descriptor)
        _ends = None


os.register_at_fork(after_in_child=_let_go)


_LOG_TAIL_BYTES: Final = 4096
_EXIT_POLL_S: Final = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The program that runs as a node, and its lifetime.

    `module`: the Python module; words behind its name are its first arguments.
    `detached`: the node outlives the process that starts it.
    `temporary`: the directory of the cluster is removed at the end of that process.
    """

    module: str = "quorumlog.node"
    detached: bool = False
    temporary: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether the module belongs to this package."""
        return self.module.partition(".")[0] == "quorumlog"

    @property
    def interpreter(self) -> list[str]:
        """The start of a command line: the name of a module follows."""
        # -P leaves out the working directory, which may contain a user's module.
        return [sys.executable, *(["-P"] if self.is_ours else []), "-m"]

    @property
    def command(self) -> list[str]:
        """The start of the command line of a node: its arguments follow."""
        return [*self.interpreter, *self.module.split()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How the process of one node is launched, beside its program.

    `prefix`: a command that executes the node's command in its own process. `environment`:
    variables added to this process's.
    """

    prefix: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


class Child(Protocol):
    """A child process: a `subprocess.Popen`, or a process of the fork server."""

    @property
    def pid(self) -> int:
        """The id of the process."""

    def poll(self) -> int | None:
        """Return its exit status, below 0 by a signal; None: it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit status. Raises subprocess.TimeoutExpired."""


class NodeProcess:
    """One node of one directory, whether or not this process started it.

    Invariant: at most one process runs the node: the lock on `node.pid` is the node's own.
    """

    def __init__(self, directory: Path, cluster_id: str, node: NodeSpec, program: Program) -> None:
        self.node_id: Final = node.id
        self.launch = Launch()
        self._node: Final = node
        self._cluster_id: Final = cluster_id
        self.program: Final = program
        self._directory: Final = directory
        self._properties = layout.properties_file(directory, node.id)
        self.log = layout.log_file(directory, node.id)
        self._pid_file = layout.pid_file(directory, node.id)
        self._child: Child | None = None  # the last one that was started here
        self._ready_fd: int | None = None
        self._signalled: tuple[int, str] | None = None  # to end: its process id and start time

    @property
    def child(self) -> Child | None:
        """The last process that was started here, running or not."""
        return self._child

    @property
    def is_plain(self) -> bool:
        """Whether its process is launched without prefix and environment."""
        return self.launch == Launch()

    @property
    def may_use_tls(self) -> bool:
        """Whether the node's settings mention TLS: then the node imports `ssl` first."""
        return mentions_tls(settings_texts([str(self._properties)], os.environ))

    @property
    def pid(self) -> int | None:
        """The process id, or None if the node does not run."""
        if self._child is not None and self._child.poll() is None:
            return self._child.pid
        if not self._is_locked():
            return None
        text = self._pid_file.read_text().strip()
        return int(text) if text else None

    def state(self) -> NodeState:
        """Return the state of the process; NO_ANSWER while it runs: no request is sent."""
        pid = self.pid
        if pid is not None:
            is_paused = process_identity.is_paused(pid)
            return NodeState.PAUSED if is_paused else NodeState.NO_ANSWER
        if not self._pid_file.exists():
            return NodeState.NOT_STARTED
        try:
            status = exit_status_in(progress_file(self._pid_file).read_text(errors="replace"))
        except OSError:
            status = None
        if status is None:
            return NodeState.KILLED
        return NodeState.STOPPED if status == 0 else NodeState.EXITED

    def _is_locked(self) -> bool:
        if not self._pid_file.exists():
            return False
        with self._pid_file.open("rb") as file:
            return is_held(file.fileno())

    def spawn(self, *, report_ready: bool = True) -> None:
        """Start the process and return at once.

        With `report_ready`, `wait_ready` must be called, to wait for the node.
        """
        with self.starting(report_ready=report_ready) as (arguments, descriptors):
            with self.log.open("ab") as log:
                child = subprocess.Popen(  # noqa: S603 - our own module, our own file
                    [*self.launch.prefix, *self.program.command, *arguments],
                    env={**os.environ, **self.launch.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=descriptors,
                    start_new_session=True,  # this process handles a Ctrl-C at the terminal
                )
            self.adopt(child)

    @contextmanager
    def starting(self, *, report_ready: bool = True) -> Iterator[tuple[list[str], list[int]]]:
        """Yield the arguments of a process to start, and the descriptors that they name."""
        if self.pid is not None:
            raise ClusterError(f"node {self.node_id} runs already, as process {self.pid}")
        blank(progress_file(self._pid_file))
        arguments = [str(self._properties), "--pid-file", str(self._pid_file)]
        descriptors = []
        if not self.program.detached:
            descriptors.append(read_end())
            arguments += ["--parent-fd", str(descriptors[0])]
            if self.program.temporary:
                arguments += ["--temporary-directory", str(self._directory)]
        if not report_ready:
            yield arguments, descriptors
            return
        read_fd, write_fd = os.pipe()
        try:
            yield [*arguments, "--ready-fd", str(write_fd)], [*descriptors, write_fd]
        except BaseException:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        self._ready_fd = read_fd

    def forget_start(self) -> None:
        """Undo `starting`: no process was started."""
        if self._ready_fd is not None:
            os.close(self._ready_fd)
            self._ready_fd = None

    def adopt(self, child: Child) -> None:
        """Own and record a process that was started with the results of `starting`."""
        self._child = child
        registry.add(
            registry.Entry(
                directory=str(self._directory),
                cluster_id=self._cluster_id,
                node_id=self.node_id,
                kafka=self._node.kafka if self._node.is_broker else "",
                pid=child.pid,
                started=process_identity.started(child.pid) or "",
                owner_pid=os.getpid(),
                owner_started=process_identity.started(os.getpid()) or "",
                temporary=self.program.temporary,
            )
        )

    def wait_ready(self, limit: TimeLimit) -> dict[str, Any]:
        """Wait for the line of JSON that a ready node writes; return its content.

        Raises NodeFailed with the end of the node's output if it ended, or was too slow.
        """
        if self._ready_fd is None:
            raise ClusterError(f"node {self.node_id} was not started here")
        fd, self._ready_fd = self._ready_fd, None
        child = self._child  # another thread may start the next process meanwhile
        try:
            line = b""
            while not line.endswith(b"\n"):
                if not select.select([fd], [], [], LOOK_EVERY_S)[0]:
                    reason = limit.final_reason(self.node_id)
                    if reason is not None:
                        raise NodeFailed(
                            f"node {self.node_id} is not ready: {reason}; see {self.log}"
                        )
                    if limit.is_over():
                        raise self.late(limit)
                    continue
                chunk = os.read(fd, 4096)
                if not chunk:
                    raise self.failed(child)
                line += chunk
        finally:
            os.close(fd)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def late(self, limit: TimeLimit) -> NodeFailed:
        """Return the error of a node that is not ready in time, with its own reasons."""
        reasons = "; ".join(limit.reasons(self.node_id)) or f"it {limit.lack(self.node_id)}"
        lack = f"node {self.node_id} is not ready: {reasons}"
        return NodeFailed(f"{lack}; see {self.log}")

    def failed(self, child: Child | None) -> NodeFailed:
        """Wait for the process's end; return the error of a node that ended before it was ready."""
        return NodeFailed(self._last_words_of(child))

    @property
    def exit_status(self) -> int | None:
        """Exit status of the process started here, below 0 by a signal; None: it runs."""
        return None if self._child is None else self._child.poll()

    def last_words(self) -> str:
        """Return how a node ended: its exit status and the last line of its output.

        Raises ClusterError if it runs.
        """
        if self.pid is not None:
            raise ClusterError(
                f"node {self.node_id} still runs, as process {self.pid}: it has no last words"
            )
        return self._last_words_of(self._child)

    def _last_words_of(self, child: Child | None) -> str:
        status = None if child is None else child.wait()
        lines: list[str] = []
        with suppress(FileNotFoundError), self.log.open("rb") as log:  # the directory was removed
            log.seek(max(0, self.log.stat().st_size - _LOG_TAIL_BYTES))
            lines = log.read().decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"no output; see {self.log}"
        return f"node {self.node_id} ended with status {status}: {reason}"

    def signal(self, number: Signals) -> None:
        """Send a signal. Raises ClusterError if the node does not run."""
        if not self.signal_if_running(number):
            raise ClusterError(f"node {self.node_id} does not run")

    def signal_if_running(self, number: Signals) -> bool:
        """Send a signal if the node runs; return whether it was sent."""
        pid = self.pid
        if pid is None:
            return False
        if number in {SIGKILL, SIGTERM}:
            self._signalled = pid, process_identity.started(pid) or ""
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    def wait_ended(self, limit: TimeLimit) -> bool:
        """Wait for the process's end, up to the limit; return whether it has ended."""
        while not self._has_ended():
            if limit.is_over():
                return False
        return True

    def _has_ended(self) -> bool:
        """Wait a moment for the process's end; return whether it has ended."""
        if self._child is None or self._child.poll() is not None:
            # Not started here, or not the last time: no parent of it is in this process.
            if self._exists():
                time.sleep(_EXIT_POLL_S)
            return not self._exists()
        try:
            self._child.wait(LOOK_EVERY_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _exists(self) -> bool:
        """Return whether a process that is no child runs, or has yet to end after its signal.

        The kernel frees the lock of a process a moment before its end.
        """
        if self._is_locked():
            return True
        return self._signalled is not None and process_identity.is_running(*self._signalled)
