"""The sequential model of a topic's name: whether it exists, as creations and deletions show.

A refusal proves as much as a success: the topic existed, or did not, and not because of the refused
change. A cluster that retries a change after a lost response fails this check, because it refuses a
change that it made itself.
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
        """Return whether the topic exists after the call; () if the call is impossible."""
        wanted = call.f == "create"
        if call.is_known and (call.values[0] == DONE) == (state == wanted):
            return ()
        return (wanted,)


CHECKER: Final = linearizable(TopicName())
