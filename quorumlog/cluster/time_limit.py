"""A time limit for nodes that start or stop: each progress of a node restarts it.

docs/decisions/0044-node-starts.md
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from quorumlog.node.progress import final_reason_in, progress_file, reasons_in

LOOK_EVERY_S: Final = 0.1
SAY_EVERY_S: Final = 5.0
Say = Callable[[str], None]  # shows one line to the user


def say_nothing(_: str) -> None:
    """Drop the line: no user waits."""


class TimeLimit:
    """Over when none of the nodes has reported progress for `timeout_s`.

    `pid_files`: the `node.pid` of each awaited node, by id. `say` receives the progress, at most
    every SAY_EVERY_S.
    """

    def __init__(self, timeout_s: float, pid_files: Mapping[int, Path], say: Say) -> None:
        self.timeout_s: Final = timeout_s
        self._files: Final = {node_id: progress_file(path) for node_id, path in pid_files.items()}
        self._say: Final = say
        self._texts = {node_id: self._read(node_id).partition("\n")[0] for node_id in self._files}
        self._told: Final[set[int]] = set()  # nodes whose texts are from this start or stop
        now_s = time.monotonic()
        self._looked_s = self._renewed_s = self._said_s = now_s

    def is_over(self) -> bool:
        """Check the progress, though not at every call; return whether the time is over."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= LOOK_EVERY_S or now_s - self._renewed_s >= self.timeout_s:
            self._looked_s = now_s
            for node_id in self._files:
                self._look(node_id, now_s)
        return now_s - self._renewed_s >= self.timeout_s

    def _look(self, node_id: int, now_s: float) -> None:
        text = self._read(node_id).partition("\n")[0]
        if text in {"", self._texts[node_id]}:
            return
        self._texts[node_id] = text
        self._told.add(node_id)
        self._renewed_s = now_s
        if now_s - self._said_s >= SAY_EVERY_S:
            self._said_s = now_s
            self._say(f"waiting for node {node_id}: {text}")

    def say_killed(self, node_id: int) -> None:
        """Show that the node was killed, since the time is over."""
        self._say(
            f"node {node_id} {self.lack(node_id)}, and was killed: "
            "its logs will be checked at its next start"
        )

    def lack(self, node_id: int) -> str:
        """Return the missing progress of a node, as a text to follow "node 1"."""
        last = f' after "{self._texts[node_id]}"' if node_id in self._told else ""
        return f"made no progress for {self.timeout_s:g} s{last}"

    def reasons(self, node_id: int) -> list[str]:
        """Return the node's own reasons why it is not ready."""
        return reasons_in(self._read(node_id))

    def final_reason(self, node_id: int) -> str | None:
        """Return the node's own reason why it can never get ready; None: it may."""
        return final_reason_in(self._read(node_id))

    def _read(self, node_id: int) -> str:
        try:
            return self._files[node_id].read_text(errors="replace")
        except OSError:  # the node has not created it yet, or its directory is gone
            return ""
