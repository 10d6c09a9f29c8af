"""The requests that wait on one replica: for a commit, for its disk, or for a low watermark."""

from typing import Final

from quorumlog.broker.partitions.core.deletions import (
    DeletionQueue,
    DeletionResult,
    WaitingDeletion,
)
from quorumlog.broker.partitions.core.purgatory import Deadlines, PendingProduce, ProduceQueue
from quorumlog.broker.partitions.core.reads import Reads
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Offset


class WaitingRequests:
    """Completes the waiting requests of one replica; `Reads` gives the outcome of a commit."""

    __slots__ = ("_serving", "commits", "deletions", "flushes")

    def __init__(
        self,
        serving: Reads,
        deadlines: Deadlines[PendingProduce],
        deletion_deadlines: Deadlines[WaitingDeletion],
    ) -> None:
        self._serving: Final = serving
        self.commits: Final = ProduceQueue(deadlines)
        self.flushes: Final = ProduceQueue(deadlines)  # acks=1, if these wait for the disk
        self.deletions: Final = DeletionQueue(deletion_deadlines)

    def fail(self, error_code: ErrorCode) -> None:
        """Answer every request with an error: whether its records get committed is undecided."""
        for wait in (*self.commits.fail(), *self.flushes.fail()):
            wait.done(error_code, wait.left)
        for deletion in self.deletions.fail():
            deletion.done(DeletionResult(error_code))

    def maybe_complete_deletions(self) -> None:
        """Answer the deletions up to the low watermark."""
        if self.deletions.waiting:  # nearly never
            low_watermark = self._serving.low_watermark()
            for deletion in self.deletions.complete(low_watermark):
                deletion.done(DeletionResult(ErrorCode.NONE, low_watermark))

    def complete_below(self, high_watermark: Offset) -> None:
        """Answer the produces whose records are committed."""
        completed = self.commits.complete_below(high_watermark)
        if completed:
            error_code = self._serving.commit_outcome()
            for wait, count in completed:
                wait.done(error_code, count)

    def complete_flushed(self, flushed_offset: Offset) -> None:
        """Answer the produces whose records are on disk."""
        for wait, count in self.flushes.complete_below(flushed_offset):
            wait.done(ErrorCode.NONE, count)
