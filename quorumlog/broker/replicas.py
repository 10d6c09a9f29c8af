"""Every replica on this broker: applies the image, appends, fetches. The rules are in `core`.

Synchronous on the event loop's thread except `start` and `stop`, so it needs no locks; a disk queue
does the work that waits for the disk. A broken invariant ends in `failure`, which the node awaits.
A failed log directory takes its partitions offline; after the last, the broker gives up leadership
(`may_lead`).
"""

import asyncio
import gc
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from quorumlog.broker.controller_requests.isr_proposals import IsrProposals
from quorumlog.broker.fetching.io.fetches import Fetches
from quorumlog.broker.following.io.replica_fetcher import ReplicaFetcher
from quorumlog.broker.following.io.replica_fetchers import ReplicaFetchers
from quorumlog.broker.partitions.core.data_path import NO_REPLICA, LeadershipListener, OffsetAnswer
from quorumlog.broker.partitions.core.fetch_wakeup import FetchWakeup
from quorumlog.broker.partitions.core.isr import PendingIsr
from quorumlog.broker.partitions.core.partition import KAFKA_RULES, PartitionRules
from quorumlog.broker.partitions.core.replication_throttle import (
    OF_FOLLOWERS,
    OF_LEADERS,
    ReplicationThrottle,
    Side,
)
from quorumlog.broker.partitions.core.roles import Follower, Leader
from quorumlog.broker.partitions.core.traffic import BrokerTraffic
from quorumlog.broker.partitions.io.appends import TimedAppends
from quorumlog.broker.partitions.io.checkpoints import Checkpoints
from quorumlog.broker.partitions.io.descriptions import Descriptions
from quorumlog.broker.partitions.io.disk_threads import (
    OPENING_THREADS,
    THREADS,
    DiskThreads,
    performed,
)
from quorumlog.broker.partitions.io.log_starts import LogStarts
from quorumlog.broker.partitions.io.record_deletions import RecordDeletions
from quorumlog.broker.partitions.io.requested_passes import RequestedPasses
from quorumlog.broker.partitions.io.ticks import Ticks
from quorumlog.broker.partitions.log.dependencies import PartitionDependencies
from quorumlog.broker.partitions.log.disk_queue import DiskQueue
from quorumlog.broker.partitions.log.local_reads import LocalReads
from quorumlog.broker.partitions.log.log_directories import LogDirectories
from quorumlog.broker.partitions.log.offset_lookup import look_up_epoch_end, look_up_offset
from quorumlog.broker.partitions.log.replica_set import STRAYS, ReplicaSet, log_refusal
from quorumlog.broker.peer_addresses import connecting
from quorumlog.broker.replica_directories import DirectoryMoves, ReplicaDirectories
from quorumlog.broker.settings import BrokerSettings
from quorumlog.clock import monotonic_ms, wall_clock_ms
from quorumlog.invariants import require
from quorumlog.metadata_quorum.controller_client import ControllerClient, DirectoryReport
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage
from quorumlog.tasks import Tasks
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import (
    NO_EPOCH,
    NO_LEADER,
    UNKNOWN_OFFSET,
    BrokerId,
    Epoch,
    Offset,
    TopicPartition,
)
from quorumlog.wire.io.security import ConnectionSecurity


class ImageApplier:
    """`applied` receives the partitions of each slice after the slice is applied."""

    def __init__(
        self, replicas: ReplicaSet, *, applied: Callable[[list[TopicPartition]], None]
    ) -> None:
        self._replicas: Final = replicas
        self._applied: Final = applied
        self._is_due = False

    def resume(self, first: list[TopicPartition]) -> None:
        """Report the first slice of an image; schedule the others."""
        self._applied(first)
        if self._replicas.has_pending_updates and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._apply_slice)

    def _apply_slice(self) -> None:
        self._is_due = False
        if self._replicas.has_pending_updates:
            self.resume(self._replicas.apply_slice())


