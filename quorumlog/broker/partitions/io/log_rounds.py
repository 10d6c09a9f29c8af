"""Helpers of the tasks that visit all logs of a broker: retention and cleaning."""

from typing import Final

from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.partitions.log.replica_set import ReplicaSet

LOGS_PER_TURN: Final = 100  # idle logs visited before the event loop gets a turn


def is_at_rest(replicas: ReplicaSet, driver: PartitionDriver) -> bool:
    """Whether the log is still open and usable, and no thread truncates it."""
    is_here = replicas.drivers.get(driver.topic_partition) is driver
    return is_here and not driver.is_cutting and driver.log.failure is None
