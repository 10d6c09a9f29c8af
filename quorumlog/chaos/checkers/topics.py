"""The sequential model of a topic's name: it exists or not, as creations and deletions find it.

A refusal proves as much as a success: the topic was there, or was not, and the refused change did
not make it so. A cluster that sends a change again after a lost answer fails this check, because it
refuses what it has done itself.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from quorumlog.chaos.checkers.linearizable import linearizable
from quorumlog.chaos.checkers.model import Call, State
from quorumlog.chaos.checkers.texts import TOPICS
from quorumlog.chaos.history.model import DONE


@dataclass(frozen=True, slots=True)
class TopicName:
    """create R, delete R: R is DONE, or REFUSED. The state is whether the topic exists."""

    name: str = TOPICS
    operations: frozenset[str] = frozenset({"create", "delete"})
    reads: frozenset[str] = frozenset()
    initial: State = False

    def step(self, state: Any, call: Call) -> Iterable[State]:
        """Return whether the topic exists after the call; nothing if the call is impossible."""
        wanted = call.f == "create"
        if call.is_known and (call.values[0] == DONE) == (state == wanted):
            return ()
        return (wanted,)


CHECKER: Final = linearizable(TopicName())
