"""The nodes of any Kafka cluster, broken by signals to its processes or by commands of the user.

A TOML file has one table per node; `id` is the broker id:

  [[nodes]]
  id = 1
  rack = "a"                                              # optional: for faults of whole racks
  pid_file = "/var/run/kafka-1.pid"                       # kill, pause and resume are signals then
  start = "bin/kafka-server-start.sh -daemon config/server-1.properties"

  [[nodes]]
  id = 2
  is_running = "ssh b2 systemctl is-active --quiet kafka" # exit status 0: it runs
  kill = "ssh b2 sudo systemctl kill -s SIGKILL kafka"
  start = "ssh b2 sudo systemctl start kafka"

A command is split as by a shell, but no shell runs it. `start` must return once the node runs in
the background. If its exit status is not 0, the error has the stderr of the command.
"""

import asyncio
import os
import shlex
import signal
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from quorumlog.chaos.back_ends.back_end import (
    GROUPS_TOPIC,
    BackEndFailed,
    BackEndKind,
    NodeUnavailable,
    WithoutLinks,
    for_each,
    holders_of,
)
from quorumlog.chaos.faults.fault import OUTSIDE
from quorumlog.chaos.faults.node_groups import Racks, racks_of
from quorumlog.chaos.faults.registry import known_step_fault
from quorumlog.client import Admin, KafkaError

_SIGNALS: Final[Mapping[str, signal.Signals]] = {
    "kill": signal.SIGKILL,
    "stop": signal.SIGTERM,
    "pause": signal.SIGSTOP,
    "resume": signal.SIGCONT,
}
_OPERATIONS: Final[tuple[str, ...]] = ("kill", "stop", "start", "pause", "resume")
_IS_RUNNING: Final = "is_running"
_COMMANDS: Final = (*_OPERATIONS, _IS_RUNNING)
_COMMAND_TIMEOUT_S: Final = 60.0
_CHANGE_TIMEOUT_S: Final = 20.0  # until a killed node has ended, or a started one runs
_POLL_S: Final = 0.02
_ADMIN_TIMEOUT_MS: Final = 2_000


