"""The sequential model of a topic's name: it exists or not, as creations and deletions find it.

A refusal proves less than a success. A broker forwards a change to the controller, and sends it
again if the answer was lost: the change is then refused because it was made already. So a refused
creation may have created the topic itself; either way, the topic exists after it.
"""

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
        if call.is_known and call.values[0] == DONE and state == wanted:
            return ()
        return (wanted,)


CHECKER: Final = linearizable(TopicName())
