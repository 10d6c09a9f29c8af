"""The progress of a node's start or stop: a text in a file beside its `node.pid`.

The first line is the progress. The lines behind it give the reasons why the node is not ready.
A process that ends by itself writes its exit status in the end. The process that waits for the node
reads the file. The control listener cannot serve this text: a node may also be slow before it
listens, or after it has stopped.
docs/decisions/0044-node-starts.md
"""

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Final

from quorumlog.storage.errors import NO_ROOM

INTERVAL_S: Final = 0.25
_FINAL: Final = "it cannot get ready: "
_ENDED: Final = "ended with status "


class Obstacles:
    """The reasons why a node is not ready, by subject. Any part of the node may add one."""

    def __init__(self) -> None:
        self._reasons: Final[dict[str, str]] = {}

    def note(self, about: str, reason: str, *, is_final: bool = False) -> None:
        """Set the reason of a subject: a sentence without a full stop.

        `is_final`: the node can never get ready: a process that waits for it should give up.
        """
        line = " ".join(reason.split())
        self._reasons[about] = f"{_FINAL}{line}" if is_final else line

    def show(self, about: str, reason: str | None) -> None:
        """Set the reason of a subject, or clear it (None)."""
        if reason is None:
            self.clear(about)
        else:
            self.note(about, reason)

    def clear(self, about: str) -> None:
        """Remove the reason of a subject."""
        self._reasons.pop(about, None)

    def below(self, progress: str) -> str:
        """Return the text of the file with this progress; empty without progress and reasons."""
        return "\n".join([progress, *self._reasons.values()])


def reasons_in(text: str) -> list[str]:
    """Return the reasons in the text of a file."""
    return [line for line in text.splitlines()[1:] if line and not line.startswith(_ENDED)]


def final_reason_in(text: str) -> str | None:
    """Return why the node cannot get ready; None: it may."""
    return next((line for line in reasons_in(text) if line.startswith(_FINAL)), None)


def note_end(path: Path, status: int) -> None:
    """Write the exit status, below an empty progress. A killed process does not write it.

    Errors of the disk are ignored: the node then counts as killed.
    """
    with suppress(OSError), _blank(path) as file:
        file.write(f"\n{_ENDED}{status}\n".encode())


def exit_status_in(text: str) -> int | None:
    """Return the last process's exit status from the text of its file; None without one."""
    line = text.strip()
    number = line.removeprefix(_ENDED)
    return int(number) if line != number and number.isdecimal() else None


def progress_file(pid_file: Path) -> Path:
    """Return the file of the node with this `node.pid`."""
    return pid_file.with_suffix(".progress")


@contextmanager
def suppress_no_room() -> Iterator[None]:
    """Suppress the error of a full disk, and no other."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise


def blank(path: Path) -> None:
    """Blank the text of an earlier process.

    The file keeps its size, by blank lines, so that it has space on a full disk. Raises OSError.
    """
    with suppress_no_room():
        _blank(path).close()


async def _begun(path: Path) -> FileIO:
    import asyncio

    while True:
        with suppress_no_room():
            return _blank(path)
        await asyncio.sleep(INTERVAL_S)


def _blank(path: Path) -> FileIO:
    file = FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+")
    try:
        with suppress_no_room():
            os.pwrite(file.fileno(), b"\n" * max(1, os.fstat(file.fileno()).st_size), 0)
    except BaseException:
        file.close()
        raise
    return file


async def report(
    path: Path, progress: Callable[[], str], is_awaited: Callable[[], Awaitable[object]]
) -> None:
    """Write each new, non-empty text of `progress`, until cancelled. Raises OSError.

    `is_awaited` returns while another process waits for the node: for its start, or for its stop.
    On a full disk it writes as soon as there is space.

    The file is overwritten in place: a reader may see a half overwritten text. Some file systems
    would wait for the disk to rename a new file or to truncate the old one, and a slow disk may be
    the reason why the node is slow.
    """
    import asyncio  # not at the top: the process that waits for a node does not need it

    told = ""
    with await _begun(path) as file:
        while True:
            text = progress()
            if text not in {"", told}:
                content = text.encode()
                with suppress_no_room():
                    os.pwrite(file.fileno(), content, 0)
                    file.truncate(len(content))
                    told = text
            await asyncio.sleep(INTERVAL_S)
            await is_awaited()
