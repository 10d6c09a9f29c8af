"""What an endpoint writes, cut into messages, so that rules can pick some of them."""

from collections.abc import Callable
from typing import Final

from quorumlog.chaos.network.splitters import Message, Splitter


class Stream:
    """The bytes of one direction of a connection, on their way to the link.

    late_s: says how late a message is, and all that follows it; None: they are lost.
    """

    def __init__(self, splitter: Splitter, late_s: Callable[[Message], float | None]) -> None:
        self._splitter: Final = splitter
        self._late_s: Final = late_s
        self._is_lost = False
        self._waiting_bytes = 0  # that were written, and have neither passed nor been lost

    def feed(self, data: bytes) -> list[tuple[float, bytes]]:
        """Take what is written; return what passes: after how long, and which bytes."""
        self._waiting_bytes += len(data)
        if self._is_lost:
            return []
        parts: list[tuple[float, list[bytes | memoryview]]] = [(0.0, [])]
        for piece in self._splitter.feed(data):
            if piece.message is not None:
                late_s = self._late_s(piece.message)
                if late_s is None:
                    self._is_lost = True
                    break
                if late_s:
                    parts.append((late_s, []))
            self._waiting_bytes -= len(piece.content)
            parts[-1][1].append(piece.content)
        return [(late_s, b"".join(contents)) for late_s, contents in parts if contents]

    def rest(self) -> bytes:
        """Return what waits for the rest of its message: none will come."""
        if self._is_lost:
            return b""
        self._waiting_bytes = 0
        return self._splitter.rest()

    def lost_bytes(self) -> int:
        """Return how many bytes have been lost since the last call."""
        if not self._is_lost:
            return 0
        lost, self._waiting_bytes = self._waiting_bytes, 0
        return lost