# While many logs are being opened, the first of them wait so long for a follow-up. It covers all
# open logs, and sends fetches for all of them: so it is rarer, the more there are.
FOLLOW_UP_S: Final = 0.02
FOLLOW_UP_PER_LOG_S: Final = 0.000_05
FIRST_FOLLOW_UP_S: Final = 10.0  # at the start: logs are followed when all are open
# The objects of a log live long. Visits by the garbage collector would cost a sixth of opening it,
# and hold the loop up for tenths of a second; freezing the objects costs nothing.
LOGS_PER_FREEZE: Final = 10

_logger: Final = logging.getLogger(__name__)


def _opening_threads(settings: BrokerSettings) -> int:
    return THREADS if settings.log_flush_acks else OPENING_THREADS


class Replicas:
    """Owns the partitions. An ImagePublisher: `start` it before the first `publish`.

    It is the CoordinatorLog of the coordinators. Created inside a running event loop. A mutant node
    passes its own `partition_rules`, with a broken rule. Tests pass a `disk_queue` (None: threads),
    to decide when work on the disk is done.
    """

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        settings: BrokerSettings,
        logs: LogDirectories,
        controller: ControllerClient,
        security: ConnectionSecurity,
        wall_ms: Callable[[], int] = wall_clock_ms,
        partition_rules: PartitionRules = KAFKA_RULES,
        disk_queue: DiskQueue | None = None,
        peer_addresses: Mapping[int, str] | None = None,
        new_dependencies: Callable[..., PartitionDependencies] = PartitionDependencies,
    ) -> None:
        self.broker_id: Final = broker_id
        self.broker_epoch = -1
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Set while all logs of the image with our registration are open, and a directory works.
        self.may_lead: Final = asyncio.Event()
        self.directory_failed: Final = asyncio.Event()  # another one; the listener clears it
        self._listeners: Final[list[LeadershipListener]] = []
        self._strays_are_gone = self._is_stopping = self._has_failed_log = False
        self._is_confirmed = False  # the log directories belong to this process
        self._changed: list[TopicPartition] = []  # since the last follow-up
        self._follow_up_due: asyncio.TimerHandle | None = None
        self._threads: Final = DiskThreads(self._fail, _opening_threads(settings))
        self.disk: Final[DiskQueue] = disk_queue or self._threads
        self._flush_threads: Final = DiskThreads(self._fail)
        self._logs: Final = logs
        self._replicas: Final = ReplicaSet(
            broker_id,
            settings,
            self._logs,
            rules=partition_rules,
            now_ms=monotonic_ms,
            opened=self._log_opened,
            failed=self._log_failed,
        )
        self._image_applier: Final = ImageApplier(self._replicas, applied=self._applied)
        self.drivers: Final = self._replicas.drivers  # read them, do not feed them
        self.appends: Final = TimedAppends(self._replicas, wall_ms=wall_ms, disk=self.disk)
        self.fetches: Final = self._new_fetches(partition_rules)
        self.response_memory, self.fetch_sessions = self.fetches.memory, self.fetches.sessions
        self.proposals: Final = IsrProposals(broker_id, controller, lambda: self.broker_epoch)
        self._directories: Final = self._new_directories(controller, partition_rules)
        self.security: Final = security  # of the connections to other brokers
        self._fetchers: Final = self._new_fetchers(wall_ms, peer_addresses or {}, partition_rules)
        disk, files, wake = self.disk, self._logs.checkpoints, self._fetchers.wake
        self._checkpoints: Final = Checkpoints(self.disk, files, self._replicas, settings)
        self.ticks: Final = Ticks(self._replicas, wall_ms, self.disk, partition_rules, files=files)
        self._log_starts: Final = LogStarts(disk, files, self.drivers, wake, self.ticks.removals)
        self.deletions: Final = RecordDeletions(self._replicas)
        self.append, self.append_marker = self.appends.append, self.appends.append_marker
        self.read_local: Final = LocalReads(self._replicas, self.disk).read
        self.advance_log_start: Final = self.deletions.advance_log_start
        self.descriptions: Final = Descriptions(
            self._replicas, self._logs, self._directories.moves.table.sizes
        )
        self._replicas.connect(self._dependencies(new_dependencies))
        self._tasks: Final = Tasks(self._fail)

    def _dependencies(
        self, new_dependencies: Callable[..., PartitionDependencies]
    ) -> PartitionDependencies:
        return new_dependencies(
            now_ms=monotonic_ms,
            disk=self.disk,
            flushes=self._flushes,
            checkpoints=self._logs.checkpoints,
            readers=self.fetches,
            fetchers=self._fetchers,
            proposals=self.proposals,
            log_starts=self._log_starts,
            removals=self.ticks.removals,
            listeners=self._listeners,
            failed=self._replicas.fail,
            report=self._directories.note_log,
            clock_ahead_ms=lambda: self._replicas.clock_ahead_ms,
            has_other_directories=lambda: len(self._logs.online) > 1,
        )

    def _new_directories(
        self, controller: ControllerClient, rules: PartitionRules
    ) -> ReplicaDirectories:
        return ReplicaDirectories(
            self.broker_id,
            self._replicas,
            settings=self.settings,
            controller=controller,
            disk=self.disk,
            rules=rules,
            broker_epoch=lambda: self.broker_epoch,
        )

    def _throttle(self, rules: PartitionRules, side: Side) -> ReplicationThrottle:
        return rules.throttle(side, self.broker_id, self.settings, lambda: self.image)

    def _new_fetches(self, rules: PartitionRules) -> Fetches:
        return Fetches(
            self.drivers,
            self._replicas.error_for_missing,
            self.settings,
            self.disk,
            throttle=self._throttle(rules, OF_LEADERS),
        )

    def _new_fetchers(
        self, wall_ms: Callable[[], int], peer_addresses: Mapping[int, str], rules: PartitionRules
    ) -> ReplicaFetchers:
        throttle = self._throttle(rules, OF_FOLLOWERS)
        new_fetcher = partial(
            ReplicaFetcher,
            broker_id=self.broker_id,
            settings=self.settings,
            broker_epoch=lambda: self.broker_epoch,
            wall_ms=wall_ms,
            failed=self._fail,
            connect=connecting(f"broker-{self.broker_id}-fetcher", self.security, self.settings),
            next_fetch_ms=throttle.next_fetch_ms,
        )
        return ReplicaFetchers(new_fetcher, peer_addresses)

    @property
    def _flushes(self) -> DiskQueue:
        """The threads of flushes: acknowledgements must not wait for logs that are being opened."""
        return self._flush_threads if self.disk is self._threads else self.disk

    @property
    def traffic(self) -> BrokerTraffic:
        """The counters of records and requests."""
        return self._replicas.traffic

    @property
    def passes(self) -> RequestedPasses:
        """Passes of retention and compaction that do not wait for their interval."""
        return RequestedPasses(self._replicas, self.ticks)

    def note_clock_ahead(self, ahead_ms: int) -> None:
        """Accept records of clients whose clocks are `ahead_ms` behind this broker's clock."""
        self._replicas.note_clock_ahead(ahead_ms)

    @property
    def moves(self) -> DirectoryMoves:
        """The moves of replicas between the log directories of this broker."""
        return self._directories.moves

    # --- Life ---

    async def start(self) -> None:
        """Read the log directory's checkpoints and run until `stop`. Raises StorageError.

        After DiskExhausted no task runs, and `start` may be called again.
        """
        self._logs.start()
        self._replicas.remove_files()
        self._tasks.start(self.proposals.run())
        self._directories.start(self._tasks)
        self._tasks.start(self._log_starts.run())
        self._tasks.start(self.ticks.run())
        self._tasks.start(self._checkpoints.run())
        self._tasks.start(self.ticks.retention.run())
        self._tasks.start(self.ticks.cleaner.run())

    async def stop(self) -> None:
        """Answer all waiting requests, close every log, mark a clean shutdown. Raises StorageError.

        Ignores later images: a log opened now would be marked clean although it is not.
        """
        self._is_stopping = True
        self._replicas.stop()
        await self._tasks.stop()
        await self._fetchers.stop()
        if self._follow_up_due is not None:
            self._follow_up_due.cancel()
        self.appends.stop()
        self.deletions.stop()
        self.ticks.removals.stop()
        for driver in self.drivers.values():
            driver.waiting.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.fetches.stop()
        await self._threads.drain()
        await self._flush_threads.drain()
        self.moves.table.close()
        await self._checkpoints.close_logs(
            self._flushes, self.broker_epoch, has_failed=self._has_failed_log
        )
        self._threads.close()
        self._flush_threads.close()
        if not self.failure.done():
            self.failure.cancel()

    @property
    def clean_shutdown_epoch(self) -> int | None:
        """The broker epoch of the last clean shutdown (-1: unknown); None: it was not clean."""
        return self._logs.clean_shutdown_epoch

    @property
    def incarnations(self) -> Mapping[str, tuple[str, ...]]:
        """By log directory, the processes to whose registrations it belonged at the start."""
        return self._logs.incarnations

    def directory_report(self) -> DirectoryReport:
        """Return the state of the log directories, for the controller."""
        return self._logs.report()

    def registered(self, broker_epoch: int) -> None:
        """Fetch and propose with this epoch from now on: this process is registered.

        No fetch is sent before. With the epoch of a former process, which the image may still have,
        a leader would count the records that the former process held, and that this one may lack.
        """
        self.broker_epoch = self._replicas.broker_epoch = broker_epoch
        self.proposals.wake()
        self._directories.registered()
        self._fetchers.wake()

    def add_leadership_listener(self, listener: LeadershipListener) -> None:
        """Notify `listener` of every change of leadership from now on."""
        self._listeners.append(listener)

    # --- Metadata ---

    @property
    def settings(self) -> BrokerSettings:
        """The broker's settings, including alterations since its start."""
        return self._replicas.settings

    @property
    def image(self) -> ClusterImage:
        """The newest published image."""
        return self._replicas.image

    def unanswering(self) -> tuple[BrokerId, ...]:
        """Return the leaders that leave a fetch of this broker unanswered, sorted."""
        return self._fetchers.unanswering()

    def is_to_lead(self, topic_partition: TopicPartition) -> bool:
        """Whether this broker is to lead a partition by the image, but does not lead it yet."""
        return self._replicas.is_to_lead(topic_partition)

    def publish(self, delta: ClusterDelta, image: ClusterImage) -> None:
        """Apply new metadata: lead, follow, create and delete replicas, now or later."""
        if not self._is_stopping:
            self._image_applier.resume(self._replicas.publish(delta, image))

    def _applied(self, changed: list[TopicPartition]) -> None:
        self._changed += changed
        self._follow_up()

    def _log_opened(self, topic_partition: TopicPartition) -> None:
        """Record that a partition's log is open or was refused; many logs share one follow-up."""
        if self._is_stopping:
            return
        self._changed.append(topic_partition)
        self.moves.table.note_opened(topic_partition)
        if len(self.drivers) % LOGS_PER_FREEZE == 0:
            gc.freeze()
        if not self._replicas.is_opening:
            self._follow_up()
        elif self._follow_up_due is None:
            first_s = FOLLOW_UP_S if self.may_lead.is_set() else FIRST_FOLLOW_UP_S
            delay_s = first_s + FOLLOW_UP_PER_LOG_S * len(self.drivers)
            loop = asyncio.get_running_loop()
            self._follow_up_due = loop.call_later(delay_s, self._follow_up)

    def _follow_up(self) -> None:
        """Publish the changes to the fetchers, the reports and the waiting fetches."""
        if self._follow_up_due is not None:
            self._follow_up_due.cancel()
            self._follow_up_due = None
        changed, self._changed = self._changed, []
        self._fetchers.publish(self.image)
        self._directories.note(changed)
        for topic_partition in changed:
            self.fetches.note_change(topic_partition, FetchWakeup.CHANGED)
        self._maybe_set_aside_strays()
        ours = self.image.process(self.broker_id, self.broker_epoch)
        if ours is not None and not self._replicas.is_opening and not self._has_failed_log:
            self.may_lead.set()
            if not self._is_confirmed:
                self._is_confirmed = True
                self.disk.submit(STRAYS, self._logs.confirm_registrations, log_refusal)

    def _log_failed(self, error: Exception) -> None:
        """Record that a directory has failed. After the last one, give up leadership for good.

        The last one is not trusted again, for as long as this process lives.

        # DEVIATION: Kafka ends the process when its last log directory fails.
        # docs/decisions/0021-disk-errors.md
        """
        self.directory_failed.set()
        if self._logs.last_has_failed and not self._has_failed_log:
            self._has_failed_log = True
            self.may_lead.clear()
            _logger.error(
                "the log directory %s has failed: this broker leads no partition until it is"
                " started again: %s",
                self._logs.paths,
                error,
            )

    def _maybe_set_aside_strays(self) -> None:
        """Set strays aside, once this process is unfenced: its image then has all assignments."""
        ours = self.image.process(self.broker_id, self.broker_epoch)
        is_unfenced = ours is not None and not ours.fenced
        if is_unfenced and not (self._strays_are_gone or self._replicas.has_pending_updates):
            self._strays_are_gone = True
            self._replicas.set_aside_strays()
            self.moves.table.discard_strays()

    def check_progress(self) -> None:
        """Raise InvariantViolation if a replica waits, and nothing will end its wait.

        A follower has a fetch, a deadline or disk work under way; an ISR proposal is in a request,
        or a tick repeats it; a report or a move has a task. Tests and simulations call it.
        """
        if self._is_stopping:
            return
        is_due = self._follow_up_due is not None or self._replicas.is_opening
        for driver in self.drivers.values():
            if driver.is_truncating:
                continue  # a thread has its log; events for it wait
            match driver.partition.state.role:
                case Follower(leader_id=leader_id, is_contradicted=False) as role:
                    if leader_id != NO_LEADER:
                        self._fetchers.check_progress(driver, role, is_due=is_due)
                case Leader(pending=PendingIsr(awaits_metadata=False, is_in_flight=in_flight)):
                    if in_flight:
                        self.proposals.check_progress(driver)
                    else:
                        repeats = driver.partition.needs_ticks()
                        require(repeats, f"{driver.topic_partition}: a tick repeats its proposal")
                case _:
                    pass
        self._directories.check_progress()

    # --- The data path ---

    async def list_offset(
        self,
        topic_partition: TopicPartition,
        timestamp_ms: int,
        leader_epoch: Epoch = NO_EPOCH,
        replica_id: BrokerId = NO_REPLICA,
        *,
        is_read_committed: bool = False,
    ) -> OffsetAnswer:
        """Return an offset (`look_up_offset`); look again if the log start moves meanwhile."""
        looked = None
        while True:
            driver = self.drivers.get(topic_partition)
            if driver is None or driver.is_truncating:
                return OffsetAnswer(self._replicas.error_for_missing(topic_partition))
            asked = driver, timestamp_ms, leader_epoch, replica_id, looked
            answer = look_up_offset(*asked, is_read_committed=is_read_committed)
            if isinstance(answer, OffsetAnswer):
                return answer
            looked = answer
            await performed(self.disk, topic_partition, looked.perform)

    def epoch_end(
        self,
        topic_partition: TopicPartition,
        epoch: Epoch,
        *,
        current_leader_epoch: Epoch = NO_EPOCH,
    ) -> tuple[ErrorCode, Epoch, Offset]:
        """Return the largest leader epoch not above `epoch`, and its end offset (exclusive)."""
        driver = self.drivers.get(topic_partition)
        if driver is None:
            error_code = self._replicas.error_for_missing(topic_partition)
            return error_code, NO_EPOCH, UNKNOWN_OFFSET
        return look_up_epoch_end(driver, epoch, current_leader_epoch)

    def _fail(self, error: BaseException) -> None:
        _logger.error("the broker cannot go on: %s", error)
        if not self.failure.done():
            self.failure.set_exception(error)
            self.failure.exception()  # mark it as retrieved even if no task awaits it
