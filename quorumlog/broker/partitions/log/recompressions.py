"""Batches that the broker compresses anew (`compression.type` of a topic), outside the event loop.

A megabyte takes up to seconds, so batches are admitted in the disk queue. A partition's later
batches wait behind, in order. Small batches are compressed within the call of the append.
Source: Kafka's `LogValidator`, which runs in the thread of the request.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from quorumlog.broker.partitions.core.admission import (
    Admission,
    TopicLimits,
    admit,
    compression_bits,
)
from quorumlog.broker.partitions.core.data_path import ProduceDone, ProduceResult
from quorumlog.broker.partitions.log.disk_queue import DiskQueue
from quorumlog.invariants import InvariantViolation
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.message import Buffer

AT_ONCE_BYTES_MAX: Final = 4096  # uncompressed: 2 ms at the highest level of zstd
LANES: Final = 2  # of the disk queue: the other threads stay free for the disk
# DEVIATION: Kafka has no limit, but one thread for each waiting request.
# docs/decisions/0039-limits.md
WAITING_BYTES_MAX: Final = 64 << 20
TOO_MUCH_WAITS: Final = f"not appended: {WAITING_BYTES_MAX} bytes wait for their compression"


class Recompressions:
    """The waiting batches of this broker; each is a copy of its records."""

    def __init__(self, disk: DiskQueue) -> None:
        self._disk: Final = disk
        self._waiting: Final[Counter[TopicPartition]] = Counter()
        self._bytes = 0

    def must_hold(self, at: TopicPartition, records: Buffer, limits: TopicLimits) -> bool:
        """Whether a batch waits: for its compression, or for an earlier batch of its partition."""
        if at in self._waiting:
            return True
        if not limits.compression:
            return False
        bits = compression_bits(records)
        return bits != limits.compression and (bits > 0 or len(records) > AT_ONCE_BYTES_MAX)

    def is_waiting(self, at: TopicPartition) -> bool:
        """Whether batches of this partition wait."""
        return at in self._waiting

    def hold(
        self,
        at: TopicPartition,
        records: Buffer,
        limits: TopicLimits,
        wall_ms: int,
        *,
        admitted: Callable[[Admission], None],
        done: ProduceDone,
    ) -> None:
        """Admit a batch in the disk queue; then call `admitted`, in the order of the calls.

        If too many bytes wait, `done` gets REQUEST_TIMED_OUT at once.
        """
        size = len(records)
        if self._bytes + size > WAITING_BYTES_MAX:
            done(ProduceResult(ErrorCode.REQUEST_TIMED_OUT, error_message=TOO_MUCH_WAITS))
            return
        self._bytes += size
        self._waiting[at] += 1
        kept = bytes(records)  # the receive buffer may be reused
        work = partial(admit, kept, limits, wall_ms, at)
        lane = "compression", at.partition % LANES
        self._disk.submit(lane, work, partial(self._compressed, at, size, admitted))

    def _compressed(
        self,
        at: TopicPartition,
        size: int,
        admitted: Callable[[Admission], None],
        outcome: Admission | StorageError,
    ) -> None:
        if isinstance(outcome, StorageError):
            raise InvariantViolation("an admission uses no disk") from outcome
        self._bytes -= size
        self._waiting[at] -= 1
        if not self._waiting[at]:
            del self._waiting[at]
        admitted(outcome)
