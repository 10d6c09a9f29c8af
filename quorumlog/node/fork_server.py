"""Starts several nodes that share the cost of their imports, and tells how they end. For Linux.

`python -m quorumlog.node.fork_server PLAN`, where the plan is what `Plan` says, as JSON. It imports
the modules once, and forks one process for each node. Each becomes what it would be if it were
started by itself: it has a session, an output and words in `ps` of its own, and ends for itself.
Standard output gets one line of JSON for each process, in order: {"pid"}, and one for each that has
ended: {"pid", "status"}. The status is below 0 if a signal ended it.

It ends with the last node; or when its standard input is closed, that is, with the process that
started it. The nodes go on then.

Invariants: there is one thread when it forks, and nothing was decided or opened for any node.
"""

import importlib
import json
import os
import runpy
import select
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypedDict

_STDIN, _STDOUT, _STDERR = 0, 1, 2
_WOKEN_BYTES: Final = 4096
_ARGUMENTS_START: Final = 45  # of /proc/self/stat, behind the command's name; the next is their end


class NodePlan(TypedDict):
    """One process. `command`: as if it were started by itself, `module` and what follows last."""

    command: list[str]
    module: str
    arguments: list[str]
    log: str  # its output is appended to this file
    descriptors: list[int]  # those that it keeps, beside standard input and output


class Plan(TypedDict):
    """All processes; `preloaded` are modules that are imported before."""

    preloaded: list[str]
    nodes: list[NodePlan]


def main(plan: Plan) -> None:
    """Fork the nodes and wait for them; in a node's process, run the node."""
    for module in plan["preloaded"]:
        importlib.import_module(module)
    pids = []
    for node in plan["nodes"]:
        if _is_closed(_STDIN):
            return
        pid = os.fork()
        if not pid:
            _become(node, {fd for one in plan["nodes"] for fd in one["descriptors"]})
            # Leaves this module for good: the module ends the process, by SystemExit or an error.
            runpy.run_module(node["module"], run_name="__main__", alter_sys=True)
            return
        pids.append(pid)
        _tell(pid=pid)
    for descriptor in {fd for one in plan["nodes"] for fd in one["descriptors"]}:
        os.close(descriptor)
    _tell_ends(pids)


def _is_closed(descriptor: int) -> bool:
    """Tell whether the other end of a pipe is closed: nothing is ever written there."""
    return bool(select.select([descriptor], [], [], 0)[0])


def _tell(**what: int) -> None:
    with suppress(BrokenPipeError):  # no process wants to know any more
        os.write(_STDOUT, json.dumps(what).encode() + b"\n")


def _become(node: NodePlan, descriptors: Iterable[int]) -> None:
    os.setsid()
    log = os.open(node["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor, standard in ((null, _STDIN), (log, _STDOUT), (log, _STDERR)):
        os.dup2(descriptor, standard)
    for descriptor in (null, log, *descriptors):
        if descriptor not in node["descriptors"]:
            os.close(descriptor)
    _show_in_ps(node["command"])
    sys.argv = [node["module"], *node["arguments"]]


def _show_in_ps(command: Sequence[str]) -> None:
    """Write a command over the one that this process was started with; it is not longer."""
    text = b"".join(os.fsencode(word) + b"\0" for word in command)
    try:
        fields = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
        start, end = map(int, fields[_ARGUMENTS_START : _ARGUMENTS_START + 2])
        with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(text[: end - start - 1].ljust(end - start, b"\0"))
    except (OSError, ValueError):
        return  # it is for people only: `ps` shows what started the node


def _tell_ends(pids: Iterable[int]) -> None:
    """Tell of each process how it ended, until the last one has, or nobody wants to know."""
    woken, wakes = os.pipe()
    for descriptor in (woken, wakes):
        os.set_blocking(descriptor, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # a signal without a handler wakes nothing
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    left = [*pids]
    while left := [pid for pid in left if not _has_ended(pid)]:
        readable, _, _ = select.select([_STDIN, woken], [], [])
        if _STDIN in readable:
            return
        os.read(woken, _WOKEN_BYTES)


def _has_ended(pid: int) -> bool:
    found, status = os.waitpid(pid, os.WNOHANG)
    if found:
        _tell(pid=pid, status=os.waitstatus_to_exitcode(status))
    return bool(found)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
