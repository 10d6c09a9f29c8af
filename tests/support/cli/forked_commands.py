"""Runs `quorumlog` commands as forks of a process that has imported them: in a quarter of the time.

A command has a process, standard streams, a working directory and an environment of its own. Two
processes fork for it: the first waits for the second, which becomes the command. This file is the
program of the server, too.
"""

import atexit
import gc
import marshal
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp
from typing import Final

_TIMEOUT_S: Final = 120
_REQUEST_BYTES: Final = 1 << 17
_READ_AT_START: Final = ("PYTHON", "LANG", "LC_")  # variables that only a new interpreter reads
_IMPORTED: Final = (
    "pydantic.type_adapter",  # by typer, at the first command
    "typer._adapters",
    "quorumlog.cli.cluster_commands",
    "quorumlog.cli.main",
    "quorumlog.cli.nemesis_commands",
    "quorumlog.cli.node_commands",
    "quorumlog.cli.record_files",
    "quorumlog.cli.topic_commands",
    "quorumlog.client.sync",
    "quorumlog.cluster.snapshots",
    "quorumlog.node.config",
)
_PROGRAM: Final = """#!{python} -ISs
import marshal, os, socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect("{path}")
    asked = dict(argv=["quorumlog", *sys.argv[1:]], cwd=os.getcwd(), env=dict(os.environ))
    socket.send_fds(server, [marshal.dumps(asked)], [0, 1, 2])
    _, status = server.recv(32), int(server.recv(32))
if status < 0:
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


def run_forked(
    *arguments: str, cwd: Path, env: Mapping[str, str], lines: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. After 120 s it is killed, and TimeoutExpired is raised."""
    argv = ["quorumlog", *arguments]
    request = marshal.dumps({"argv": argv, "cwd": str(cwd), "env": dict(env)})
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server,
        TemporaryFile("w+") as stdin,
        TemporaryFile("w+") as out,
        TemporaryFile("w+") as err,
    ):
        stdin.write(lines)
        stdin.seek(0)
        server.connect(str(_server_for(env) / "socket"))
        socket.send_fds(server, [request], [stdin.fileno(), out.fileno(), err.fileno()])
        pid = int(server.recv(32))
        server.settimeout(_TIMEOUT_S)
        try:
            status = int(server.recv(32))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(argv, _TIMEOUT_S) from None
        for one in (out, err):
            one.seek(0)
        return subprocess.CompletedProcess(argv, status, out.read(), err.read())


def forking_program() -> Path:
    """Return a directory with a program `quorumlog`, which forks the command; for shells."""
    directory = _server_for(os.environ)
    program = directory / "quorumlog"
    if not program.exists():
        program.write_text(_PROGRAM.format(python=sys.executable, path=directory / "socket"))
        program.chmod(0o755)
    return directory


def _server_for(env: Mapping[str, str]) -> Path:
    return _server(tuple(sorted(one for one in env.items() if one[0].startswith(_READ_AT_START))))


@cache
def _server(at_start: tuple[tuple[str, str], ...]) -> Path:
    """Return the directory with the socket of a server, which ends with this process."""
    directory = Path(mkdtemp(prefix="commands-", dir="/tmp"))
    others = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    env = {name: value for name, value in others.items() if not name.startswith(_READ_AT_START)}
    lifeline, its = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(directory / "socket"))
        listener.listen()
        process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(listener.fileno())],
            stdin=lifeline,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            env={**env, **dict(at_start)},
        )
    os.close(lifeline)
    atexit.register(shutil.rmtree, directory)
    atexit.register(process.wait)
    atexit.register(os.close, its)  # ends it: the last that is registered is called first
    return directory


def _serve(listener: socket.socket) -> None:
    """Fork for each request; return in the process that becomes a command."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no process waits for its children
    while True:
        readable, _, _ = select.select([0, listener.fileno()], [], [])
        if listener.fileno() not in readable:
            sys.exit()
        connection, _ = listener.accept()
        request, streams, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, 3)
        if os.fork() == 0:
            break
        connection.close()
        for stream in streams:
            os.close(stream)
    listener.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if pid := os.fork():
        for number, stream in enumerate(streams):
            os.close(number)
            os.close(stream)
        connection.send(b"%d" % pid)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        connection.send(b"%d" % status)
        os._exit(0)
    connection.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    asked = marshal.loads(request)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv[:] = asked["argv"]


if __name__ == "__main__":
    for name in _IMPORTED:
        import_module(name)
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    import_module("quorumlog.cli.main").main()
