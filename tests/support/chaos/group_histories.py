"""Histories of a group, and of lookups, written by hand."""

from collections.abc import Sequence
from typing import Self

from quorumlog.chaos.history import UNKNOWN_OFFSET, Message
from tests.support.chaos.hand_made_histories import History

KEY = "x-0"


class Group(History):
    """A builder of a history of one group that reads one key; one member acts at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._process = 4
        self._generation = 0
        self._is_new = False

    def sent(self, *values: int) -> Self:
        super().sent(*values)
        return self

    def member(self, process: int, generation: int) -> Self:
        """Let a new member join, and own the key from its next delivery on.

        A generation below 0: it joins by the consumer protocol.
        """
        self.op(process, "join")
        if generation < 0:
            self.ops[-1].micros = [Message(KEY, UNKNOWN_OFFSET, generation, f="joined")]
        return self.rebalanced(process, generation)

    def rebalanced(self, process: int, generation: int) -> Self:
        """Give the key to a member, in a new generation."""
        self._process, self._generation, self._is_new = process, generation, True
        return self

    def deliver(self, *pairs: tuple[int, int]) -> Self:
        """Deliver (offset, value) pairs to the owner."""
        records = [Message(KEY, offset, value, f="group_poll") for offset, value in pairs]
        if self._is_new:
            records.insert(0, Message(KEY, UNKNOWN_OFFSET, self._generation, f="assigned"))
        self._is_new = False
        self.op(self._process, "group_poll")
        self.ops[-1].micros = records
        return self

    def commit(self, offset: int, *, outcome: str = "ok") -> Self:
        self.op(self._process, "commit", [(KEY, offset, self._generation)], outcome)
        return self

    def committed(self, offset: int) -> Self:
        self.op(self._process, "committed", [(KEY, offset, 0)])
        return self


def lookups(
    times: Sequence[int], *, final: Sequence[tuple[int, int]], end: int, latest: int
) -> History:
    """Send records of these times, read (offset, time) pairs at last, and look up the log's end."""
    history = History().sent(*times).final(*final, end=end)
    history.op(10, "final_list_offsets")
    history.ops[-1].micros = [Message(KEY, latest, 0, f="latest")]
    return history
