"""Splits the bytes that an endpoint writes into messages, to which rules may apply."""

from collections.abc import Callable
from typing import Final

from quorumlog.chaos.network.splitters import Message, Splitter


class Stream:
    """The bytes of one direction of a connection, on their way to the link.

    late_s returns the delay of a message and of all bytes after it; None: they are lost.
    """

    def __init__(self, splitter: Splitter, late_s: Callable[[Message], float | None]) -> None:
        self._splitter: Final = splitter
        self._late_s: Final = late_s
        self._is_lost = False
        self._waiting_bytes = 0  # written, and neither passed on nor counted as lost

    def feed(self, data: bytes) -> list[tuple[float, bytes]]:
        """Add written bytes; return (delay in s, bytes) of the parts to pass on."""
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
        """Return the bytes of an incomplete message, because no more bytes follow."""
        if self._is_lost:
            return b""
        self._waiting_bytes = 0
        return self._splitter.rest()

    def lost_bytes(self) -> int:
        """Return the number of bytes lost since the last call."""
        if not self._is_lost:
            return 0
        lost, self._waiting_bytes = self._waiting_bytes, 0
        return lost
