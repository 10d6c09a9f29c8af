"""Compares a file of leader epochs without a checksum with a segment of its log.

A few batch headers suffice: the first, the last, and those on both sides of each change of epoch.
A file that contradicts them is damaged, and rebuilt from the log.
docs/decisions/0014-whole-logs.md
"""

from typing import Final

from quorumlog.storage.io.batch_scan import BrokenSegment
from quorumlog.storage.io.epoch_checkpoint import LeaderEpochCache
from quorumlog.storage.io.segment import Segment

EPOCHS_CHECKED: Final = 10  # the newest epochs


def contradiction(epochs: LeaderEpochCache, segment: Segment) -> str | None:
    """Describe a batch whose epoch differs from the file's; None if there is no such batch.

    The segment is loaded: the last segment that recovery has not read. Its readers report damage
    of it. Raises OSError.
    """
    if not epochs.entries:
        return None
    start = epochs.entries[0].start_offset  # it may lie within a batch, as the log's start may
    try:
        end = segment.index.next_offset
        offsets = {segment.base_offset, end - 1}
        for _, start_offset in epochs.entries[-EPOCHS_CHECKED:]:
            offsets |= {start_offset - 1, start_offset}
        for offset in sorted(offsets):
            found = segment.find(offset) if segment.base_offset <= offset < end else None
            if found is None or found[1].last_offset < start:
                continue
            header = found[1]
            for at in (max(header.base_offset, start), header.last_offset):
                epoch = epochs.epoch_at(at)
                if epoch != header.leader_epoch:
                    return f"offset {at} is of epoch {header.leader_epoch}, and not of {epoch}"
    except BrokenSegment:
        pass
    return None
