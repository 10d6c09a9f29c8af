"""One broker process: the real replicas and logs on a simulated machine and network.

It does what tasks and sockets do in a real broker: registers, sends heartbeats, follows metadata,
fetches from leaders, proposes ISRs, writes checkpoints. The cores make all decisions.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from quorumlog.broker.partitions.core.data_path import (
    ACKS_ALL,
    LeadershipListener,
    ProduceDone,
)
from quorumlog.broker.partitions.core.partition import PartitionRules
from quorumlog.broker.partitions.log.appends import Appends
from quorumlog.broker.partitions.log.log_directories import LogDirectories
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.partitions.log.replica_set import ReplicaSet
from quorumlog.broker.partitions.log.surroundings import Surroundings
from quorumlog.broker.settings import BrokerSettings
from quorumlog.chaos.mutants.parts import Parts
from quorumlog.chaos.simulation.kernel.machine import Machine
from quorumlog.chaos.simulation.kernel.run import Environment
from quorumlog.chaos.simulation.worlds.brokers.controller_node import ControllerNode
from quorumlog.chaos.simulation.worlds.brokers.controller_requests import ControllerRequests
from quorumlog.chaos.simulation.worlds.brokers.disk_queue import (
    LOG_DIR,
    SimulatedDiskQueue,
    at_once,
    late_outcomes,
    maybe_repair,
    orphaned_in,
)
from quorumlog.chaos.simulation.worlds.brokers.fetching import Fetching
from quorumlog.chaos.simulation.worlds.brokers.oracle import ReplicationOracle
from quorumlog.chaos.simulation.worlds.entries import entries_of
from quorumlog.metadata_quorum.controller_client import (
    BrokerHeartbeat,
    BrokerRegistration,
    HeartbeatReply,
    RegistrationReply,
)
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset, TopicPartition

HEARTBEAT_US: Final = 300_000
REGISTER_AGAIN_US: Final = 400_000
TICK_US: Final = 100_000
CHECKPOINT_US: Final = 700_000
FLUSH_US: Final = 500_000
FLUSH_ACKS_US: Final = 100_000  # FLUSH_US of brokers that acknowledge what is on the disk
TELL_US: Final = 40_000
PRODUCE_TIMEOUT_MS: Final = 2_000
PRODUCER_EXPIRATION_MS: Final = 86_400_000
ALL_BYTES: Final = 1 << 30
SETTINGS: Final = BrokerSettings(replica_lag_time_max_ms=1_200)


class Coordinators(LeadershipListener, Protocol):
    """The work of the broker for the partitions that it leads."""

    def forget(self) -> None:
        """Forget all: the process starts anew."""

    def topics_deleted(self, names: Collection[str]) -> None:
        """Hear that topics are gone. Those of the same names that there are now are others."""


def telling_one_at_once(rules: PartitionRules) -> PartitionRules:
    """Return rules that apply an image to one replica for each turn of the event loop."""

    class OneAtOnce(rules.untold_news):  # type: ignore[name-defined,misc]  # a class by value
        at_once = 1

    return replace(rules, untold_news=OneAtOnce)


class BrokerNode:
    """A Process, and the Surroundings of its partitions.

    All that arrives goes through `take`, which a pause holds up.
    """

    def __init__(
        self,
        machine: Machine,
        *,
        environment: Environment,
        controller: ControllerNode,
        oracle: ReplicationOracle,
        peers: Mapping[int, "BrokerNode"],
        parts: Parts,
        segment_bytes: int,
        fetch_bytes_max: int,
        flush_acks: bool,
    ) -> None:
        self.machine: Final = machine
        self.node_id: Final = BrokerId(machine.node_id)
        self.replicas: ReplicaSet
        self.appends: Appends
        self.broker_epoch = -1
        self.coordinators: list[Coordinators] = []  # set once, before the run
        self._environment: Final = environment
        self._controller: Final = controller
        self._oracle: Final = oracle
        self._requests: Final = ControllerRequests(self, environment, controller)
        self.fetching: Final = Fetching(self, environment, peers, fetch_bytes_max=fetch_bytes_max)
        self._parts: Final = parts
        self._settings: Final = replace(SETTINGS, log_flush_acks=flush_acks)
        self._late_us: Final = late_outcomes(environment, self.node_id) if flush_acks else at_once
        self._log_settings: Final = LogSettings(segment_bytes=segment_bytes)
        self._logs: LogDirectories
        self._replay: ClusterReplay
        self._inbox: Final = deque[tuple[Callable[..., None], tuple[object, ...]]]()
        # Places of the logs, and their ends as the oracle knows them.
        self._ends: Final[dict[TopicPartition, tuple[TopicPartition, int]]] = {}
        self._reboots = 0
        self._is_published = False  # the image that shows our registration
        self._may_have_lost_power = False  # since its logs were open
        self._failure: BaseException | None = None

    # --- a life of the process ---

    def boot(self) -> None:
        """Start from what is on the disk. Raises StorageError."""
        self.broker_epoch, self._failure = -1, None
        self._is_published = False
        for volatile in (self._inbox, self._ends):
            volatile.clear()
        self.fetching.forget()
        self._requests.forget()
        for coordinators in self.coordinators:
            coordinators.forget()
        parts = self._parts
        disk = parts.disk(self.machine.disk)
        logs = parts.directory(disk, LOG_DIR, self._log_settings, parts.log)
        self._logs = LogDirectories([logs])
        self._logs.start()
        logs.registrations.may_have_lost_power = self._may_have_lost_power
        self._replay = ClusterReplay(ClusterImage())
        self.replicas = ReplicaSet(
            self.node_id,
            self._settings,
            self._logs,
            rules=telling_one_at_once(parts.partition),
            now_ms=self.machine.now_ms,
            opened=lambda _: None,  # the next step shows the log to the oracle
            failed=self._note_failure,
        )
        new_queue = partial(
            SimulatedDiskQueue, self.machine, self._environment, self.take, self._late_us
        )
        self.disk_queue = new_queue()
        around = Surroundings(
            now_ms=self.machine.now_ms,
            disk=self.disk_queue,
            flushes=new_queue(),
            checkpoints=self._logs.checkpoints,
            readers=self,
            fetchers=self.fetching,
            proposals=self._requests,
            log_starts=self,
            listeners=self.coordinators,
            failed=lambda _, error: self._note_failure(error),
            report=self._requests.report,
            new_flusher=parts.flusher,
        )
        self.replicas.connect(around)
        now_ms = self.machine.now_ms
        self.appends = Appends(
            self.replicas,
            now_ms=now_ms,
            wall_ms=now_ms,
            arm=lambda _: None,  # each tick expires the produces that are due
        )
        self._register()
        self._every(TICK_US, self._tick)
        self._every(HEARTBEAT_US, self._send_heartbeat)
        self._every(CHECKPOINT_US, self._checkpoint)
        self._every(FLUSH_ACKS_US if self._settings.log_flush_acks else FLUSH_US, self._flush)

    def stopped(self, *, loses_power: bool) -> None:
        """Note what is lost."""
        self._reboots += loses_power
        self._may_have_lost_power |= loses_power
        self._oracle.stopped(self.node_id, loses_power=loses_power)

    def resumed(self) -> None:
        """Take what has waited."""
        while self._inbox and self.machine.is_up and not self.machine.is_paused:
            action, arguments = self._inbox.popleft()
            self._step(action, arguments)

    def take(self, action: Callable[..., None], *arguments: object) -> None:
        """Do what a message or a timer asks: now, or after the pause."""
        if self.machine.is_up and (self.machine.is_paused or self._inbox):
            self._inbox.append((action, arguments))
        elif self.machine.is_up:
            self._step(action, arguments)

    def _step(self, action: Callable[..., None], arguments: tuple[object, ...]) -> None:
        try:
            action(*arguments)
        except StorageError as error:
            self._failure = error
        finally:
            self._trace(action.__name__, arguments)
        failure = self._failure or orphaned_in(self.replicas)
        if failure is not None:
            are_of = partial(self._oracle.are_of, self.node_id)
            maybe_repair(self.machine.disk, failure, are_of)
            self.machine.fail()
            return
        for at in sorted(self._ends.keys() - self.replicas.drivers.keys()):
            self._oracle.removed(self.node_id, self._ends.pop(at)[0])
        for at, driver in self.replicas.drivers.items():
            self._observe(at, driver)

    def _every(self, period_us: int, action: Callable[[], None]) -> None:
        def again() -> None:
            self.take(action)
            self.machine.later(period_us, again)

        self.machine.later(period_us, again)

    def _note_failure(self, error: BaseException) -> None:
        self._failure = error

    def _observe(self, at: TopicPartition, driver: PartitionDriver) -> None:
        """Show the oracle what has changed in a log and its high watermark."""
        end = driver.log.log_end_offset
        if driver.is_cutting:
            return
        place, known = self._ends.get(at) or (
            self._oracle.topics.place_of(at, driver.topic_id),
            None,
        )
        if end != known:
            self._ends[at] = place, end
        if known is None:
            self._oracle.recovered(self.node_id, place, entries_of(self._read(driver, 0)))
        elif end > known:
            self._oracle.appended(self.node_id, place, entries_of(self._read(driver, known)))
        elif end < known:
            self._oracle.truncated(self.node_id, place, end)
        state = driver.partition.state
        self._oracle.showed(
            self.node_id,
            place,
            state.high_watermark,
            leads=state.is_leader,
            leader_epoch=state.leader_epoch,
        )

    def _read(self, driver: PartitionDriver, start: int) -> bytes:
        log, chunks, offset = driver.log, [], Offset(start)
        while offset < log.log_end_offset:
            found = log.read(offset, max_bytes=ALL_BYTES, end_offset=log.log_end_offset)
            chunks.append(bytes(found.records))
            offset = found.next_offset
        return b"".join(chunks)

    def _trace(self, name: str, arguments: tuple[object, ...]) -> None:
        states = tuple(
            (
                str(at),
                type(driver.partition.state.role).__name__,
                driver.partition.state.leader_epoch,
                driver.log.log_end_offset,
                driver.partition.state.high_watermark,
            )
            for at, driver in self.replicas.drivers.items()
        )
        outline = f"{name} {states}".encode()
        now_us = self.machine.timeline.now_us
        self.machine.trace.stepped(
            now_us, self.node_id, outline, _render, name.strip("_"), arguments, states
        )

    # --- requests to the controller ---

    def _register(self) -> None:
        request = BrokerRegistration(
            broker_id=self.node_id,
            incarnation_id=str(self.machine.incarnation),
            host="localhost",
            port=9092,
            control_address=f"localhost:{19000 + self.node_id}",
            directory_id=f"directory {self.node_id}",
            boot_id=f"boot {self._reboots}",
        )
        self._requests.ask(request, self._registered)
        self.machine.later(REGISTER_AGAIN_US, self.take, self._register_again)

    def _register_again(self) -> None:
        if self.broker_epoch < 0:
            self._register()

    def _registered(self, reply: RegistrationReply) -> None:
        if reply.error_code is ErrorCode.NONE and reply.broker_epoch > self.broker_epoch:
            self.broker_epoch = reply.broker_epoch
            self._publish()

    def _send_heartbeat(self) -> None:
        if self.broker_epoch < 0:
            return
        request = BrokerHeartbeat(
            broker_id=self.node_id,
            broker_epoch=self.broker_epoch,
            metadata_offset=self._replay.end_offset - 1,
            want_fence=not self._is_published,
            is_opening=True,
        )
        self._requests.send_reports()
        if self._is_published and not self.replicas.is_opening:
            self._may_have_lost_power = False
        self._requests.ask(request, self._heartbeat_answered)

    def _heartbeat_answered(self, reply: HeartbeatReply) -> None:
        if reply.error_code is not ErrorCode.NONE and self.broker_epoch >= 0:
            self.broker_epoch = -1
            self._register()

    # --- metadata ---

    def learn(self, end: int) -> None:
        """Replay the metadata log up to an offset (exclusive)."""
        for offset in range(self._replay.end_offset, end):
            self._replay.apply(Offset(offset), self._controller.records[offset])
        self._publish()

    def _publish(self) -> None:
        """Act on the newest image, but on none before our registration (decision 13)."""
        broker = self._replay.brokers.get(self.node_id)
        if not self._is_published and (
            broker is None or self.broker_epoch < 0 or broker.broker_epoch != self.broker_epoch
        ):
            return
        self._is_published = True
        delta, image = self._replay.publish(
            end_offset=self._replay.end_offset,
            epoch=Epoch(self._controller.takeovers),
            controller_id=BrokerId(0),
        )
        self.replicas.publish(delta, image)
        if delta.deleted_topics:
            for coordinators in self.coordinators:
                coordinators.topics_deleted(delta.deleted_topics)
        self._tell_slice()

    def _tell_slice(self) -> None:
        self.replicas.tell_slice()
        if self.replicas.has_untold:
            self.machine.later(TELL_US, self.take, self._tell_slice)

    # --- time ---

    def _tick(self) -> None:
        now_ms = self.machine.now_ms()
        for driver in self.replicas.drivers.values():
            driver.note_tick(now_ms)
            driver.producers.expire(now_ms, PRODUCER_EXPIRATION_MS)
        self.appends.expire(now_ms)

    def _checkpoint(self) -> None:
        drivers, checkpoints = self.replicas.drivers, self._logs.checkpoints
        checkpoints.note_high_watermarks(
            {at: one.partition.state.high_watermark for at, one in drivers.items()}
        )
        checkpoints.note_recovery_points({at: one.log for at, one in drivers.items()})
        checkpoints.write_high_watermarks()
        checkpoints.write_recovery_points()

    def _flush(self) -> None:
        """Write back one log, as the system does now and then, or the checkpoints of a broker."""
        drivers = self.replicas.drivers
        if drivers:
            turn = self.machine.timeline.now_us // FLUSH_US % len(drivers)
            driver = [*drivers.values()][turn]
            if self._settings.log_flush_acks:
                self.disk_queue.submit(driver.topic_partition, driver.log.flush, lambda _: None)
            elif not driver.is_cutting:
                driver.log.flush()

    # --- the surroundings of a partition ---

    def note_change(self, topic_partition: TopicPartition, change: object) -> None:
        """Do nothing: followers ask again soon, and there are no consumers."""

    def note(self, driver: PartitionDriver) -> None:
        """Do nothing: no log is deleted from its start."""

    # --- producing ---

    def produce(
        self,
        at: TopicPartition,
        batch: bytes,
        done: ProduceDone,
        timeout_ms: int = PRODUCE_TIMEOUT_MS,
    ) -> None:
        """Append one batch with acks=all; `done` gets the outcome, now or later."""
        self.appends.append(at, batch, acks=ACKS_ALL, timeout_ms=timeout_ms, done=done)


def _render(
    name: str,
    arguments: tuple[object, ...],
    states: tuple[tuple[str, str, int, int, int], ...],
) -> str:
    shown = " ".join(_shown(one) for one in arguments)
    logs = "; ".join(
        f"{at} {role} epoch={epoch} end={end} committed={committed}"
        for at, role, epoch, end, committed in states
    )
    return f"{name} {shown} => {logs}"


def _shown(argument: object) -> str:
    if isinstance(argument, bytes):
        return f"{len(argument)} bytes"
    return "" if callable(argument) else str(argument)[:200]
