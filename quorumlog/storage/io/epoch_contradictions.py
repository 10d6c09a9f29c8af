"""Whether a file of leader epochs that has no checksum fits a segment of its log.

A few headers show it, so that the log is not read: the first and the last one, and those where one
epoch ends and the next one begins. A file that does not fit is damaged, and rebuilt from the log.
docs/decisions/0147-a-replica-is-believed-if-its-log-can-be-believed.md
"""

from typing import Final

from quorumlog.storage.io.batch_scan import BrokenSegment
from quorumlog.storage.io.epoch_checkpoint import LeaderEpochCache
from quorumlog.storage.io.segment import Segment

EPOCHS_CHECKED: Final = 10  # the newest ones


def contradiction(epochs: LeaderEpochCache, segment: Segment) -> str | None:
    """Return which batch is of another epoch than the file says, if one is.

    The segment is the last one that recovery has not read, and is loaded. Where it is damaged, its
    readers say so. Raises OSError.
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
