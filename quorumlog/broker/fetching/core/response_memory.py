"""The memory for records that consumers asked for and have not taken yet.

One budget for the whole broker. Followers are not counted: their number bounds what they hold, and
replication must go on while consumers do not read.
Source: decision 26.
"""

from collections.abc import Callable
from typing import Final


class ResponseMemory:
    """Bytes that were read from logs for consumers, until their sockets have taken them.

    Invariant: `held` exceeds `capacity` by less than the one batch with which it was reached.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity: Final = capacity
        self.held = 0
        self.on_room: Callable[[], None] = _nothing

    @property
    def is_short(self) -> bool:
        """Whether nothing may be read for now."""
        return self.held >= self.capacity

    @property
    def is_scarce(self) -> bool:
        """Whether less than a quarter is left: fetches are answered with little."""
        return 4 * (self.capacity - self.held) < self.capacity

    def share(self) -> int:
        """Return how many bytes one fetch may read now: half of what is left; 0: none.

        Half, so that the first consumers that stop reading leave something for the others. A fetch
        whose share is not 0 may read one batch, even if that is larger.
        """
        left = self.capacity - self.held
        return max(left // 2, 1) if left > 0 else 0

    def open_account(self) -> "ResponseAccount":
        """Return an account for one connection."""
        return ResponseAccount(self)

    def add(self, size: int) -> None:
        """Count `size` bytes more, or fewer; say so if there is room again."""
        was_short = self.is_short
        self.held += size
        if was_short and not self.is_short:
            self.on_room()


class ResponseAccount:
    """What one connection holds: of the fetch under way, and of answers that were not sent yet.

    A connection has one fetch under way at most: `hand_over` is about all that was read.
    """

    __slots__ = ("_is_open", "_memory", "_read", "_unsent")

    def __init__(self, memory: ResponseMemory) -> None:
        self._memory = memory
        self._read = self._unsent = 0
        self._is_open = True

    @property
    def held(self) -> int:
        """Bytes in all."""
        return self._read + self._unsent

    def take(self, size: int) -> None:
        """Note that the fetch under way has read `size` bytes more, or fewer if negative."""
        if self._is_open:
            self._read += size
            self._memory.add(size)

    def hand_over(self) -> None:
        """Note that the fetch under way is answered."""
        self._unsent += self._read
        self._read = 0

    def sent(self) -> None:
        """Note that the socket has taken the answers, except for a small rest."""
        if self._unsent:
            size, self._unsent = self._unsent, 0
            self._memory.add(-size)

    def close(self) -> None:
        """Give everything back: the connection is gone. Later reads are not counted."""
        self._is_open = False
        self.hand_over()
        self.sent()


def _nothing() -> None:
    pass
