"""What a node that starts or stops says of its progress: a text in a file beside its `node.pid`.

The process that waits for the node reads it. It is no answer of the control listener, which does
not serve yet, or no more, at every moment at which a node may be slow.
docs/decisions/0052-time-limits-of-nodes-are-renewed-by-progress.md
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

INTERVAL_S: Final = 0.25


def progress_file(pid_file: Path) -> Path:
    """Return the file of the node with this `node.pid`."""
    return pid_file.with_suffix(".progress")


async def report(path: Path, progress: Callable[[], str]) -> None:
    """Write each new text of `progress`, but no empty one, until cancelled. Raises OSError.

    The file is overwritten in place: a reader may see a text that is half overwritten. To rename a
    new file, or to empty one that holds a text, makes some file systems wait for the disk, which
    may be what keeps the node busy.
    """
    import asyncio  # the process that waits for a node has no use for it

    told = ""
    with path.open("wb", buffering=0) as file:
        while True:
            text = progress()
            if text not in {"", told}:
                content = text.encode()
                os.pwrite(file.fileno(), content, 0)
                file.truncate(len(content))
                told = text
            await asyncio.sleep(INTERVAL_S)
