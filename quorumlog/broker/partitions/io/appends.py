"""Produces: checks, appends, and lets acks=all wait for the high watermark.

Everything up to the append happens within the call, so that the caller's buffer is free after it.
"""

from collections.abc import Callable
from typing import Final

from quorumlog.broker.deadline_timer import DeadlineTimer
from quorumlog.broker.partitions.core.admission import Admission, admit
from quorumlog.broker.partitions.core.data_path import ACKS_ALL, ProduceDone, ProduceResult
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.partitions.log.replica_set import ReplicaSet
from quorumlog.clock import monotonic_ms
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Offset, TopicPartition
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.records import BatchHeader

# DEVIATION: Kafka lets any number wait, each for as long as its client asks: up to 24 days.
# docs/decisions/0020-what-a-client-may-leave-waiting.md
WAITING_MAX: Final = 100_000  # acks=all, of this broker
TOO_MANY_WAIT: Final = f"not appended: {WAITING_MAX} batches wait for their replicas already"


class Appends:
    """Every produce of this broker."""

    def __init__(self, replicas: ReplicaSet, *, wall_ms: Callable[[], int]) -> None:
        self._replicas: Final = replicas
        self._drivers: Final = replicas.drivers
        self._wall_ms: Final = wall_ms
        self._deadlines: Final = replicas.deadlines
        self._timer: Final = DeadlineTimer(self._deadlines, self._expire)

    def append(
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
        refusal = driver.partition.serving.append_refusal(acks)
        if refusal is not ErrorCode.NONE:
            done(ProduceResult(refusal))
            return
        if acks == ACKS_ALL and len(self._deadlines) >= WAITING_MAX:
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
        base_offset, next_offset = appended
        state = driver.partition.state
        result = ProduceResult(ErrorCode.NONE, base_offset, -1, state.log_start_offset)
        if acks != ACKS_ALL:
            done(result)
        elif state.high_watermark >= next_offset:
            outcome = driver.partition.serving.commit_outcome()
            done(result if outcome is ErrorCode.NONE else ProduceResult(outcome))
        else:
            deadline_ms = monotonic_ms() + max(timeout_ms, 0)
            if driver.waiting.add(deadline_ms, next_offset, result, done):
                self._timer.arm(deadline_ms)

    def _append_once(
        self, driver: PartitionDriver, records: Buffer, header: BatchHeader, wall_ms: int
    ) -> tuple[Offset, Offset] | ProduceResult:
        """Append, unless the batch is there already; return its [first, next) offsets."""
        if header.producer_id >= 0:
            error_code, stored = driver.producers.check(header)
            if error_code is not ErrorCode.NONE:
                return ProduceResult(error_code)
            if stored is not None:
                # It waits like the first attempt: that one may not be committed yet.
                return Offset(stored.base_offset), Offset(stored.last_offset + 1)
        try:
            info = driver.append_as_leader(records, header, now_ms=monotonic_ms(), wall_ms=wall_ms)
        except StorageError as error:
            driver.maybe_fail()  # or the disk is full: room may be made
            return ProduceResult(ErrorCode.KAFKA_STORAGE_ERROR, error_message=str(error))
        return info.first_offset, Offset(info.last_offset + 1)

    def stop(self) -> None:
        """Let no timer ring any more."""
        self._timer.stop()

    def _expire(self, now_ms: int) -> None:
        for wait in self._deadlines.expire(now_ms):
            wait.done(ProduceResult(ErrorCode.REQUEST_TIMED_OUT))


def _refused(admission: Admission, driver: PartitionDriver) -> ProduceResult:
    return ProduceResult(
        admission.error_code,
        log_start_offset=driver.partition.state.log_start_offset,
        error_message=admission.reason,
        record_errors=admission.record_errors,
    )
