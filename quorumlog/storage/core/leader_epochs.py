"""The start offset of each leader epoch in a log: they show where two logs diverge.

Sources: KIP-101, KIP-279; Kafka's `LeaderEpochFileCache`.
"""

from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple

from quorumlog.invariants import require
from quorumlog.wire.codec.identifiers import NO_EPOCH, UNKNOWN_OFFSET, Epoch, Offset


class EpochEntry(NamedTuple):
    """The first offset that was, or would be, written in `epoch`."""

    epoch: Epoch
    start_offset: Offset


class EpochEnd(NamedTuple):
    """An epoch and its end offset, exclusive; (-1, -1) if the log cannot determine them."""

    epoch: Epoch
    end_offset: Offset


UNKNOWN_END = EpochEnd(NO_EPOCH, UNKNOWN_OFFSET)


@dataclass(frozen=True, slots=True)
class LeaderEpochs:
    """The epochs of one log, oldest first.

    Invariant: epochs and start offsets both rise strictly.
    """

    entries: tuple[EpochEntry, ...] = ()

    @property
    def latest_epoch(self) -> Epoch:
        """The newest epoch; NO_EPOCH if there is none."""
        return self.entries[-1].epoch if self.entries else NO_EPOCH

    def epoch_at(self, offset: int) -> Epoch:
        """Return the epoch in which `offset` was, or would be, written; NO_EPOCH if below all."""
        slot = bisect_right(self.entries, offset, key=lambda entry: entry.start_offset)
        return self.entries[slot - 1].epoch if slot else NO_EPOCH

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """Return the largest entry's epoch <= `epoch`, and its end offset.

        An epoch older than every entry ends where the first entry starts. The end of an epoch
        newer than every entry is unknown.
        """
        if epoch == NO_EPOCH:
            return UNKNOWN_END
        if epoch == self.latest_epoch:
            return EpochEnd(Epoch(epoch), Offset(log_end_offset))
        higher = bisect_right(self.entries, epoch, key=lambda entry: entry.epoch)
        if higher == len(self.entries):
            return UNKNOWN_END
        floor_epoch = self.entries[higher - 1].epoch if higher else Epoch(epoch)
        return EpochEnd(floor_epoch, self.entries[higher].start_offset)

    def assigned(self, epoch: int, start_offset: int) -> "LeaderEpochs":
        """Return a copy with (epoch, start_offset), without the entries that contradict it.

        An epoch that is already the latest keeps its start, unless `start_offset` is smaller.
        """
        require(epoch >= 0 and start_offset >= 0, "an epoch and its start are not negative")
        if self.entries:
            latest = self.entries[-1]
            if epoch == latest.epoch and start_offset >= latest.start_offset:
                return self
        keep = len(self.entries)
        while keep and (
            self.entries[keep - 1].epoch >= epoch
            or self.entries[keep - 1].start_offset >= start_offset
        ):
            keep -= 1
        entry = EpochEntry(Epoch(epoch), Offset(start_offset))
        return LeaderEpochs((*self.entries[:keep], entry))

    def truncated_from_end(self, end_offset: int) -> "LeaderEpochs":
        """Return a copy without the epochs that start at or after `end_offset`."""
        if not self.entries or self.entries[-1].start_offset < end_offset:
            return self
        kept = tuple(entry for entry in self.entries if entry.start_offset < end_offset)
        return LeaderEpochs(kept)

    def truncated_from_start(self, start_offset: int) -> "LeaderEpochs":
        """Return a copy from `start_offset` on: the epoch of that offset now starts there."""
        if not self.entries or self.entries[0].start_offset >= start_offset:
            return self
        slot = bisect_right(self.entries, start_offset, key=lambda entry: entry.start_offset)
        first = EpochEntry(self.entries[slot - 1].epoch, Offset(start_offset))
        return LeaderEpochs((first, *self.entries[slot:]))
