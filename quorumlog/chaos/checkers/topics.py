"""The sequential model of a topic's name: it exists or not, as creations and deletions find it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from quorumlog.chaos.checkers.linearizable import linearizable
from quorumlog.chaos.checkers.model import Call, State

DONE: Final = 1
REFUSED: Final = (
    0  # because of what there is: a creation of what exists, a deletion of what does not
)


@dataclass(frozen=True, slots=True)
class TopicName:
    """create R, delete R: R is DONE, or REFUSED. The state is whether the topic exists."""

    name: str = "topics"
    operations: frozenset[str] = frozenset({"create", "delete"})
    reads: frozenset[str] = frozenset()
    initial: State = False

    def step(self, state: Any, call: Call) -> Iterable[State]:
        """Return whether the topic exists after the call; nothing if the call is impossible."""
        wanted = call.f == "create"
        is_refused = state == wanted
        if not call.is_known or call.values[0] == (REFUSED if is_refused else DONE):
            return (wanted,)
        return ()


CHECKER: Final = linearizable(TopicName())
