"""Produces: checks and appends batches; with acks=all they wait for the high watermark.

With `log.flush.acks`, acks=1 waits until the batch is on the leader's disk.

Order of the checks: the replica, its leadership, the limit of waiting batches, admission, the
producer, its transaction. All steps up to the append happen within the call, so the caller's
buffer is free after it. While a log is swapped for its copy in another log directory, a coordinator
verifies a transaction, or a batch is compressed anew, it waits as a copy.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from quorumlog.broker.partitions.core.admission import (
    NO_TIMESTAMP,
    Admission,
    TopicLimits,
    admit,
    usual_headers,
)
from quorumlog.broker.partitions.core.data_path import (
    ACKS_ALL,
    ACKS_LEADER,
    AppendedRun,
    ProduceDone,
    ProduceResult,
    RunDone,
)
from quorumlog.broker.partitions.core.producer_state import ACCEPTED
from quorumlog.broker.partitions.core.purgatory import deadline_of
from quorumlog.broker.partitions.core.verification import Guard
from quorumlog.broker.partitions.log.disk_queue import DiskQueue
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.partitions.log.recompressions import Recompressions
from quorumlog.broker.partitions.log.replica_set import ReplicaSet
from quorumlog.broker.partitions.log.verified_appends import (
    AdmittedBatch,
    ClientTransaction,
    VerifiedAppends,
)
from quorumlog.storage.core.append_checks import LeaderBatch
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import UNKNOWN_OFFSET, TopicId, TopicPartition
from quorumlog.wire.codec.message import Buffer
from quorumlog.wire.codec.records import BatchHeader, read_header
from quorumlog.wire.codec.transaction_markers import TransactionMarker, encode_marker

# DEVIATION: Kafka lets any number of batches wait, for their clients' timeouts: up to 24 days.
# docs/decisions/0039-limits.md
WAITING_MAX: Final = 100_000  # of this broker, for replicas or for the disk; a run counts as one
NO_TIMEOUT_MS: Final = 2_147_483_647  # for markers, which must be written
TOO_MANY_WAIT: Final = f"not appended: {WAITING_MAX} batches wait already"

WITHOUT_LOG_START: Final = {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.CORRUPT_MESSAGE}  # as Kafka

_NONE: Final = ErrorCode.NONE  # an attribute of an enum costs a call
_MarkerAt = tuple[TransactionMarker, int]  # and the time
_Request = tuple[TopicPartition, int, int, ProduceDone, ClientTransaction | None]
"""A partition, acks, the timeout, the receiver of the outcome, and the transaction."""
WITHOUT_TRANSACTIONAL_ID: Final = ProduceResult(
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    error_message="transactional records in a request without a transactional id",
)


class Appends:
    """All produces of this broker, and the markers of transactions.

    `arm(deadline_ms)` is called with each deadline that is now the earliest: call `expire` then.
    `disk`: the queue where batches are compressed anew.
    """

    def __init__(
        self,
        replicas: ReplicaSet,
        *,
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        arm: Callable[[int], None],
        disk: DiskQueue,
    ) -> None:
        self._replicas: Final = replicas
        self._drivers: Final = replicas.drivers
        self._now_ms: Final = now_ms
        self._wall_ms: Final = wall_ms
        self._arm: Final = arm
        self._deadlines: Final = replicas.deadlines
        self._verified: Final = VerifiedAppends(self._drivers, self._append_verified)
        self._recompressions: Final = Recompressions(disk)
        self._last_marker: tuple[_MarkerAt, tuple[bytes, BatchHeader]] | None = None

    def append(
        self,
        topic_partition: TopicPartition,
        records: Buffer,
        *,
        acks: int,
        timeout_ms: int,
        done: ProduceDone,
        transaction: ClientTransaction | None = None,
    ) -> None:
        """Append one batch as the leader; call `done` with the outcome, now or later.

        `transaction`: the transaction of the client's request, if it has one.
        """
        driver = self._drivers.get(topic_partition)
        if driver is None:
            done(ProduceResult(self._replicas.error_for_missing(topic_partition)))
            return
        recompressions = self._recompressions
        if driver.is_swapping_log and not recompressions.is_waiting(topic_partition):
            kept = bytes(records)  # the receive buffer may be reused
            again = partial(self.append, topic_partition, kept, acks=acks, timeout_ms=timeout_ms)
            again = partial(again, done=done, transaction=transaction)
            driver.hold(partial(self._append_held, driver, acks, done, again))
            return
        refusal = self._refusal(driver, acks)
        if refusal is not None:
            done(refusal)
            return
        limits, wall_ms = self._replicas.limits_of(topic_partition.topic), self._wall_ms()
        request = topic_partition, acks, timeout_ms, done, transaction
        if recompressions.must_hold(topic_partition, records, limits):
            admitted = partial(self._append_recompressed, request, driver.topic_id, limits)
            recompressions.hold(
                topic_partition, records, limits, wall_ms, admitted=admitted, done=done
            )
            return
        admission = admit(records, limits, wall_ms, topic_partition)
        self._append_admitted(driver, request, limits, admission)

    def _append_held(
        self, held_by: PartitionDriver, acks: int, done: ProduceDone, again: Callable[[], None]
    ) -> None:
        if self._driver_still(held_by.topic_partition, held_by.topic_id, acks, done) is not None:
            again()

    def _append_recompressed(
        self, request: _Request, topic_id: TopicId, limits: TopicLimits, admission: Admission
    ) -> None:
        at, acks, _, done, _ = request
        driver = self._driver_still(at, topic_id, acks, done)
        if driver is None:
            return
        if driver.is_swapping_log:
            driver.hold(partial(self._append_recompressed, request, topic_id, limits, admission))
        else:
            self._append_admitted(driver, request, limits, admission)

    def _driver_still(
        self, at: TopicPartition, topic_id: TopicId, acks: int, done: ProduceDone
    ) -> PartitionDriver | None:
        """Return the partition of a batch that has waited; None: `done` has got a refusal.

        Meanwhile this broker may have lost the partition, or its topic may have been created anew.
        """
        driver = self._drivers.get(at)
        if driver is None:
            refusal: ProduceResult | None = ProduceResult(self._replicas.error_for_missing(at))
        elif driver.topic_id != topic_id:
            refusal = ProduceResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        else:
            refusal = self._refusal(driver, acks)
        if refusal is None:
            return driver
        done(refusal)
        return None

    def _append_admitted(
        self, driver: PartitionDriver, request: _Request, limits: TopicLimits, admission: Admission
    ) -> None:
        at, acks, timeout_ms, done, transaction = request
        header = admission.header
        if header is None:
            driver.traffic.note_failed_produce()
            done(_refused(admission, driver))
            return
        batch = AdmittedBatch(
            *(at, driver.topic_id, admission.records, header, acks, timeout_ms, done, transaction)
        )
        if limits.is_internal:  # a coordinator's batch
            self._append(driver, batch, driver.producers.check_epoch(header))
        elif header.producer_id < 0:  # not transactional: `admit` has checked that
            self._append(driver, batch)
        elif header.is_transactional and transaction is None:
            done(WITHOUT_TRANSACTIONAL_ID)
        elif not self._verified.maybe_hold(batch):
            self._append_checked(driver, batch, None)

    def append_run(
        self,
        at: TopicPartition,
        batches: Sequence[Buffer],
        *,
        acks: int,
        timeout_ms: int,
        transaction: ClientTransaction | None,
        may_continue: Callable[[], bool],
    ) -> AppendedRun | None:
        """Append the leading batches that need nothing but an append, by one write and one step.

        Their outcomes are those of `append`, one after the other. The next batch is left to
        `append`: it is refused, repeated or held, or begins a segment, or the time is over. None:
        no batch is appended, and `append` gives the reason for the first, a failed disk included.
        """
        driver = self._drivers.get(at)
        if driver is None or driver.is_swapping_log or self._refusal(driver, acks) is not None:
            return None
        limits, wall_ms = self._replicas.limits_of(at.topic), self._wall_ms()
        if limits.is_internal or limits.compression or self._recompressions.is_waiting(at):
            return None
        run: list[LeaderBatch] = []
        header: BatchHeader | None = None
        usual = usual_headers(batches, limits, wall_ms)
        for records in batches:
            if run and not may_continue():
                break
            previous, admitted = header, records
            if len(run) < len(usual):
                header = usual[len(run)]
            else:
                _, header, admitted, *_ = admit(records, limits, wall_ms, at)
            if header is None or not self._is_plain(driver, previous, header, transaction):
                break
            run.append((admitted, header))
        if not run:
            return None
        try:
            now_ms = self._now_ms()
            base_offsets, next_offset = driver.append_as_leader(run, now_ms=now_ms, wall_ms=wall_ms)
        except StorageError:
            return None  # some may fit on a full disk: `append` tries each, and reports
        append_time_ms = wall_ms if limits.has_append_time else NO_TIMESTAMP
        start = driver.partition.state.log_start_offset
        outcome = self._outcome(driver, next_offset, acks)
        if outcome is not None:
            return base_offsets, append_time_ms, start, outcome
        ends = [*base_offsets[1:], next_offset]
        wait = partial(self._wait, driver, ends, acks, timeout_ms)
        return base_offsets, append_time_ms, start, wait

    def _is_plain(
        self,
        driver: PartitionDriver,
        previous: BatchHeader | None,
        header: BatchHeader,
        transaction: ClientTransaction | None,
    ) -> bool:
        """Whether `append` appends the batch at once, when `previous` of its run is appended."""
        producers = driver.producers
        if previous is not None:
            return producers.continues(previous, header)
        if header.producer_id < 0:
            return True
        if header.is_transactional and transaction is None:
            return False
        if self._verified.must_hold(driver.topic_partition, header, transaction):
            return False
        if producers.check(header) != ACCEPTED:
            return False
        return self._transaction_flaw(driver, header, transaction, None) is _NONE

    def append_marker(
        self,
        topic_partition: TopicPartition,
        marker: TransactionMarker,
        *,
        done: ProduceDone,
        transaction_version: int,
    ) -> None:
        """Append the marker of a producer's transaction in a partition, as the leader.

        Call `done` when the marker is committed, however long that takes, or with an error:
        INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED.
        """
        driver = self._drivers.get(topic_partition)
        if driver is None:
            done(ProduceResult(self._replicas.error_for_missing(topic_partition)))
            return
        if driver.is_swapping_log:
            again = partial(self.append_marker, topic_partition, marker, done=done)
            driver.hold(partial(again, transaction_version=transaction_version))
            return
        error_code = driver.partition.serving.append_refusal(ACKS_ALL)
        if error_code is _NONE:
            error_code = driver.producers.check_marker(marker, transaction_version)
        encoded, header = self._encoded(marker)
        batch = AdmittedBatch(
            *(topic_partition, driver.topic_id, encoded, header, ACKS_ALL, NO_TIMEOUT_MS, done)
        )
        self._append(driver, batch, error_code, marker)

    def _encoded(self, marker: TransactionMarker) -> tuple[bytes, BatchHeader]:
        """Return the batch of a marker, cached: the partitions of a request usually share it."""
        as_of = marker, self._wall_ms()
        if self._last_marker is None or self._last_marker[0] != as_of:
            encoded = encode_marker(*as_of)
            self._last_marker = as_of, (encoded, read_header(encoded))
        return self._last_marker[1]

    def _refusal(self, driver: PartitionDriver, acks: int) -> ProduceResult | None:
        refusal = driver.partition.serving.append_refusal(acks)
        if refusal is not _NONE:
            return ProduceResult(refusal)
        may_wait = acks == ACKS_ALL or (acks and driver.partition.state.acks_after_flush)
        if may_wait and len(self._deadlines) >= WAITING_MAX:
            return ProduceResult(ErrorCode.REQUEST_TIMED_OUT, error_message=TOO_MANY_WAIT)
        return None

    def _append_verified(self, batch: AdmittedBatch, guard: Guard | None) -> None:
        driver = self._driver_still(batch.at, batch.topic_id, batch.acks, batch.done)
        if driver is not None:
            self._append_checked(driver, batch, guard)

    def _append_checked(
        self, driver: PartitionDriver, batch: AdmittedBatch, guard: Guard | None
    ) -> None:
        """Append a producer's batch, unless it is a duplicate or fails the producer checks."""
        header, transaction = batch.header, batch.transaction
        error_code, stored = driver.producers.check(header)
        if stored is not None:
            # It waits like the first attempt, whose batch may not be committed yet.
            # DEVIATION: Kafka remembers the time of the first attempt's append.
            # docs/decisions/0038-record-validation.md
            self._answer(driver, batch, stored.base_offset, stored.last_offset + 1, NO_TIMESTAMP)
            return
        if error_code is _NONE:
            error_code = self._transaction_flaw(driver, header, transaction, guard)
        self._append(driver, batch, error_code)

    def _transaction_flaw(
        self,
        driver: PartitionDriver,
        header: BatchHeader,
        transaction: ClientTransaction | None,
        guard: Guard | None,
    ) -> ErrorCode:
        is_asked = transaction is not None and transaction.verify is not None
        return driver.producers.check_transaction(header, guard, is_asked=is_asked)

    def _append(
        self,
        driver: PartitionDriver,
        batch: AdmittedBatch,
        error_code: ErrorCode = _NONE,
        marker: TransactionMarker | None = None,
    ) -> None:
        if error_code is not _NONE:
            batch.done(ProduceResult(error_code))
            return
        header = batch.header
        try:
            (base_offset,), next_offset = driver.append_as_leader(
                ((batch.records, header),),
                now_ms=self._now_ms(),
                wall_ms=self._wall_ms(),
                marker=marker,
            )
        except StorageError as error:
            driver.traffic.note_failed_produce()
            driver.maybe_fail(error)  # with a full disk it stays: space may be freed
            failed = ProduceResult(ErrorCode.KAFKA_STORAGE_ERROR, error_message=str(error))
            batch.done(failed)
            return
        append_time_ms = header.max_timestamp if header.has_log_append_time else NO_TIMESTAMP
        self._answer(driver, batch, base_offset, next_offset, append_time_ms)

    def _answer(
        self,
        driver: PartitionDriver,
        batch: AdmittedBatch,
        base_offset: int,
        next_offset: int,
        append_time_ms: int,
    ) -> None:
        """Answer a batch in the log at [base_offset, next_offset), now or once committed."""
        start = driver.partition.state.log_start_offset
        result = ProduceResult(ErrorCode.NONE, base_offset, append_time_ms, start)
        outcome = self._outcome(driver, next_offset, batch.acks)
        if outcome is None:
            done = partial(_conclude, batch.done, result)
            self._wait(driver, (next_offset,), batch.acks, batch.timeout_ms, done)
        else:
            _conclude(batch.done, result, outcome, 1)

    def _outcome(self, driver: PartitionDriver, next_offset: int, acks: int) -> ErrorCode | None:
        """Return the outcome of batches in the log below `next_offset`, or None: they `_wait`."""
        state = driver.partition.state
        if acks == ACKS_ALL:
            is_committed = state.high_watermark >= next_offset
            return driver.partition.serving.commit_outcome() if is_committed else None
        if acks == ACKS_LEADER and state.counted_offset < next_offset:
            return None
        return _NONE

    def _wait(
        self,
        driver: PartitionDriver,
        ends: Sequence[int],
        acks: int,
        timeout_ms: int,
        done: RunDone,
    ) -> None:
        """Let batches in the log, which end at these offsets, wait; `done` gets their outcome."""
        is_all, waiting = acks == ACKS_ALL, driver.waiting
        lacks_disk_alone = not is_all or driver.partition.serving.is_sole_replica()
        deadline_ms = deadline_of(self._now_ms(), timeout_ms, lacks_disk_alone=lacks_disk_alone)
        if (waiting.commits if is_all else waiting.flushes).add(deadline_ms, ends, done):
            self._arm(deadline_ms)

    def expire(self, now_ms: int) -> None:
        """Answer REQUEST_TIMED_OUT to the produces whose deadline has come."""
        for wait in self._deadlines.expire(now_ms):
            wait.done(ErrorCode.REQUEST_TIMED_OUT, wait.left)


def _conclude(done: ProduceDone, result: ProduceResult, error_code: ErrorCode, _count: int) -> None:
    """Report the outcome of one batch."""
    done(result if error_code is _NONE else ProduceResult(error_code))


def _refused(admission: Admission, driver: PartitionDriver) -> ProduceResult:
    start: int = driver.partition.state.log_start_offset
    return ProduceResult(
        admission.error_code,
        log_start_offset=UNKNOWN_OFFSET if admission.error_code in WITHOUT_LOG_START else start,
        error_message=admission.reason,
        record_errors=admission.record_errors,
    )
