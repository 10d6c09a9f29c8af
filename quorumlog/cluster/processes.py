"""One node as a process of this machine: start it, know whether it runs, signal it.

A node holds a lock on its `node.pid` for as long as it lives, however it ends. So "is it running"
needs no guess about recycled process ids: if the lock can be had, it is not.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from quorumlog.cluster import layout
from quorumlog.cluster.errors import ClusterError, NodeFailed

_LOG_TAIL_BYTES: Final = 4096
_EXIT_POLL_S: Final = 0.005


class NodeProcess:
    """One node of one directory, whether or not this process started it.

    Invariant: at most one process runs the node: the lock on `node.pid` is the node's own.
    """

    def __init__(self, directory: Path, node_id: int, *, module: str) -> None:
        self.node_id: Final = node_id
        self._module: Final = module
        self._properties = layout.properties_file(directory, node_id)
        self._log = layout.log_file(directory, node_id)
        self._pid_file = layout.node_directory(directory, node_id) / "node.pid"
        self._child: subprocess.Popen[bytes] | None = None
        self._ready_fd: int | None = None

    @property
    def pid(self) -> int | None:
        """The process id, or None if the node does not run."""
        if self._child is not None and self._child.poll() is None:
            return self._child.pid
        if not self._is_locked():
            return None
        text = self._pid_file.read_text().strip()
        return int(text) if text else None

    def _is_locked(self) -> bool:
        if not self._pid_file.exists():
            return False
        with self._pid_file.open("rb") as file:
            try:
                os.lockf(file.fileno(), os.F_TEST, 0)
            except (BlockingIOError, PermissionError):  # POSIX allows either
                return True
        return False

    def spawn(self) -> None:
        """Start the process and return at once; `wait_ready` tells what became of it."""
        if self.pid is not None:
            raise ClusterError(f"node {self.node_id} runs already, as process {self.pid}")
        read_fd, write_fd = os.pipe()
        command = [sys.executable, "-m", self._module, str(self._properties)]
        try:
            with self._log.open("ab") as log:
                self._child = subprocess.Popen(  # noqa: S603 - our own module, our own file
                    [*command, "--ready-fd", str(write_fd), "--pid-file", str(self._pid_file)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(write_fd,),
                    start_new_session=True,  # a Ctrl-C at the terminal is ours to handle
                )
        finally:
            os.close(write_fd)
        self._ready_fd = read_fd

    def wait_ready(self, deadline_s: float) -> dict[str, Any]:
        """Wait for the node's one line that it is ready; return it. `deadline_s`: monotonic.

        Raises NodeFailed with the end of the node's output if it ended, or was too slow.
        """
        if self._ready_fd is None:
            raise ClusterError(f"node {self.node_id} was not started here")
        fd, self._ready_fd = self._ready_fd, None
        try:
            line = b""
            while not line.endswith(b"\n"):
                remaining_s = max(0.0, deadline_s - time.monotonic())
                if not select.select([fd], [], [], remaining_s)[0]:
                    raise NodeFailed(f"node {self.node_id} is not ready in time; see {self._log}")
                chunk = os.read(fd, 4096)
                if not chunk:
                    raise NodeFailed(self.last_words())
                line += chunk
        finally:
            os.close(fd)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def last_words(self) -> str:
        """Say how a node that has ended did so: its last line is meant for people."""
        status = None if self._child is None else self._child.wait()
        with self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - _LOG_TAIL_BYTES))
            lines = log.read().decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"it said nothing; see {self._log}"
        return f"node {self.node_id} ended with status {status}: {reason}"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal. Raises ClusterError if the node does not run."""
        pid = self.pid
        if pid is None:
            raise ClusterError(f"node {self.node_id} does not run")
        os.kill(pid, number)

    def wait_ended(self, timeout_s: float) -> bool:
        """Wait until the process is gone; return whether it is."""
        if self._child is not None:
            try:
                self._child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return False
            return True
        deadline_s = time.monotonic() + timeout_s
        while self._is_locked():  # not our child: its lock is all that we can watch
            if time.monotonic() > deadline_s:
                return False
            time.sleep(_EXIT_POLL_S)
        return True
