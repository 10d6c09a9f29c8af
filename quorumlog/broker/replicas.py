"""Every replica on this broker: follows the image, appends, fetches. The rules are in `core`.

Synchronous on the event loop's thread but for `start` and `stop`, so it needs no locks. A broken
disk or invariant ends in `failure`: who runs the node awaits it.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, TypeVar

from quorumlog.broker.clocks import monotonic_ms, wall_clock_ms
from quorumlog.broker.controller_requests.isr_proposals import IsrProposals
from quorumlog.broker.fetching.core.fetch_sessions import FetchSessions
from quorumlog.broker.fetching.core.fetch_spec import FetchSpec
from quorumlog.broker.fetching.core.response_memory import ResponseMemory
from quorumlog.broker.fetching.io.fetches import Fetches
from quorumlog.broker.fetching.io.parked_fetch import News
from quorumlog.broker.following.io.replica_fetchers import ReplicaFetchers
from quorumlog.broker.partition_outbox import PartitionOutbox
from quorumlog.broker.partitions.core.data_path import (
    NO_REPLICA,
    FetchedPartition,
    LeadershipListener,
    LocalRead,
    OffsetAnswer,
    ProduceDone,
    ProduceResult,
    ReadEnd,
)
from quorumlog.broker.partitions.core.partition import KAFKA_RULES, Partition, PartitionRules
from quorumlog.broker.partitions.io.appends import Appends
from quorumlog.broker.partitions.io.checkpoints import Checkpoints
from quorumlog.broker.partitions.io.descriptions import Descriptions
from quorumlog.broker.partitions.io.log_starts import LogStarts
from quorumlog.broker.partitions.io.record_deletions import RecordDeletions
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.partitions.log.offset_lookup import look_up_epoch_end, look_up_offset
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.partitions.log.replica_set import ReplicaSet
from quorumlog.broker.settings import BrokerSettings
from quorumlog.metadata_quorum.controller_client import ControllerClient
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import OffsetOutOfRange, StorageError
from quorumlog.storage.io.disk import Disk
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import (
    NO_EPOCH,
    UNKNOWN_OFFSET,
    BrokerId,
    Epoch,
    Offset,
    TopicPartition,
)

Buffer = bytes | bytearray | memoryview
AnswerT = TypeVar("AnswerT")
TICK_MS_MAX: Final = 500

_logger: Final = logging.getLogger(__name__)


def _random_session_id() -> int:
    return 1 + secrets.randbelow(2**31 - 1)


class Replicas:
    """Owns the partitions. An ImagePublisher: `start` it before the first `publish`.

    Made inside a running event loop. A mutant node passes `partition_rules` of its own, one of
    them broken.
    """

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        settings: BrokerSettings,
        log_settings: LogSettings,
        disk: Disk,
        log_directory: str,
        controller: ControllerClient,
        wall_ms: Callable[[], int] = wall_clock_ms,
        partition_rules: PartitionRules = KAFKA_RULES,
    ) -> None:
        self.broker_id: Final = broker_id
        self.settings: Final = settings
        self.broker_epoch = -1
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.logs_open: Final = asyncio.Event()  # those that our registration's image gives us
        self._wall_ms: Final = wall_ms
        self._listeners: Final[list[LeadershipListener]] = []
        self._strays_are_gone = self._is_stopping = False
        self._has_more: Final = asyncio.Event()  # logs to open, directories to remove
        self._logs: Final = LogDirectory(disk, log_directory, log_settings)
        self._replicas: Final = ReplicaSet(
            broker_id, settings, self._logs, rules=partition_rules, failed=self._fail
        )
        self._drivers: Final = self._replicas.drivers
        self._appends: Final = Appends(self._replicas, wall_ms=wall_ms, log_failed=self._fail)
        self.response_memory: Final = ResponseMemory(settings.queued_max_response_bytes)
        self.fetch_sessions: Final = FetchSessions(
            settings.max_incremental_fetch_session_cache_slots, new_id=_random_session_id
        )
        self._fetches: Final = Fetches(
            self._drivers,
            self._replicas.error_for_missing,
            self.response_memory,
            self.fetch_sessions,
        )
        self._proposals: Final = IsrProposals(broker_id, controller, lambda: self.broker_epoch)
        self._fetchers: Final = ReplicaFetchers(
            broker_id,
            settings,
            broker_epoch=lambda: self.broker_epoch,
            wall_ms=wall_ms,
            failed=self._fail,
        )
        self._checkpoints: Final = Checkpoints(
            self._logs, self._drivers, settings.replica_high_watermark_checkpoint_interval_ms
        )
        self._log_starts: Final = LogStarts(self._logs, self._drivers, self._fetchers.wake)
        self.deletions: Final = RecordDeletions(self._replicas)
        self.descriptions: Final = Descriptions(self._replicas, self._logs)
        self._outbox: Final = PartitionOutbox(
            logs=self._logs,
            fetches=self._fetches,
            fetchers=self._fetchers,
            proposals=self._proposals,
            log_starts=self._log_starts,
            listeners=self._listeners,
        )
        self._tasks: Final[list[asyncio.Task[None]]] = []

    # --- Life ---

    async def start(self) -> None:
        """Read the log directory's checkpoints and run until `stop`. Raises StorageError."""
        self._logs.start()
        self._note_more()
        for work in (
            self._proposals.run(),
            self._log_starts.run(),
            self._tick(),
            self._checkpoints.run(),
            self._go_on(),
        ):
            task = asyncio.create_task(work)
            task.add_done_callback(self._task_ended)
            self._tasks.append(task)

    async def stop(self) -> None:
        """Answer all who wait, close every log, mark a clean shutdown. Raises StorageError.

        The last images of a cluster that is shut down come meanwhile: nobody acts on them, lest a
        log be opened or appended to which the marker then calls clean.
        """
        self._is_stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._fetchers.stop()
        self._appends.stop()
        self.deletions.stop()
        for driver in self._drivers.values():
            driver.fail_waiting(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._fetches.stop()
        await asyncio.to_thread(self._close_logs)
        if not self.failure.done():
            self.failure.cancel()

    @property
    def clean_shutdown_epoch(self) -> int | None:
        """The broker epoch of the last clean shutdown (-1: unknown); None: it was not clean."""
        return self._logs.clean_shutdown_epoch

    def registered(self, broker_epoch: int) -> None:
        """Fetch and propose with this epoch from now on: the controller knows this process.

        Nothing is fetched before. With the epoch of a former process, which the image may still
        show, a leader would take us for that process, which held records that we may have lost.
        """
        self.broker_epoch = broker_epoch
        self._proposals.wake()
        self._fetchers.wake()

    def add_leadership_listener(self, listener: LeadershipListener) -> None:
        """Tell `listener` of every change of leadership from now on."""
        self._listeners.append(listener)

    # --- Metadata ---

    @property
    def image(self) -> ClusterImage:
        """The newest image that was published."""
        return self._replicas.image

    def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:
        """Take over new metadata: lead, follow, create and delete replicas.

        What is much work for the disk goes on when this returns: see `ReplicaSet`.
        """
        if not self._is_stopping:
            self._follow_up(self._replicas.publish(monotonic_ms(), delta, image, self._outbox))

    def _follow_up(self, changed: Iterable[TopicPartition]) -> None:
        """Tell who waits for these, and do some of the work for the disk that is left."""
        self._fetchers.publish(self.image)
        for topic_partition in changed:
            self._fetches.tell(topic_partition, News.CHANGED)
        try:
            self._maybe_set_aside_strays()
            self._logs.remove_some()
        except StorageError as error:
            self._fail(error)
        self._note_more()
        broker = self.image.brokers.get(self.broker_id)
        is_ours = broker is not None and broker.broker_epoch == self.broker_epoch
        if is_ours and not self._replicas.is_opening:
            self.logs_open.set()

    def _note_more(self) -> None:
        if self._replicas.is_opening or self._logs.is_removing:
            self._has_more.set()

    async def _go_on(self) -> None:
        """Open and remove what `publish` left, a few at a time."""
        while True:
            await self._has_more.wait()
            self._has_more.clear()
            await asyncio.sleep(0)  # whatever else is due comes first
            wanted = self._logs.without_directory(self._replicas.next_few())
            # At the same time: the file system makes them durable together.
            await asyncio.gather(
                *(asyncio.to_thread(self._logs.make_directory, *one) for one in wanted)
            )
            self._follow_up(self._replicas.open_some(monotonic_ms(), self._outbox))

    def _maybe_set_aside_strays(self) -> None:
        """Once the image shows this very process at work, it has all that concerns us."""
        broker = self.image.brokers.get(self.broker_id)
        if self._strays_are_gone or broker is None or broker.fenced:
            return
        if broker.broker_epoch == self.broker_epoch:
            self._strays_are_gone = True
            self._logs.set_aside_strays(self._replicas.assigned())

    # --- The data path ---

    def partition(self, topic_partition: TopicPartition) -> Partition | None:
        """Return the replica's core: read it, do not step it."""
        driver = self._drivers.get(topic_partition)
        return None if driver is None else driver.partition

    def driver(self, topic_partition: TopicPartition) -> PartitionDriver | None:
        """Return the replica with its log."""
        return self._drivers.get(topic_partition)

    def append_then(
        self,
        topic_partition: TopicPartition,
        records: Buffer,
        *,
        acks: int,
        timeout_ms: int,
        done: ProduceDone,
    ) -> None:
        """Append one batch as the leader; call `done` now, or when the outcome is known.

        `records` may be reused when this returns.
        """
        self._appends.append(topic_partition, records, acks=acks, timeout_ms=timeout_ms, done=done)

    def append(
        self, topic_partition: TopicPartition, records: Buffer, *, acks: int, timeout_ms: int
    ) -> asyncio.Future[ProduceResult]:
        """Do as `append_then` does; the future is done already when the outcome is known."""
        future: asyncio.Future[ProduceResult] = asyncio.get_running_loop().create_future()
        done = partial(_resolve, future)
        self.append_then(topic_partition, records, acks=acks, timeout_ms=timeout_ms, done=done)
        return future

    def fetch(
        self, spec: FetchSpec
    ) -> list[FetchedPartition] | asyncio.Future[list[FetchedPartition]]:
        """Answer a fetch in the order of its partitions: now, or when there is enough."""
        return self._fetches.fetch(spec, list)

    def fetch_as(
        self, spec: FetchSpec, render: Callable[[list[FetchedPartition]], AnswerT]
    ) -> AnswerT | asyncio.Future[AnswerT]:
        """Do as `fetch` does, and answer with what `render` makes of it."""
        return self._fetches.fetch(spec, render)

    def read_local(
        self,
        topic_partition: TopicPartition,
        offset: int,
        max_bytes: int,
        end: ReadEnd = ReadEnd.HIGH_WATERMARK,
    ) -> LocalRead:
        """Read whole batches from our replica, whatever its role; at least one if there is any."""
        driver = self._drivers.get(topic_partition)
        if driver is None:
            return LocalRead(self._replicas.error_for_missing(topic_partition))
        try:
            read = driver.read(Offset(offset), max_bytes=max_bytes, end=end, at_least_one=True)
        except OffsetOutOfRange:
            return LocalRead(ErrorCode.OFFSET_OUT_OF_RANGE)
        except StorageError:
            return LocalRead(ErrorCode.KAFKA_STORAGE_ERROR)
        return LocalRead(ErrorCode.NONE, b"".join(read.chunks), Offset(read.next_offset))

    def advance_log_start(self, topic_partition: TopicPartition, offset: Offset) -> None:
        """Let go of committed records below `offset`, if we lead: see `RecordDeletions`."""
        self.deletions.advance_log_start(topic_partition, offset)

    def list_offset(
        self,
        topic_partition: TopicPartition,
        timestamp_ms: int,
        leader_epoch: Epoch = NO_EPOCH,
        replica_id: BrokerId = NO_REPLICA,
    ) -> OffsetAnswer:
        """ListOffsets: -1 latest, -2 earliest, -3 of the largest timestamp, else by time."""
        driver = self._drivers.get(topic_partition)
        if driver is None:
            return OffsetAnswer(self._replicas.error_for_missing(topic_partition))
        return look_up_offset(driver, timestamp_ms, leader_epoch, replica_id)

    def epoch_end(
        self,
        topic_partition: TopicPartition,
        epoch: Epoch,
        *,
        current_leader_epoch: Epoch = NO_EPOCH,
    ) -> tuple[ErrorCode, Epoch, Offset]:
        """OffsetForLeaderEpoch: the largest epoch not above `epoch`, and its end (exclusive)."""
        driver = self._drivers.get(topic_partition)
        if driver is None:
            error_code = self._replicas.error_for_missing(topic_partition)
            return error_code, NO_EPOCH, UNKNOWN_OFFSET
        return look_up_epoch_end(driver, epoch, current_leader_epoch)

    # --- Beside the data path ---

    async def _tick(self) -> None:
        interval_ms = min(TICK_MS_MAX, max(1, self.settings.replica_lag_time_max_ms // 2))
        expire_ms = self.settings.producer_id_expiration_check_interval_ms
        next_expiry_ms = monotonic_ms() + expire_ms
        while True:
            await asyncio.sleep(interval_ms / 1000)
            now_ms = monotonic_ms()
            for driver in list(self._drivers.values()):
                if driver.log.failure is not None:
                    raise driver.log.failure  # nobody may append: the tick is who notices
                driver.note_tick(now_ms)
            if now_ms >= next_expiry_ms:
                next_expiry_ms = now_ms + expire_ms
                for driver in self._drivers.values():
                    driver.producers.expire(
                        self._wall_ms(), self.settings.producer_id_expiration_ms
                    )

    def _close_logs(self) -> None:
        logs = {at: driver.log for at, driver in self._drivers.items()}
        epoch = self.broker_epoch
        if epoch == -1 and self.clean_shutdown_epoch is not None:
            epoch = self.clean_shutdown_epoch  # never registered: what was closed is so still
        self._logs.close(logs, self._checkpoints.high_watermarks(), epoch)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        _logger.error("the broker cannot go on: %s", error)
        if not self.failure.done():
            self.failure.set_exception(error)
            self.failure.exception()  # it is noticed here even if nobody awaits it


def _resolve(future: asyncio.Future[ProduceResult], result: ProduceResult) -> None:
    if not future.done():
        future.set_result(result)
