"""The log directory of each replica, and how far its log is whole: reports of both, and moves."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from quorumlog.broker.partitions.core.partition import PartitionRules
from quorumlog.broker.partitions.core.replication_throttle import OF_MOVES
from quorumlog.broker.partitions.io.directory_moves import DirectoryMoves
from quorumlog.broker.partitions.log.disk_queue import DiskQueue
from quorumlog.broker.partitions.log.replica_set import ReplicaSet
from quorumlog.broker.settings import BrokerSettings
from quorumlog.invariants import require
from quorumlog.metadata_quorum.cluster_changes import RequestFor
from quorumlog.metadata_quorum.controller_client import (
    ControllerClient,
    ControllerUnavailable,
    ReplicaDirectory,
)
from quorumlog.metadata_quorum.controller_requests import AssignReplicas, ReportLogs, ReportReply
from quorumlog.tasks import Tasks
from quorumlog.wakeup import Wakeup
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, PartitionIndex, TopicPartition

PER_REQUEST: Final = 500  # replicas: a small piece of work for the controller
RETRY_BACKOFF_S: Final = 0.5

ReportT = TypeVar("ReportT")
_logger: Final = logging.getLogger(__name__)


class ReplicaReports(Generic[ReportT]):
    """Runs one task. It sends no request while `broker_epoch()` is -1, that is, not registered.

    `report_of` returns the report of a replica; None: the controller needs none. It is called when
    the request is sent: by then a report may be needless.
    """

    def __init__(
        self,
        name: str,
        *,
        report_of: Callable[[TopicPartition], ReportT | None],
        request_with: Callable[[int, tuple[ReportT, ...]], RequestFor[ReportReply]],
        controller: ControllerClient,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._name: Final = name
        self._report_of: Final = report_of
        self._request_with: Final = request_with
        self._controller: Final = controller
        self._broker_epoch: Final = broker_epoch
        self._to_look_at: dict[TopicPartition, None] = {}
        self._wake: Final = Wakeup()
        self.wake: Final = self._wake.set  # to check again for reports to send

    def note(self, changed: Iterable[TopicPartition]) -> None:
        """Check whether these replicas need a report."""
        self._to_look_at.update(dict.fromkeys(changed))
        self._wake.set()

    def check_progress(self) -> None:
        """Raise InvariantViolation if a replica is to be checked, and the task sleeps."""
        is_due = bool(self._to_look_at) and self._broker_epoch() >= 0
        require(not (is_due and self._wake.sleeps()), f"{self._name}: {[*self._to_look_at][:3]}")

    async def run(self) -> None:
        """Send the reports that the controller needs until cancelled."""
        while True:
            await self._wake.wait()
            while self._to_look_at and self._broker_epoch() >= 0:  # `registered` wakes the task
                if not await self._send_some():
                    await asyncio.sleep(RETRY_BACKOFF_S)

    async def _send_some(self) -> bool:
        """Send some reports; return False if they must be sent again."""
        looked_at = [at for at, _ in zip(self._to_look_at, range(PER_REQUEST), strict=False)]
        for at in looked_at:
            del self._to_look_at[at]
        reports = tuple(one for one in map(self._report_of, looked_at) if one is not None)
        if not reports:
            await asyncio.sleep(0)
            return True
        try:
            request = self._request_with(self._broker_epoch(), reports)
            error_code = (await self._controller.ask(request)).error_code
        except ControllerUnavailable as error:
            _logger.info("%s of %d replicas: %s", self._name, len(reports), error)
            error_code = ErrorCode.REQUEST_TIMED_OUT
        if error_code is ErrorCode.NONE:
            return True
        self._to_look_at.update(dict.fromkeys(looked_at))
        return False


__all__ = ["DirectoryMoves", "ReplicaDirectories"]


class ReplicaDirectories:
    """Runs three tasks: two that send reports, one that moves replicas."""

    def __init__(
        self,
        broker_id: BrokerId,
        replicas: ReplicaSet,
        *,
        settings: BrokerSettings,
        controller: ControllerClient,
        disk: DiskQueue,
        rules: PartitionRules,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._broker_id: Final = broker_id
        self._replicas: Final = replicas
        self._assignments: Final = ReplicaReports(
            "AssignReplicasToDirs",
            report_of=self._unknown,
            request_with=lambda epoch, replicas: AssignReplicas(
                broker_id=broker_id, broker_epoch=epoch, replicas=replicas
            ),
            controller=controller,
            broker_epoch=broker_epoch,
        )
        self._log_reports: Final = ReplicaReports(
            "ReportLogs",
            report_of=lambda at: replicas.reported.report_of(at, replicas.image, broker_epoch()),
            request_with=lambda epoch, reports: ReportLogs(
                broker_id=broker_id, broker_epoch=epoch, reports=reports
            ),
            controller=controller,
            broker_epoch=broker_epoch,
        )
        self.moves: Final = DirectoryMoves(
            broker_id,
            replicas,
            disk,
            rules=rules.directory_moves(),
            throttle=rules.throttle(OF_MOVES, broker_id, settings, lambda: replicas.image),
            note_assignment=lambda at: self._assignments.note([at]),
        )

    def start(self, tasks: Tasks) -> None:
        """Report and move until the tasks are stopped."""
        tasks.start(self._assignments.run())
        tasks.start(self._log_reports.run())
        tasks.start(self.moves.run())

    def registered(self) -> None:
        """Send the due reports: the controller has registered this process."""
        self._assignments.wake()
        self._log_reports.wake()

    def check_progress(self) -> None:
        """Raise InvariantViolation if a report or a move waits, and its task sleeps."""
        self._assignments.check_progress()
        self._log_reports.check_progress()
        self.moves.check_progress()

    def note_log(self, at: TopicPartition) -> None:
        """Report how far a log is whole, if the controller needs that."""
        self._log_reports.note([at])

    def note(self, changed: Iterable[TopicPartition]) -> None:
        """Check these replicas after published metadata, or when logs were opened or failed."""
        self._assignments.note(changed)
        self.moves.table.look()

    def _unknown(self, at: TopicPartition) -> ReplicaDirectory | None:
        """Return the directory of a replica, if the image has another one.

        A broker with a single directory reports none. A replica whose directory failed before it
        was assigned is reported in that directory, so that the controller has the failure. A
        replica that is about to move is reported in its new directory.
        """
        image, logs = self._replicas.image, self._replicas.logs
        topic, partition = image.topics.get(at.topic), image.partition(at)
        reported = logs.reported(at)
        if topic is None or partition is None or reported is None:
            return None
        known = partition.directory_of(self._broker_id)
        is_known = known == reported or (known is None and not logs.are_several)
        if is_known or self._broker_id not in partition.replicas:
            return None
        return ReplicaDirectory(
            directory_id=reported, topic_id=topic.topic_id, partition=PartitionIndex(at.partition)
        )
