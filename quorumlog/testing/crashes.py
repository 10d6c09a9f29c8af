"""A crash of the program under test before each of its steps, as `kill -9` would end it.

A test cannot time a signal between two lines of a program. `killed_at` runs a function in a process
of its own, counts the lines that Python executes in the functions `within`, and ends the process by
SIGKILL before line number `step`: no `finally` runs and no buffer is written. A test that repeats
this for 1, 2, 3, ... until the function returns has crashed the program at every place.
"""

import inspect
import linecache
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from quorumlog.cluster.waits import TookTooLong

TIMEOUT_S: Final = 60.0
# Each process is a fork of one that has made these imports, and that has no other threads.
_PRELOADED: Final = (
    "pytest",
    "quorumlog.chaos.control.manual_nemesis",  # of the annotations of tests
    "quorumlog.client.sync",
    "quorumlog.cluster",
    "quorumlog.testing.crashes",
    "quorumlog.testing.topics",
)


class ProgramFailed(Exception):
    """The program under test raised, or its process ended; the message has the traceback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """The place of a crash: the line that the process did not execute any more."""

    step: int
    file: str
    line: int
    is_return: bool  # the line was executed, and the function did not return

    def __str__(self) -> str:
        """Return the place as the first line of a failure shows it."""
        when = "after" if self.is_return else "before"
        source = linecache.getline(self.file, self.line).strip()
        return f"kill -9 {when} {Path(self.file).name}:{self.line} `{source}`"


def killed_at(
    step: int,
    function: Callable[..., object],
    *arguments: object,
    within: Sequence[Callable[..., object]],
    timeout_s: float = TIMEOUT_S,
) -> Crash | None:
    """Run `function(*arguments)` in a new process, and kill it before its step number `step`.

    A step is a line that is executed, or a return, in one of the functions `within`; the first is
    number 1. Returns None if the function returned before that step. The functions are functions of
    modules, and the arguments can be pickled. Raises ValueError for a step below 1, TypeError
    for a function without lines, ProgramFailed, and TookTooLong.
    """
    if step < 1:
        raise ValueError(f"the first step is 1, not {step}")
    for one in within:
        _code_of(one)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_PRELOADED])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(step, sender, function, arguments, tuple(within)))
    with receiver:
        process.start()
        sender.close()  # the process has its own
        try:
            process.join(timeout_s)
            ended = process.exitcode
        finally:
            process.kill()
            process.join()
        sent: Crash | str | None = None
        with suppress(EOFError):  # the process has sent nothing
            sent = receiver.recv()
    name = function.__qualname__
    if ended is None:
        raise TookTooLong(f"{name} neither returned nor reached step {step} in {timeout_s:g} s")
    if isinstance(sent, Crash) and ended == -signal.SIGKILL:
        return sent
    if sent is not None or ended != 0:
        reason = sent if isinstance(sent, str) else f"its process ended with status {ended}"
        raise ProgramFailed(f"{name} failed before step {step}: {reason}")
    return None


def _run(
    step: int,
    sender: Connection,
    function: Callable[..., object],
    arguments: tuple[object, ...],
    within: tuple[Callable[..., object], ...],
) -> None:
    sys.settrace(_Steps(step, {_code_of(one) for one in within}, sender).enter)
    try:
        function(*arguments)
    except Exception:  # noqa: BLE001 - the caller raises it
        sender.send(traceback.format_exc())
        sys.exit(1)


def _code_of(function: Callable[..., object]) -> CodeType:
    code = getattr(inspect.unwrap(function), "__code__", None)
    if not isinstance(code, CodeType):
        raise TypeError(f"within: {function!r} is no function that is written in Python")
    return code


class _Steps:
    """Counts the steps of this thread, and ends the process before the last."""

    def __init__(self, step: int, codes: set[CodeType], sender: Connection) -> None:
        self._step: Final = step
        self._codes: Final = codes
        self._sender: Final = sender
        self._count = 0

    def enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Trace the frame if its function is counted: see sys.settrace."""
        del event, argument
        return self._count_step if frame.f_code in self._codes else None

    def _count_step(self, frame: FrameType, event: str, argument: Any) -> Any:
        del argument
        self._count += event in {"line", "return"}
        if self._count == self._step:
            file, line = frame.f_code.co_filename, frame.f_lineno
            is_return = event == "return"
            self._sender.send(Crash(step=self._step, file=file, line=line, is_return=is_return))
            os.kill(os.getpid(), signal.SIGKILL)
        return self._count_step
