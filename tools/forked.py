"""Tests of the product in processes of their own: pytest collects once, each process begins there.

`tools.recall_tests` and `tools.mutate` execute the same collected tests many times, each time with
another bug in the product. A process ends with its bug: nothing is restored.
"""

import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Final

import pytest

Work = Callable[["Connection[Any, Any]"], None]
BROKEN_PIPE: Final = (EOFError, BrokenPipeError, ConnectionResetError)


class ProcessFailed(Exception):
    """`work` has raised; with its traceback."""


class Forked:
    """A process that carries out `work`, with temporary files of its own; a context.

    `connection` is the end of a pipe, `work` receives the other end.
    """

    def __init__(self, work: Work) -> None:
        self.connection, theirs = Pipe()
        self._scratch: Final = tempfile.mkdtemp(prefix="quorumlog-forked-")
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid: Final = os.fork()
        if self._pid == 0:
            self._carry_out(work, theirs)
        theirs.close()

    def receive(self) -> Any:
        """Wait for an object from `work`. Raises ProcessFailed, or an error of BROKEN_PIPE."""
        received = self.connection.recv()
        if isinstance(received, ProcessFailed):
            raise received
        return received

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, *_: object) -> None:
        """End the process, and the processes that it has started."""
        self.connection.close()
        for end in (os.killpg, os.kill):  # a process that has just begun leads no group yet
            with suppress(ProcessLookupError):
                end(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _carry_out(self, work: Work, connection: "Connection[Any, Any]") -> None:
        status = 1
        try:
            os.setsid()
            self.connection.close()
            os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.tempdir = self._scratch
            nowhere = os.open(os.devnull, os.O_RDWR)
            for handle in (0, 1, 2):
                os.dup2(nowhere, handle)
            work(connection)
            status = 0
        except Exception:  # noqa: BLE001 - the outermost frame: another process raises it
            with suppress(OSError):  # nobody receives it
                connection.send(ProcessFailed(traceback.format_exc()))
        finally:
            connection.close()
            os._exit(status)


class Executed:
    """A plugin of pytest that executes single tests, and notes the type of the first error."""

    def __init__(self) -> None:
        self._failure: str | None = None

    def pytest_exception_interact(self, call: pytest.CallInfo[Any]) -> None:
        """Note the error of a failing test."""
        if call.excinfo is not None:
            self._failure = self._failure or call.excinfo.typename

    def execute(self, item: pytest.Item, following: pytest.Item | None) -> str | None:
        """Execute a test; return its error, None if it passes. following: for shared fixtures."""
        self._failure = None
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        return self._failure


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    return sum(os.times()[:4])