class CommandedNode:
    """One node. Its methods block.

    Invariant: a signal goes only to the process seen at the start, or started since: the pid file
    of a dead node may hold the number of another process by now.
    """

    def __init__(
        self,
        node_id: int,
        pid_file: Path | None,
        commands: Mapping[str, Sequence[str]],
        rack: str | None = None,
    ) -> None:
        self.node_id: Final = node_id
        self.rack: Final = rack
        self._pid_file: Final = pid_file
        self._commands: Final = commands
        self._known: tuple[int, str] | None = self._process()

    @property
    def operations(self) -> frozenset[str]:
        """The operations that this node supports."""
        by_signal = set(_SIGNALS) if self._pid_file is not None else set[str]()
        return frozenset(by_signal | {name for name in _OPERATIONS if name in self._commands})

    def is_running(self) -> bool:
        """Return whether the process exists; a paused one counts."""
        if _IS_RUNNING in self._commands:
            return _run(self._commands[_IS_RUNNING]).returncode == 0
        return self._process() is not None and self._process() == self._known

    def perform(self, operation: str) -> None:
        """Do the operation and wait until it has its effect.

        Raises NodeUnavailable, and BackEndFailed if a command fails.
        """
        if operation == "start" and self.is_running():
            return
        stale = self._pid_file_version()
        if operation in self._commands:
            done = _run(self._commands[operation])
            if done.returncode != 0:
                raise BackEndFailed(
                    f"node {self.node_id}: {shlex.join(self._commands[operation])} ended with "
                    f"status {done.returncode}: {done.stderr.strip()}"
                )
        else:
            self._signal(_SIGNALS[operation])
        if operation in {"kill", "stop", "start"}:
            self._wait(runs=operation == "start", stale=stale)

    def _signal(self, number: signal.Signals) -> None:
        process = self._process()
        if process is None or process != self._known:
            raise NodeUnavailable(f"node {self.node_id} does not run")
        try:
            os.kill(process[0], number)
        except ProcessLookupError:
            raise NodeUnavailable(f"node {self.node_id} does not run") from None
        except PermissionError:
            raise BackEndFailed(
                f"node {self.node_id}: process {process[0]} is another user's: give commands"
            ) from None

    def _wait(self, *, runs: bool, stale: tuple[int, int] | None) -> None:
        """Wait until the node runs, or has ended. `stale`: the version of the former pid file."""
        deadline_s = time.monotonic() + _CHANGE_TIMEOUT_S
        while True:
            if runs and self._pid_file_version() != stale:
                self._known = self._process()
            if self.is_running() == runs:
                return
            if time.monotonic() > deadline_s:
                state = "does not run" if runs else "still runs"
                raise NodeUnavailable(f"node {self.node_id} {state} after {_CHANGE_TIMEOUT_S:g} s")
            time.sleep(_POLL_S)

    def _pid_file_version(self) -> tuple[int, int] | None:
        try:
            found = self._pid_file.stat() if self._pid_file is not None else None
        except OSError:
            return None
        return None if found is None else (found.st_ino, found.st_mtime_ns)

    def _process(self) -> tuple[int, str] | None:
        """Return the pid and the start time of the process in the pid file, if it lives."""
        if self._pid_file is None:
            return None
        try:
            pid = int(self._pid_file.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None
        if pid <= 0:  # to kill(2), a whole group of processes
            return None
        state, _, started = (
            _run(["ps", "-o", "stat=", "-o", "lstart=", "-p", str(pid)])
            .stdout.strip()
            .partition(" ")
        )
        return None if not state or state.startswith("Z") else (pid, started.strip())


class Commands(WithoutLinks):
    """A back end on nodes that the run did not start; they outlive it."""

    name = "commands"

    def __init__(
        self, nodes: Sequence[CommandedNode], bootstrap: str, protection: Mapping[str, Any]
    ) -> None:
        self._nodes: Final = {node.node_id: node for node in nodes}
        self._bootstrap: Final = bootstrap
        self._protection: Final = protection
        self._to_mend: Final[set[tuple[str, int]]] = set()
        self.operations: Final = frozenset({OUTSIDE}) | frozenset.intersection(
            *(node.operations for node in nodes)
        )

    @property
    def node_ids(self) -> tuple[int, ...]:
        """All nodes of the file."""
        return tuple(sorted(self._nodes))

    @property
    def racks(self) -> Racks:
        """The nodes of each rack of the file, running or not."""
        return racks_of({node_id: node.rack for node_id, node in self._nodes.items()})

    async def running(self) -> tuple[int, ...]:
        """Return the nodes whose process exists now."""
        answers = await asyncio.gather(
            *(asyncio.to_thread(self._nodes[node_id].is_running) for node_id in self.node_ids)
        )
        return tuple(node_id for node_id, runs in zip(self.node_ids, answers, strict=True) if runs)

    async def perform(self, operation: str, node_ids: Sequence[int], amount: int = 0) -> None:
        """Do the operation to all `node_ids`. Raises NodeUnavailable or BackEndFailed."""
        del amount  # of no operation here

        async def act(node_id: int) -> None:
            match operation:  # before the call: a cancelled operation may have had its effect
                case "kill" | "stop":
                    self._to_mend.add(("start", node_id))
                    self._to_mend.discard(("resume", node_id))
                case "pause":
                    self._to_mend.add(("resume", node_id))
                case _:  # an operation that mends
                    pass
            await asyncio.to_thread(self._nodes[node_id].perform, operation)
            self._to_mend.discard((operation, node_id))

        await for_each(node_ids, act)

    def times_met(self, operation: str, node_ids: Sequence[int]) -> None:
        """Return None: signals and commands always have an effect."""
        del operation, node_ids

    def why_not(self, fault: str) -> str:
        """Return which operation some node of the file lacks, or ""."""
        kind = known_step_fault(fault)
        missing = sorted(kind.needs - self.operations) if kind is not None else []
        return f"not every node has {', '.join(missing)}" if missing else ""

    async def holders(self, role: str, topic: str) -> Sequence[int]:
        """Return the holders from the cluster; empty if it does not respond."""
        try:
            async with self._admin() as admin:
                if role == "metadata-leader":
                    return [(await admin.describe_quorum()).leader_id]
                if role == "group-coordinator":
                    role, topic = "partition-leader", GROUPS_TOPIC
                partitions = (await admin.describe_topics([topic]))[topic].partitions.values()
        except (KafkaError, ConnectionError):
            return []
        return holders_of(role, ((one.leader_id, one.isr) for one in partitions))

    async def behind(self, topic: str) -> Sequence[int]:
        """Return the nodes with a replica of the topic outside its ISR, from the cluster."""
        try:
            async with self._admin() as admin:
                partitions = (await admin.describe_topics([topic]))[topic].partitions.values()
        except (KafkaError, ConnectionError):
            return []
        return sorted(set().union(*({*one.replicas} - {*one.isr} for one in partitions)))

    def _admin(self) -> Admin:
        return Admin(
            self._bootstrap,
            **self._protection,
            request_timeout_ms=_ADMIN_TIMEOUT_MS,
            default_api_timeout_ms=_ADMIN_TIMEOUT_MS,
            socket_connection_setup_timeout_ms=_ADMIN_TIMEOUT_MS,
        )

    def last_words(self, node_id: int) -> str:
        """Return "": the back end has no access to the node's log."""
        del node_id
        return ""

    async def restore(self) -> None:
        """Resume and start the nodes that this run has paused or killed."""
        for operation, node_id in sorted(self._to_mend):  # resume, then start
            await self.perform(operation, [node_id])


def open_commands(file: str, bootstrap: str, protection: Mapping[str, Any]) -> Commands:
    """Read the file. Raises ValueError if it is invalid, or if a node does not run."""
    try:
        document = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    tables = document.get("nodes")
    if not isinstance(tables, list) or not tables or document.keys() != {"nodes"}:
        raise ValueError(f"{file}: write one table [[nodes]] for each node, and no other tables")
    nodes = [_node_of(file, table) for table in tables]
    if len({node.node_id for node in nodes}) < len(nodes):
        raise ValueError(f"{file}: two nodes have the same id")
    for node in nodes:
        if not node.is_running():
            raise ValueError(f"{file}: node {node.node_id} does not run")
    return Commands(nodes, bootstrap, protection)


def _node_of(file: str, table: Any) -> CommandedNode:
    if not isinstance(table, dict) or type(table.get("id")) is not int:
        raise ValueError(f"{file}: each of [[nodes]] needs an id, which is a whole number")
    node_id = table["id"]
    for name, value in table.items():
        if name not in {"id", "pid_file", "rack", *_COMMANDS}:
            raise ValueError(f"{file}: node {node_id}: there is no {name!r}")
        if name != "id" and not (isinstance(value, str) and value):
            raise ValueError(f"{file}: node {node_id}: {name} must be text")
    if "pid_file" not in table and _IS_RUNNING not in table:
        raise ValueError(f"{file}: node {node_id}: it needs a pid_file, or is_running")
    try:
        commands = {name: shlex.split(table[name]) for name in _COMMANDS if name in table}
    except ValueError as error:
        raise ValueError(f"{file}: node {node_id}: {error}") from error
    pid_file = Path(table["pid_file"]) if "pid_file" in table else None
    return CommandedNode(node_id, pid_file, commands, table.get("rack"))


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. Raises BackEndFailed if there is none, or it takes too long.

    Its output goes to files: a node that it leaves in the background would keep a pipe open. It has
    a session of its own, so that Ctrl-C for the run does not end the node.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        try:
            status = subprocess.run(  # noqa: S603 - the user's own commands
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                timeout=_COMMAND_TIMEOUT_S,
                check=False,
                start_new_session=True,
            ).returncode
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BackEndFailed(f"{shlex.join(command)}: {error}") from error
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, status, out.read(), err.read())


BACK_END: Final = BackEndKind(
    name=Commands.name,
    text="FILE: signals to processes, or your commands, for nodes that run already",
    open=open_commands,
)
