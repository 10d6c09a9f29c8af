"""Ends a node when the process that started it has ended.

The node holds the read end of a pipe, and only that process the write end. The kernel closes the
write end however the process ends; the node then stops in order. This works on every POSIX system,
and, unlike Linux's PR_SET_PDEATHSIG, does not depend on the thread that started the node.
"""

import asyncio
import logging
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

from quorumlog.node.lock import is_held

_logger: Final = logging.getLogger("quorumlog.node")


class Parent:
    """The process that started this node, if the node is to end with it.

    `descriptor`: the read end of its pipe, or None: then this class does nothing.
    `temporary_directory`: the directory of the cluster, if it must be removed with that process.
    """

    def __init__(
        self,
        descriptor: int | None,
        *,
        pid_file: Path | None = None,
        temporary_directory: Path | None = None,
    ) -> None:
        self._descriptor: Final = descriptor
        self._pid_file: Final = pid_file
        self._temporary_directory: Final = temporary_directory
        if descriptor is not None:
            os.set_blocking(descriptor, False)

    @property
    def has_ended(self) -> bool:
        """Whether the write end of the pipe is closed."""
        if self._descriptor is None:
            return False
        try:
            return not os.read(self._descriptor, 1)
        except BlockingIOError:
            return False

    def watch(self, ended: Callable[[], None]) -> None:
        """Call `ended` when the process has ended."""
        if self._descriptor is not None:
            loop = asyncio.get_running_loop()
            loop.add_reader(self._descriptor, self._look, loop, self._descriptor, ended)

    def _look(
        self, loop: asyncio.AbstractEventLoop, descriptor: int, ended: Callable[[], None]
    ) -> None:
        if self.has_ended:
            loop.remove_reader(descriptor)
            _logger.warning("the process that started this node has ended: the node stops")
            ended()

    def clean_up(self) -> None:
        """Clean up in place of the ended process, as the last act of a node.

        Paused nodes of the cluster are continued, since a stopped process cannot watch its pipe. A
        temporary directory is removed; each node that still writes there removes it again at its
        end.
        """
        if not self.has_ended:
            return
        if self._pid_file is not None:
            _wake_siblings(self._pid_file)
        if self._temporary_directory is not None:
            shutil.rmtree(self._temporary_directory, ignore_errors=True)


def _wake_siblings(pid_file: Path) -> None:
    for sibling in sorted(pid_file.parent.parent.glob(f"*/{pid_file.name}")):
        if sibling == pid_file:  # closing it would release this node's own lock
            continue
        try:
            with sibling.open() as file:
                pid = file.read().strip()
                if is_held(file.fileno()) and pid.isdigit():
                    os.kill(int(pid), signal.SIGCONT)
        except OSError as error:  # it has ended, or its directory is gone
            _logger.info("%s: %s", sibling, error)
