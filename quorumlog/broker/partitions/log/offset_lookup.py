"""ListOffsets and OffsetForLeaderEpoch for one partition that this broker leads. Reads only.

Kafka's debugging consumer (replica id -2) may also query a follower.

Sources: KIP-79 (by time), KIP-207 (offsets not available yet), KIP-320, KIP-734 (of the maximum).
"""

from typing import Final

from quorumlog.broker.partitions.core.data_path import DEBUG_REPLICA, OffsetAnswer, ReadEnd
from quorumlog.broker.partitions.core.partition import Partition
from quorumlog.broker.partitions.core.roles import Leader
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.log import Log
from quorumlog.storage.io.timestamps import Found
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.identifiers import NO_EPOCH, UNKNOWN_OFFSET, BrokerId, Epoch, Offset

LATEST: Final = -1
EARLIEST: Final = -2
OF_MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6


class LookupByTime:
    """A lookup by timestamp: `perform` it in the partition's lane of the disk queue.

    In that lane, no truncation runs at the same time.
    """

    def __init__(self, log: Log, timestamp_ms: int) -> None:
        """Raise StorageError if the log is unusable."""
        self._log: Final = log
        self._timestamp_ms: Final = timestamp_ms
        self._lookup: Final = log.time_lookup()
        self.error_code = ErrorCode.NONE
        self.found: Found | None = None

    def perform(self) -> None:
        """Set `error_code` and `found`."""
        try:
            if self._timestamp_ms == OF_MAX_TIMESTAMP:
                self.found = self._lookup.of_max_timestamp()
            else:
                self.found = self._lookup.first_since(self._timestamp_ms)
        except CorruptBatch:
            self.error_code = ErrorCode.CORRUPT_MESSAGE
        except (StorageError, OSError):
            self.error_code = ErrorCode.KAFKA_STORAGE_ERROR

    def is_of(self, log: Log) -> bool:
        """Whether this lookup used `log`, with its current log start and existing files."""
        if self.error_code is ErrorCode.KAFKA_STORAGE_ERROR and self._lookup.has_old_names:
            return False
        return log is self._log and log.log_start_offset == self._lookup.log_start_offset


def look_up_offset(
    driver: PartitionDriver,
    timestamp_ms: int,
    leader_epoch: Epoch,
    replica_id: BrokerId,
    performed: LookupByTime | None = None,
    *,
    is_read_committed: bool = False,
) -> OffsetAnswer | LookupByTime:
    """Find the offset for a timestamp, or for one of the special timestamps above.

    With `is_read_committed` a consumer's log ends at the last stable offset (KIP-98). Special
    timestamps are answered from memory. Otherwise it returns a lookup: perform it, and pass it as
    `performed` in a second call.
    """
    partition = driver.partition
    refusal = partition.serving.epoch_refusal(leader_epoch, leader_only=replica_id != DEBUG_REPLICA)
    if refusal is not ErrorCode.NONE:
        return OffsetAnswer(refusal)
    is_consumer = replica_id not in {DEBUG_REPLICA, *partition_followers(partition)}
    read_end = ReadEnd.LAST_STABLE if is_read_committed else ReadEnd.HIGH_WATERMARK
    end = driver.end(read_end if is_consumer else ReadEnd.LOG_END)
    if timestamp_ms in {EARLIEST, EARLIEST_LOCAL}:
        start = partition.state.log_start_offset
        return OffsetAnswer(ErrorCode.NONE, start, -1, driver.log.epochs.epoch_at(start))
    if timestamp_ms in {LATEST_TIERED, EARLIEST_PENDING_UPLOAD}:
        return OffsetAnswer(ErrorCode.NONE)  # this broker has no tiered records
    if is_consumer and _is_behind_its_epoch(partition):
        return OffsetAnswer(ErrorCode.OFFSET_NOT_AVAILABLE)
    if timestamp_ms == LATEST:
        return OffsetAnswer(ErrorCode.NONE, end, -1, partition.state.leader_epoch)
    return _by_time(driver.log, timestamp_ms, end, performed)


def _by_time(
    log: Log, timestamp_ms: int, end: Offset, performed: LookupByTime | None
) -> OffsetAnswer | LookupByTime:
    if performed is None or not performed.is_of(log):
        try:
            return LookupByTime(log, timestamp_ms)
        except StorageError:
            return OffsetAnswer(ErrorCode.KAFKA_STORAGE_ERROR)
    if performed.found is None or performed.found[0] >= end:
        return OffsetAnswer(performed.error_code)
    offset, found_ms = performed.found
    return OffsetAnswer(ErrorCode.NONE, offset, found_ms, log.epochs.epoch_at(offset))


def partition_followers(partition: Partition) -> tuple[BrokerId, ...]:
    """Return the followers of a leader."""
    role = partition.state.role
    return tuple(role.followers) if isinstance(role, Leader) else ()


def _is_behind_its_epoch(partition: Partition) -> bool:
    """Whether a new leader has yet to reach its predecessor's high watermark (KIP-207)."""
    state = partition.state
    role = state.role
    return isinstance(role, Leader) and state.high_watermark < role.epoch_start


def look_up_epoch_end(
    driver: PartitionDriver, epoch: Epoch, current_leader_epoch: Epoch
) -> tuple[ErrorCode, Epoch, Offset]:
    """Return the largest epoch not above `epoch`, and its end offset (exclusive)."""
    refusal = driver.partition.serving.epoch_refusal(current_leader_epoch)
    if refusal is not ErrorCode.NONE:
        return refusal, NO_EPOCH, UNKNOWN_OFFSET
    found = driver.log.epochs.end_offset_for(epoch, driver.partition.state.log_end_offset)
    return ErrorCode.NONE, found.epoch, found.end_offset
