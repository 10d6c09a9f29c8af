"""Produces: checks, appends, and lets acks=all wait for the high watermark.

With `log.flush.acks`, acks=1 waits until the batch is on the leader's disk.

Everything up to the append happens within the call, so that the caller's buffer is free after it.
While a log is exchanged for its copy in another log directory, a batch waits as a copy of its own.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from quorumlog.broker.deadline_timer import DeadlineTimer
from quorumlog.broker.partitions.core.admission import NO_TIMESTAMP, Admission, admit
from quorumlog.broker.partitions.core.data_path import (
    ACKS_ALL,
    ACKS_LEADER,
    ProduceDone,
    ProduceResult,
)
from quorumlog.broker.partitions.core.purgatory import ProduceQueue
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.partitions.log.replica_set import ReplicaSet
from quorumlog.clock import monotonic_ms
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Offset, TopicPartition
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.records import BatchHeader
from quorumlog.wire.codec.transaction_markers import TransactionMarker, encode_marker

# DEVIATION: Kafka lets any number wait, each for as long as its client asks: up to 24 days.
# docs/decisions/0020-what-a-client-may-leave-waiting.md
WAITING_MAX: Final = 100_000  # of this broker, for replicas or for the disk
NO_TIMEOUT_MS: Final = 2_147_483_647
TOO_MANY_WAIT: Final = f"not appended: {WAITING_MAX} batches wait already"


class Appends:
    """Every produce of this broker."""

    def __init__(self, replicas: ReplicaSet, *, wall_ms: Callable[[], int]) -> None:
        self._replicas: Final = replicas
        self._drivers: Final = replicas.drivers
        self._wall_ms: Final = wall_ms
        self._deadlines: Final = replicas.deadlines
        self._timer: Final = DeadlineTimer(self._deadlines, self._expire)

    def append(  # noqa: PLR0911 - one return per outcome
        self,
        topic_partition: TopicPartition,
        records: Buffer,
        *,
        acks: int,
        timeout_ms: int,
        done: ProduceDone,
    ) -> None:
        """Append one batch as the leader; call `done` now, or when the outcome is known."""
        driver = self._drivers.get(topic_partition)
        if driver is None:
            done(ProduceResult(self._replicas.error_for_missing(topic_partition)))
            return
        if driver.is_exchanging:
            kept = bytes(records)  # the receive buffer may be used again
            append = partial(
                self.append, topic_partition, kept, acks=acks, timeout_ms=timeout_ms, done=done
            )
            driver.hold(append)
            return
        refusal = driver.partition.serving.append_refusal(acks)
        if refusal is not ErrorCode.NONE:
            done(ProduceResult(refusal))
            return
        may_wait = acks == ACKS_ALL or (acks and driver.partition.state.acks_after_flush)
        if may_wait and len(self._deadlines) >= WAITING_MAX:
            done(ProduceResult(ErrorCode.REQUEST_TIMED_OUT, error_message=TOO_MANY_WAIT))
            return
        wall_ms = self._wall_ms()
        limits = self._replicas.limits_of(topic_partition.topic)
        admission = admit(records, limits, wall_ms, topic_partition)
        if admission.header is None:
            done(_refused(admission, driver))
            return
        appended = self._append_once(driver, admission.records, admission.header, wall_ms)
        if isinstance(appended, ProduceResult):
            done(appended)
            return
        base_offset, next_offset, append_time_ms = appended
        start = driver.partition.state.log_start_offset
        result = ProduceResult(ErrorCode.NONE, base_offset, append_time_ms, start)
        queue = self._queue(driver, next_offset, acks)
        if queue is None:
            outcome = _outcome(driver, acks)
            done(result if outcome is ErrorCode.NONE else ProduceResult(outcome))
            return
        deadline_ms = monotonic_ms() + max(timeout_ms, 0)
        if queue.add(deadline_ms, next_offset, result, done):
            self._timer.arm(deadline_ms)

    def append_marker(
        self, topic_partition: TopicPartition, marker: TransactionMarker, *, done: ProduceDone
    ) -> None:
        """Append the marker of a transaction as the leader; call `done` once it is committed."""
        self.append(
            topic_partition,
            encode_marker(marker, self._wall_ms()),
            acks=ACKS_ALL,
            timeout_ms=NO_TIMEOUT_MS,
            done=done,
        )

    def _queue(
        self, driver: PartitionDriver, next_offset: Offset, acks: int
    ) -> ProduceQueue | None:
        """Return where a produce waits; None: its outcome is known."""
        state = driver.partition.state
        if acks == ACKS_ALL:
            return driver.waiting if state.high_watermark < next_offset else None
        must_wait = acks == ACKS_LEADER and state.counted_offset < next_offset
        return driver.awaiting_flush if must_wait else None

    def _append_once(
        self, driver: PartitionDriver, records: Buffer, header: BatchHeader, wall_ms: int
    ) -> tuple[Offset, Offset, int] | ProduceResult:
        """Append, unless the batch is there already.

        Return its [first, next) offsets, and the time of its append if its records have that one.
        """
        if header.producer_id >= 0:
            error_code, stored = driver.producers.check(header)
            if error_code is not ErrorCode.NONE:
                return ProduceResult(error_code)
            if stored is not None:
                # It waits like the first attempt: that one may not be committed yet.
                # DEVIATION: Kafka remembers the time of the first attempt's append.
                # docs/decisions/0084-a-leader-stamps-the-time-of-an-append-as-it-admits-it.md
                return Offset(stored.base_offset), Offset(stored.last_offset + 1), NO_TIMESTAMP
        try:
            info = driver.append_as_leader(records, header, now_ms=monotonic_ms(), wall_ms=wall_ms)
        except StorageError as error:
            driver.maybe_fail(error)  # or the disk is full: room may be made
            return ProduceResult(ErrorCode.KAFKA_STORAGE_ERROR, error_message=str(error))
        append_time_ms = info.max_timestamp if header.has_log_append_time else NO_TIMESTAMP
        return info.first_offset, Offset(info.last_offset + 1), append_time_ms

    def stop(self) -> None:
        """Let no timer ring any more."""
        self._timer.stop()

    def _expire(self, now_ms: int) -> None:
        for wait in self._deadlines.expire(now_ms):
            wait.done(ProduceResult(ErrorCode.REQUEST_TIMED_OUT))


def _outcome(driver: PartitionDriver, acks: int) -> ErrorCode:
    return driver.partition.serving.commit_outcome() if acks == ACKS_ALL else ErrorCode.NONE


def _refused(admission: Admission, driver: PartitionDriver) -> ProduceResult:
    return ProduceResult(
        admission.error_code,
        log_start_offset=driver.partition.state.log_start_offset,
        error_message=admission.reason,
        record_errors=admission.record_errors,
    )
