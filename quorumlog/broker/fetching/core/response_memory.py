"""The memory budget for fetched records that consumers have not received yet.

One budget for the whole broker. Followers are not counted: their number bounds their memory, and
replication must continue while consumers do not read.
Source: decision 39.
"""

from collections.abc import Callable
from typing import Final


class ResponseMemory:
    """Counts the bytes that were read for consumers, until their sockets have taken them.

    Invariant: `held` exceeds `capacity` by less than the last batch that was read.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity: Final = capacity
        self.held = 0
        self.on_room: Callable[[], None] = lambda: None

    @property
    def is_short(self) -> bool:
        """Whether reads must wait for memory."""
        return self.held >= self.capacity

    @property
    def is_scarce(self) -> bool:
        """Whether less than a quarter is left: fetches are answered with few bytes."""
        return 4 * (self.capacity - self.held) < self.capacity

    def share(self) -> int:
        """Return how many bytes one fetch may read now: half of the rest; 0: none.

        Half, so that the first consumers that stop reading leave room for the others. A fetch with
        a share above 0 may read one batch, even a larger one.
        """
        left = self.capacity - self.held
        return max(left // 2, 1) if left > 0 else 0

    def open_account(self) -> "ResponseAccount":
        """Return an account for one connection."""
        return ResponseAccount(self)

    def add(self, size: int) -> None:
        """Add `size` bytes (negative: release them); call `on_room` when there is room again."""
        was_short = self.is_short
        self.held += size
        if was_short and not self.is_short:
            self.on_room()


class ResponseAccount:
    """The bytes of one connection: read by the fetch under way, and in responses not sent yet.

    A connection has at most one fetch under way: `hand_over` applies to all bytes read.
    """

    __slots__ = ("_is_open", "_memory", "_read", "_unsent")

    def __init__(self, memory: ResponseMemory) -> None:
        self._memory = memory
        self._read = self._unsent = 0
        self._is_open = True

    @property
    def held(self) -> int:
        """All bytes of the connection."""
        return self._read + self._unsent

    def take(self, size: int) -> None:
        """Count `size` bytes that the fetch under way has read; negative: released."""
        if self._is_open:
            self._read += size
            self._memory.add(size)

    def hand_over(self) -> None:
        """Count the bytes of the fetch under way as unsent: its response is complete."""
        self._unsent += self._read
        self._read = 0

    def sent(self) -> None:
        """Release the unsent bytes: the socket has taken the responses, except for a small rest."""
        if self._unsent:
            size, self._unsent = self._unsent, 0
            self._memory.add(-size)

    def close(self) -> None:
        """Release everything: the connection is closed. Later reads are not counted."""
        self._is_open = False
        self.hand_over()
        self.sent()
