"""Where the effects of partitions go: parked fetches, fetchers, the controller, listeners."""

from collections.abc import Iterable
from typing import Final

from quorumlog.broker.controller_requests.isr_proposals import IsrProposals
from quorumlog.broker.fetching.io.delayed_fetch import PartitionChange
from quorumlog.broker.fetching.io.fetches import Fetches
from quorumlog.broker.following.io.replica_fetchers import ReplicaFetchers
from quorumlog.broker.partitions.core.data_path import LeadershipListener
from quorumlog.broker.partitions.core.effects import ProposeIsr
from quorumlog.broker.partitions.io.log_starts import LogStarts
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.wire.codec.identifiers import BrokerId, Epoch


class PartitionOutbox:
    """An Outbox."""

    def __init__(
        self,
        *,
        logs: LogDirectory,
        fetches: Fetches,
        fetchers: ReplicaFetchers,
        proposals: IsrProposals,
        log_starts: LogStarts,
        listeners: Iterable[LeadershipListener],
    ) -> None:
        self._logs: Final = logs
        self._fetches: Final = fetches
        self._fetchers: Final = fetchers
        self._proposals: Final = proposals
        self._log_starts: Final = log_starts
        self._listeners: Final = listeners

    def appended(self, driver: PartitionDriver) -> None:
        """Wake the followers."""
        self._fetches.note_change(driver.topic_partition, PartitionChange.APPENDED)

    def committed(self, driver: PartitionDriver) -> None:
        """Wake the consumers."""
        self._fetches.note_change(driver.topic_partition, PartitionChange.COMMITTED)

    def truncated(self, driver: PartitionDriver) -> None:
        """Correct the recovery point and the log start."""
        self._logs.note_truncated(driver.topic_partition, driver.log)

    def log_start_rose(self, driver: PartitionDriver) -> None:
        """Let it be written to the checkpoint; show it to the followers."""
        self._log_starts.note(driver)
        self._fetches.note_change(driver.topic_partition, PartitionChange.LOG_START)

    def start_fetching(
        self, driver: PartitionDriver, leader_id: BrokerId, leader_epoch: Epoch
    ) -> None:
        """Hand it to the fetcher of that leader."""
        self._fetchers.follow(driver, leader_id, leader_epoch)

    def stop_fetching(self, driver: PartitionDriver) -> None:
        """Take it from its fetcher."""
        self._fetchers.unfollow(driver)

    def propose_isr(self, driver: PartitionDriver, proposal: ProposeIsr) -> None:
        """Queue it for the controller."""
        self._proposals.add(driver, proposal)

    def became_leader(self, driver: PartitionDriver, leader_epoch: Epoch) -> None:
        """Tell the listeners."""
        for listener in self._listeners:
            listener.became_leader(driver.topic_partition, leader_epoch)

    def resigned(self, driver: PartitionDriver, leader_epoch: Epoch) -> None:
        """Tell the listeners."""
        for listener in self._listeners:
            listener.resigned(driver.topic_partition, leader_epoch)
