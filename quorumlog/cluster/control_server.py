"""The control server of a cluster: its process, and the file with its address and token.

    DIR/control-server.json    url, token, process and detours: readable by its owner alone
    DIR/control-server.log     its output

The server is a module of the lab, started by its name. It has the forwarders that the connections
of nodes and clients go through, so it starts before the nodes, and its detours are those of every
node that is started while it runs.
"""

import json
import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from signal import SIGKILL, Signals
from typing import Any, Final, Self
from urllib.parse import urlsplit

from quorumlog.addresses import address_text, host_and_port
from quorumlog.cluster import process_identity, registry
from quorumlog.cluster.errors import ClusterError, InvalidArgument
from quorumlog.cluster.files import write_private
from quorumlog.cluster.processes import Program, read_end
from quorumlog.cluster.running_clusters import STOP_TIMEOUT_S
from quorumlog.cluster.time_limit import LOOK_EVERY_S, TimeLimit, say_nothing

CONNECTION_FILE: Final = "control-server.json"
HISTORIES_DIRECTORY: Final = "histories"
_LOG_FILE: Final = "control-server.log"
_MODULE: Final = "quorumlog.chaos.control"
_LOOPBACK: Final = "127.0.0.1"
_POLL_S: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The address and token of a running control server, and its process.

    The nodes' detours and, if their disks and clocks can be broken, variables of environment.
    """

    url: str
    token: str
    pid: int
    started: str  # process_identity.started(pid)
    detours: Mapping[int, Mapping[str, str]]
    environments: Mapping[int, Mapping[str, str]] = field(default_factory=dict)

    @classmethod
    def of_this_process(
        cls,
        *,
        url: str,
        token: str,
        detours: Mapping[int, Mapping[str, str]],
        environments: Mapping[int, Mapping[str, str]],
    ) -> Self:
        """Return the connection to a server in this process."""
        pid = os.getpid()
        return cls(
            url=url,
            token=token,
            pid=pid,
            started=process_identity.started(pid) or "",
            detours=detours,
            environments=environments,
        )

    @property
    def is_running(self) -> bool:
        """Whether the server's process still runs."""
        return process_identity.is_running(self.pid, self.started)


def save(directory: Path, connection: Connection) -> None:
    """Write the file, readable by its owner alone. Raises OSError."""
    write_private(directory / CONNECTION_FILE, json.dumps(asdict(connection), indent=2) + "\n")


def load(directory: Path) -> Connection | None:
    """Return the connection to the running control server of a directory; None: none runs.

    Raises ClusterError if the file is damaged, or not readable.
    """
    path = directory / CONNECTION_FILE
    try:
        document: dict[str, Any] = json.loads(path.read_text())
        ways, environments = (
            {int(node_id): dict(named) for node_id, named in document.pop(key).items()}
            for key in ("detours", "environments")
        )
        connection = Connection(**document, detours=ways, environments=environments)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ClusterError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ClusterError(f"{path} is damaged ({error}); remove it") from error
    return connection if connection.is_running else None


def has_ended(directory: Path) -> bool:
    """Return whether the last server of a directory was killed: nobody removed its file."""
    return (directory / CONNECTION_FILE).exists() and load(directory) is None


def forget(directory: Path) -> None:
    """Remove the file: the server ends."""
    (directory / CONNECTION_FILE).unlink(missing_ok=True)


def address_of(control: str | int | bool) -> tuple[str, int] | None:
    """Return host and port of a server: of True, a port, or host:port; False: none.

    True and port 0 choose a free port. Without a host, only this machine can connect. Raises
    InvalidArgument.
    """
    if isinstance(control, bool):
        return (_LOOPBACK, 0) if control else None
    text = str(control)
    try:
        host, port = (_LOOPBACK, int(text)) if text.isdigit() else host_and_port(text)
    except ValueError:
        port, host = -1, ""
    if not host or not 0 <= port < 65_536:
        raise InvalidArgument(f"--control {text}: write a port from 0 to 65535, or HOST:PORT")
    return host, port


