"""The log directory of each replica, and how far its log is whole: reports of both, and moves."""

from collections.abc import Callable, Iterable
from typing import Final

from quorumlog.broker.controller_requests.replica_reports import ReplicaReports
from quorumlog.broker.partitions.core.partition import PartitionRules
from quorumlog.broker.partitions.io.directory_moves import DirectoryMoves
from quorumlog.broker.partitions.log.disk_queue import DiskQueue
from quorumlog.broker.partitions.log.replica_set import ReplicaSet
from quorumlog.broker.settings import BrokerSettings
from quorumlog.metadata_quorum.controller_client import ControllerClient, ReplicaDirectory
from quorumlog.tasks import Tasks
from quorumlog.wire.codec.identifiers import BrokerId, PartitionIndex, TopicPartition

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
            send=controller.assign_replicas,
            broker_epoch=broker_epoch,
        )
        self._log_reports: Final = ReplicaReports(
            "ReportLogs",
            report_of=lambda at: replicas.reported.report_of(at, replicas.image, broker_epoch()),
            send=controller.report_logs,
            broker_epoch=broker_epoch,
        )
        self.moves: Final = DirectoryMoves(
            broker_id,
            replicas,
            disk,
            rules=rules.directory_moves(),
            throttle=rules.throttle.of_moves(broker_id, settings, lambda: replicas.image),
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
