"""Where each replica of a broker is: what the controller is told of that, and the moves."""

from collections.abc import Callable, Iterable
from typing import Final

from quorumlog.broker.controller_requests.directory_assignments import DirectoryAssignments
from quorumlog.broker.partitions.core.partition import PartitionRules
from quorumlog.broker.partitions.io.directory_moves import DirectoryMoves
from quorumlog.broker.partitions.log.disk_queue import DiskQueue
from quorumlog.broker.partitions.log.replica_set import ReplicaSet
from quorumlog.broker.settings import BrokerSettings
from quorumlog.metadata_quorum.controller_client import ControllerClient
from quorumlog.tasks import Tasks
from quorumlog.wire.codec.identifiers import BrokerId, TopicPartition

__all__ = ["DirectoryMoves", "ReplicaDirectories"]


class ReplicaDirectories:
    """Runs two tasks."""

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
        self._assignments: Final = DirectoryAssignments(
            broker_id,
            controller,
            logs=replicas.logs,
            image=lambda: replicas.image,
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
        """Tell and move until the tasks are stopped."""
        tasks.start(self._assignments.run())
        tasks.start(self.moves.run())

    def registered(self) -> None:
        """Take note that the controller knows this process."""
        self._assignments.wake()

    def note(self, changed: Iterable[TopicPartition]) -> None:
        """Take note of published metadata, and of logs that were opened or have failed."""
        self._assignments.note(changed)
        self.moves.table.look()
