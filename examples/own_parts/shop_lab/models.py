"""A sequential model: a latch is set, and stays set."""

from collections.abc import Iterable
from dataclasses import dataclass

from quorumlog.chaos.checkers.model import Call, State


@dataclass(frozen=True)
class Latch:
    """`set` sets it, `look` returns whether it is set."""

    name: str = "latch"
    operations: frozenset[str] = frozenset({"set", "look"})
    reads: frozenset[str] = frozenset({"look"})
    initial: State = False

    def step(self, state: State, call: Call) -> Iterable[State]:
        """Return the states after the call; none if it cannot have happened."""
        if call.f == "set":
            return (True,)
        return (state,) if state == call.values[0] else ()


LATCH = Latch()
