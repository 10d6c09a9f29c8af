"""The divergence of two logs: the leader's check of a fetch, and a follower's truncation.

Sources: KIP-101, KIP-279, KIP-320, KIP-595 (divergence in Fetch), KAFKA-12996.
"""

from typing import Protocol

from quorumlog.broker.partitions.core.data_path import DivergingEpoch
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_EPOCH, Epoch, Offset


class EpochHistory(Protocol):
    """The leader epochs of a log and their start offsets. The core only reads it."""

    @property
    def latest_epoch(self) -> Epoch:
        """The last epoch, with or without records; NO_EPOCH for none."""

    def end_offset_for(self, epoch: Epoch, log_end_offset: Offset) -> tuple[Epoch, Offset]:
        """Return the largest epoch not above `epoch`, and its end (exclusive).

        (NO_EPOCH, UNKNOWN_OFFSET) if `epoch` is above all recorded epochs, or there are none. An
        epoch below the first one ends where the first one starts.
        """


def judge_fetch(
    epochs: EpochHistory,
    *,
    fetch_offset: Offset,
    last_fetched_epoch: Epoch,
    log_start_offset: Offset,
    log_end_offset: Offset,
) -> tuple[ErrorCode, DivergingEpoch | None]:
    """Check whether a log ending at `fetch_offset` in `last_fetched_epoch` is a prefix of ours.

    An offset below our start is out of range even if it diverges: truncation cannot repair it.
    """
    if fetch_offset < log_start_offset:
        return ErrorCode.OFFSET_OUT_OF_RANGE, None
    is_older = last_fetched_epoch != epochs.latest_epoch
    if last_fetched_epoch != NO_EPOCH and (is_older or fetch_offset > log_end_offset):
        epoch, end_offset = epochs.end_offset_for(last_fetched_epoch, log_end_offset)
        if epoch == NO_EPOCH:
            return ErrorCode.OFFSET_OUT_OF_RANGE, None
        if epoch < last_fetched_epoch or end_offset < fetch_offset:
            return ErrorCode.NONE, DivergingEpoch(epoch, end_offset)
    if fetch_offset > log_end_offset:
        return ErrorCode.OFFSET_OUT_OF_RANGE, None
    return ErrorCode.NONE, None


def truncation_offset(
    epochs: EpochHistory, *, epoch: Epoch, end_offset: Offset, log_end_offset: Offset
) -> Offset:
    """Return where a follower cuts its log if the leader's `epoch` ends at `end_offset`.

    A follower without that epoch cuts at the end of its next lower epoch and fetches again
    (KIP-279).
    """
    own_epoch, own_end = epochs.end_offset_for(epoch, log_end_offset)
    if own_epoch == NO_EPOCH:
        return min(end_offset, log_end_offset)
    return min(end_offset, own_end, log_end_offset)