class ControlServerProcess:
    """The process of a cluster's control server, whether or not this process started it."""

    def __init__(
        self, directory: Path, program: Program, control: str | int | bool, breaks_calls: bool
    ) -> None:
        """`breaks_calls`: it can break the disks and clocks of the nodes, too."""
        self.breaks_calls: Final = breaks_calls
        self._directory: Final = directory
        self._program: Final = program
        self._address: Final = address_of(control)
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether the cluster is to be started with a control server."""
        return self._address is not None

    @property
    def connection(self) -> Connection | None:
        """The connection to the server; None: it does not run."""
        return load(self._directory)

    def require_first(
        self, running: Sequence[int], detours: Mapping[int, Mapping[str, str]]
    ) -> None:
        """Raise ClusterError if nodes run before their server, or go through other forwarders.

        Also if the server of running nodes was killed, or runs at another address.
        """
        self.require_living(running)
        found = self.connection
        if found is not None and self._address is not None:
            self._require_address(found, self._address)
        if self.is_wanted and running and self.connection is None:
            raise ClusterError(
                f"node {', '.join(map(str, running))} runs: a control server starts before the "
                f"nodes; `quorumlog down --dir {self._directory}` stops them"
            )
        if self.is_wanted and detours and self.connection is None:
            raise InvalidArgument(
                "the connections of this cluster go through other forwarders: leave out control "
                "(a test has the fixture quorumlog_control)"
            )

    def require_living(self, running: Sequence[int]) -> None:
        """Raise ClusterError if nodes run behind the forwarders of a server that has ended.

        Without such a node the server's file is removed.
        """
        if not has_ended(self._directory):
            return
        if running:
            raise ClusterError(
                f"node {', '.join(map(str, running))} runs behind the forwarders of a control "
                "server that has ended: no connection reaches it; "
                f"`quorumlog down --dir {self._directory}` stops it"
            )
        forget(self._directory)

    def _require_address(self, found: Connection, wanted: tuple[str, int]) -> None:
        """Raise ClusterError if a server runs at another address than the requested one."""
        host, port = wanted
        if port not in {0, urlsplit(found.url).port}:
            raise ClusterError(
                f"a control server runs already at {found.url}, not at {address_text(host, port)}; "
                f"leave out --control, or `quorumlog down --dir {self._directory}` stops it"
            )

    def start(self, cluster_id: str, timeout_s: float) -> Connection:
        """Start the server, unless it runs; return when it listens. Raises ClusterError."""
        limit = TimeLimit(timeout_s, {}, say_nothing)
        if (found := self.connection) is not None:
            return found
        host, port = self._address or (_LOOPBACK, 0)
        read_fd, write_fd = os.pipe()
        try:
            self._child = self._spawn(host, port, write_fd)
        except BaseException:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        self._register(cluster_id, self._child.pid)
        self._wait_ready(self._child, read_fd, limit)
        if (connection := self.connection) is None:
            raise ClusterError(f"the control server has ended: {self._last_line()}")
        return connection

    def _spawn(self, host: str, port: int, ready_fd: int) -> "subprocess.Popen[bytes]":
        words = [str(self._directory), "--host", host, "--port", str(port)]
        words += ["--node-module", self._program.module, "--ready-fd", str(ready_fd)]
        words += ["--breakable"] * self.breaks_calls
        descriptors = [ready_fd]
        if not self._program.detached:
            descriptors.append(read_end())
            words += ["--parent-fd", str(descriptors[-1])]
        with (self._directory / _LOG_FILE).open("ab") as log:
            return subprocess.Popen(  # noqa: S603 - our own module
                [*Program().interpreter, _MODULE, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=descriptors,
                start_new_session=True,  # this process handles a Ctrl-C at the terminal
            )

    def _register(self, cluster_id: str, pid: int) -> None:
        registry.add(
            registry.Entry(
                directory=str(self._directory),
                cluster_id=cluster_id,
                node_id=registry.CONTROL_SERVER,
                kafka="",
                pid=pid,
                started=process_identity.started(pid) or "",
                owner_pid=os.getpid(),
                owner_started=process_identity.started(os.getpid()) or "",
                temporary=self._program.temporary,
            )
        )

    def _wait_ready(
        self, child: "subprocess.Popen[bytes]", ready_fd: int, limit: TimeLimit
    ) -> None:
        try:
            while not select.select([ready_fd], [], [], LOOK_EVERY_S)[0]:
                if limit.is_over():
                    raise ClusterError(
                        f"the control server is not ready after {limit.timeout_s:g} s; "
                        f"see {self._directory / _LOG_FILE}"
                    )
            if not os.read(ready_fd, 1):
                child.wait()
                raise ClusterError(f"the control server does not start: {self._last_line()}")
        finally:
            os.close(ready_fd)

    def _last_line(self) -> str:
        path = self._directory / _LOG_FILE
        lines = path.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"no output; see {path}"

    def signal(self, number: Signals) -> bool:
        """Send a signal to the server if it runs; return whether it was sent."""
        pid = self._running_pid()
        if pid is None:
            return False
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True

    def end(self, number: Signals | None = None) -> None:
        """Signal the server, unless it was, and wait for its end; kill it after STOP_TIMEOUT_S."""
        limit = TimeLimit(STOP_TIMEOUT_S, {}, say_nothing)
        if number is not None:
            self.signal(number)
        while self._running_pid() is not None:
            if limit.is_over():
                self.signal(SIGKILL)
                forget(self._directory)
                limit = TimeLimit(STOP_TIMEOUT_S, {}, say_nothing)
            time.sleep(_POLL_S)

    @property
    def _running_child(self) -> "subprocess.Popen[bytes] | None":
        if self._child is not None and self._child.poll() is not None:
            self._child = None
        return self._child

    def _running_pid(self) -> int | None:
        if (child := self._running_child) is not None:
            return child.pid
        found = self.connection
        return None if found is None else found.pid
