"""Deletions of records: which are refused, and which wait for the low watermark.

DeleteRecords (KIP-107) moves the leader's log start at once. The response follows when the *low
watermark*, the least log start of the leader and of its live followers, has reached the offset.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from quorumlog.broker.partitions.core.purgatory import Deadlines, Wait
from quorumlog.settings.topics import TopicConfig
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import UNKNOWN_OFFSET, Offset

TO_HIGH_WATERMARK: Final = -1  # in a request: delete all committed records


def policy_refusal(config: TopicConfig) -> ErrorCode:
    """Return the error if a topic of this configuration forbids DeleteRecords, or NONE.

    A topic that is only compacted forbids it: the newest value of every key must stay.
    """
    return ErrorCode.NONE if "delete" in config.policies else ErrorCode.POLICY_VIOLATION


class DeletionResult(NamedTuple):
    """The outcome of one deletion; the low watermark is -1 if the request was refused."""

    error_code: ErrorCode
    low_watermark: Offset = UNKNOWN_OFFSET


DeletionDone = Callable[[DeletionResult], None]
"""Called once with the outcome: within the call that deletes, or later."""


@dataclass(slots=True, eq=False)
class WaitingDeletion(Wait):
    """A deletion until the low watermark of its partition reaches `required_offset`.

    `low_watermark` is the low watermark when it began to wait.
    """

    required_offset: Offset
    low_watermark: Offset
    done: DeletionDone


class DeletionQueue:
    """The deletions that wait on one partition (`waiting`): few, unordered."""

    __slots__ = ("_deadlines", "waiting")

    def __init__(self, deadlines: Deadlines[WaitingDeletion]) -> None:
        self._deadlines = deadlines
        self.waiting: list[WaitingDeletion] = []

    def add(self, wait: WaitingDeletion) -> bool:
        """Add a deletion; True if its deadline is now the earliest of all."""
        self.waiting.append(wait)
        return self._deadlines.add(wait)

    def complete(self, low_watermark: Offset) -> list[WaitingDeletion]:
        """End and return the deletions that the low watermark reaches; drop the timed out."""
        reached = [wait for wait in self.waiting if wait.required_offset <= low_watermark]
        self.waiting = [
            wait
            for wait in self.waiting
            if wait.required_offset > low_watermark and not wait.is_over
        ]
        return [wait for wait in reached if self._deadlines.end(wait)]

    def fail(self) -> list[WaitingDeletion]:
        """End and return all deletions."""
        failed, self.waiting = self.waiting, []
        return [wait for wait in failed if self._deadlines.end(wait)]
