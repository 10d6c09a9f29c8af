"""DeleteRecords: moves log starts, and delays responses until the low watermark (KIP-107)."""

from contextlib import suppress
from functools import partial
from typing import Final

from quorumlog.broker.deadline_timer import DeadlineTimer
from quorumlog.broker.partitions.core.deletions import (
    DeletionDone,
    DeletionResult,
    WaitingDeletion,
    policy_refusal,
)
from quorumlog.broker.partitions.core.purgatory import deadline_of
from quorumlog.broker.partitions.log.appends import WAITING_MAX
from quorumlog.broker.partitions.log.replica_set import ReplicaSet
from quorumlog.clock import monotonic_ms
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Offset, TopicPartition


class RecordDeletions:
    """Every deletion of records on this broker."""

    def __init__(self, replicas: ReplicaSet) -> None:
        self._replicas: Final = replicas
        self._deadlines: Final = replicas.deletion_deadlines
        self._timer: Final = DeadlineTimer(self._deadlines, self._expire)
        self.stop: Final = self._timer.stop

    def delete(
        self, at: TopicPartition, offset: int, *, timeout_ms: int, done: DeletionDone
    ) -> None:
        """Delete the records below `offset`; -1: all committed records. `done` gets the outcome.

        REQUEST_TIMED_OUT: they are gone from the leader, but not yet from all replicas.
        """
        driver = self._replicas.drivers.get(at)
        if driver is None:
            done(DeletionResult(self._replicas.error_for_missing(at)))
            return
        if driver.is_swapping_log:
            driver.hold(partial(self.delete, at, offset, timeout_ms=timeout_ms, done=done))
            return
        error_code, required = driver.partition.serving.judge_deletion(
            offset, policy_refusal(self._replicas.config_of(at.topic))
        )
        if error_code is not ErrorCode.NONE:
            done(DeletionResult(error_code))
            return
        now_ms = monotonic_ms()
        try:
            driver.advance_log_start(now_ms, required)
        except StorageError:
            done(DeletionResult(ErrorCode.KAFKA_STORAGE_ERROR))
            return
        serving = driver.partition.serving
        low_watermark = serving.low_watermark()
        deadline_ms = deadline_of(
            now_ms, timeout_ms, lacks_disk_alone=serving.followers_low_watermark() >= required
        )
        if low_watermark >= required:
            done(DeletionResult(ErrorCode.NONE, low_watermark))
        elif deadline_ms <= now_ms or len(self._deadlines) >= WAITING_MAX:
            # DEVIATION: Kafka lets any number of deletions wait.
            # docs/decisions/0039-limits.md
            done(DeletionResult(ErrorCode.REQUEST_TIMED_OUT, low_watermark))
        else:
            wait = WaitingDeletion(deadline_ms, required, low_watermark, done)
            if driver.waiting.deletions.add(wait):
                self._timer.arm(wait.deadline_ms)

    def advance_log_start(self, at: TopicPartition, offset: Offset) -> None:
        """Delete a coordinator's records below `offset`, without waiting for other replicas.

        Without leadership it does nothing: the next leader's coordinator deletes them when due.
        """
        driver = self._replicas.drivers.get(at)
        if driver is None:
            return
        if driver.is_swapping_log:
            driver.hold(partial(self.advance_log_start, at, offset))
            return
        error_code, _ = driver.partition.serving.judge_deletion(offset, ErrorCode.NONE)
        if error_code is not ErrorCode.NONE:
            return
        with suppress(StorageError):  # the log is unusable: the next tick takes it offline
            driver.advance_log_start(monotonic_ms(), offset)

    def _expire(self, now_ms: int) -> None:
        for wait in self._deadlines.expire(now_ms):
            wait.done(DeletionResult(ErrorCode.REQUEST_TIMED_OUT, wait.low_watermark))
