"""Runs `quorumlog` commands as forks of a process that has imported them: in a quarter of the time.

A command has a process, standard streams, a working directory and an environment of its own. Two
processes fork for it: the first waits for the second, which becomes the command. This file is the
program of the server, too.
"""

import atexit
import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

_TIMEOUT_S: Final = 120
_REQUEST_BYTES: Final = 1 << 17
_READ_AT_START: Final = ("PYTHON", "LANG", "LC_")  # variables that only a new interpreter reads
_IMPORTED: Final = (
    "pydantic.type_adapter",  # by typer, at the first command
    "typer._adapters",
    "quorumlog.cli.main",
    "quorumlog.cluster.snapshots",
    "quorumlog.node.config",
    "quorumlog.client.sync",
    "quorumlog.cli.cluster_commands",
    "quorumlog.cli.nemesis_commands",
    "quorumlog.cli.node_commands",
    "quorumlog.cli.record_files",
    "quorumlog.cli.topic_commands",
)


def run_forked(
    *arguments: str, cwd: Path, env: Mapping[str, str], lines: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. After 120 s it is killed, and TimeoutExpired is raised."""
    request = {"argv": ["quorumlog", *arguments], "cwd": str(cwd), "env": dict(env)}
    at_start = sorted(one for one in env.items() if one[0].startswith(_READ_AT_START))
    ours, its = socket.socketpair()
    with ours, TemporaryFile("w+") as stdin, TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        stdin.write(lines)
        stdin.seek(0)
        with its:
            descriptors = [stdin.fileno(), out.fileno(), err.fileno(), its.fileno()]
            line = json.dumps(request).encode()
            socket.send_fds(_server(tuple(at_start)), [line], descriptors)
        ours.settimeout(_TIMEOUT_S)
        with ours.makefile() as told:
            pid = int(told.readline())
            try:
                status = int(told.readline())
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(request["argv"], _TIMEOUT_S) from None
        for one in (out, err):
            one.seek(0)
        return subprocess.CompletedProcess(request["argv"], status, out.read(), err.read())


@cache
def _server(at_start: tuple[tuple[str, str], ...]) -> socket.socket:
    """Return the connection to a server, which ends with this process."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    others = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    env = {name: value for name, value in others.items() if not name.startswith(_READ_AT_START)}
    with its:
        process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(its.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[its.fileno()],
            env={**env, **dict(at_start)},
        )
    atexit.register(process.wait)
    atexit.register(ours.close)  # ends it: this is called before
    return ours


def _serve(channel: socket.socket) -> None:
    """Fork for each request; return in the process that becomes a command."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait
    while True:
        request, descriptors, _, _ = socket.recv_fds(channel, _REQUEST_BYTES, 4)
        if not request:
            sys.exit()
        if os.fork() == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
    channel.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, told = descriptors
    if pid := os.fork():
        os.write(told, b"%d\n" % pid)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(told, b"%d\n" % status)
        os._exit(0)
    os.close(told)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    asked = json.loads(request)
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
