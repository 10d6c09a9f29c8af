"""The metadata log in outline: where it ends, where its epochs start, how far it is durable."""

from collections.abc import Iterable

from quorumlog.invariants import require
from quorumlog.storage.core.leader_epochs import EpochEntry, LeaderEpochs
from quorumlog.wire.codec.identifiers import Epoch, Offset


class LogOutline:
    """The log of one node, without its bytes. The three offsets are exclusive ends.

    Only what is below `flushed_offset` survives power loss; only what is below `high_watermark`
    is known to be committed. Snapshots (KIP-630) would give it a start offset, too.
    """

    def __init__(self) -> None:
        self.end_offset = self.flushed_offset = self.high_watermark = Offset(0)
        self.epochs = LeaderEpochs()
        self.is_flushing = False  # from `FlushLog` to `LogFlushed`

    @property
    def last_epoch(self) -> Epoch:
        """The epoch of the last record; 0 if there is none."""
        return Epoch(max(self.epochs.latest_epoch, 0))

    @property
    def is_durable(self) -> bool:
        """Whether power loss would take nothing from the log."""
        return self.flushed_offset == self.end_offset

    def epoch_end(self, epoch: Epoch) -> tuple[Epoch, Offset]:
        """Find the largest epoch of the log that is <= `epoch`, and its (exclusive) end.

        Epoch 0, in which there are no records, ends at 0.
        """
        found = self.epochs.end_offset_for(min(epoch, self.last_epoch), self.end_offset)
        if found.end_offset <= 0 or not self.epochs.entries:
            return Epoch(0), Offset(0)
        return found.epoch, found.end_offset

    def open(
        self,
        end_offset: Offset,
        flushed_offset: Offset,
        epoch_starts: Iterable[tuple[Epoch, Offset]],
    ) -> None:
        """Start from what is on the disk; nothing is known to be committed."""
        self.epochs = LeaderEpochs(tuple(EpochEntry(*start) for start in epoch_starts))
        self.end_offset, self.flushed_offset = end_offset, min(flushed_offset, end_offset)

    def append(self, end_offset: Offset, epoch_starts: Iterable[tuple[Epoch, Offset]] = ()) -> None:
        """Make the log end at `end_offset`; the new records start these epochs, oldest first."""
        require(end_offset > self.end_offset, "an append makes the log longer")
        for epoch, start_offset in epoch_starts:
            if epoch > self.last_epoch:
                self.epochs = self.epochs.assigned(epoch, start_offset)
        self.end_offset = end_offset

    def truncate(self, end_offset: Offset) -> None:
        """Drop the records at and above `end_offset`."""
        require(not self.is_flushing, "10: nothing is truncated while a flush is under way")
        self.epochs = self.epochs.truncated_from_end(end_offset)
        self.end_offset = end_offset
        self.flushed_offset = min(self.flushed_offset, end_offset)

    def flushed(self, flushed_offset: Offset) -> None:
        """Note that the flush has ended: all below `flushed_offset` is durable."""
        require(self.is_flushing, "a flush was ordered")
        require(flushed_offset <= self.end_offset, "what was flushed was in the log")
        self.is_flushing = False
        self.flushed_offset = max(self.flushed_offset, flushed_offset)
