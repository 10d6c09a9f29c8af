"""What the tasks have in common that go round all logs of a broker: retention and cleaning."""

from typing import Final

from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.partitions.log.replica_set import ReplicaSet

LOGS_PER_TURN: Final = 100  # that need nothing: the event loop goes on after so many


def is_at_rest(replicas: ReplicaSet, driver: PartitionDriver) -> bool:
    """Whether the log is still open and of use, and no thread cuts it."""
    is_here = replicas.drivers.get(driver.topic_partition) is driver
    return is_here and not driver.is_cutting and driver.log.failure is None
