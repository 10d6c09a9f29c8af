"""Where everything goes that leaves a partition: what its driver is given."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from quorumlog.broker.partitions.core import effects
from quorumlog.broker.partitions.core.data_path import LeadershipListener
from quorumlog.broker.partitions.core.fetch_wakeup import FetchWakeup
from quorumlog.broker.partitions.log.directory_checkpoints import DirectoryCheckpoints
from quorumlog.broker.partitions.log.disk_queue import DiskQueue
from quorumlog.broker.partitions.log.log_flusher import LogFlusher
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, TopicPartition

if TYPE_CHECKING:
    from quorumlog.broker.partitions.log.partition_driver import PartitionDriver


class Readers(Protocol):
    """The fetches that wait."""

    def note_change(self, topic_partition: TopicPartition, change: FetchWakeup) -> None:
        """Try again to complete those that wait for this partition."""


class Fetchers(Protocol):
    """The fetchers of leaders' records."""

    def follow(self, driver: "PartitionDriver", leader_id: BrokerId, leader_epoch: Epoch) -> None:
        """Replicate from this leader, and from no other."""

    def unfollow(self, driver: "PartitionDriver") -> None:
        """Replicate from none."""

    def wake(self) -> None:
        """Fetch at once: a partition has something else to ask."""

    def touch(self, driver: "PartitionDriver") -> None:
        """Look at what is asked for this log again, before the next fetch."""

    def note_flush_ended(self, driver: "PartitionDriver") -> None:
        """Fetch on: the next fetch waits no more for this log's flush."""


class Proposals(Protocol):
    """What is asked of the controller."""

    def add(self, driver: "PartitionDriver", proposal: effects.ProposeIsr) -> None:
        """Send it; feed IsrAnswered back, whatever becomes of it."""


class LogStartKeeper(Protocol):
    """Makes log starts durable."""

    def note(self, driver: "PartitionDriver") -> None:
        """Let the new log start outlive the process; say so by `note_log_start_kept`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where everything goes that leaves a partition; all partitions of a broker share them."""

    now_ms: Callable[[], int]  # monotonic
    disk: DiskQueue
    flushes: DiskQueue
    checkpoints: DirectoryCheckpoints
    readers: Readers
    fetchers: Fetchers
    proposals: Proposals
    log_starts: LogStartKeeper
    listeners: Sequence[LeadershipListener]
    failed: Callable[["PartitionDriver", StorageError], None]  # its log is of no more use
    report: Callable[[TopicPartition], None]  # to the controller, how far its log is whole
    has_other_directories: Callable[[], bool] = lambda: False  # if that of a log fails
    new_flusher: type[LogFlusher] = LogFlusher
