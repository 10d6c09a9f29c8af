"""The dependencies of a partition's driver: the receivers of its effects."""

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
    """The delayed fetches."""

    def note_change(self, topic_partition: TopicPartition, change: FetchWakeup) -> None:
        """Try again to complete the fetches that wait for this partition."""


class Fetchers(Protocol):
    """The fetchers of leaders' records."""

    def follow(self, driver: "PartitionDriver", leader_id: BrokerId, leader_epoch: Epoch) -> None:
        """Replicate from this leader, and stop replicating from any other."""

    def unfollow(self, driver: "PartitionDriver") -> None:
        """Stop replicating."""

    def resume(self) -> None:
        """Fetch at once, by the calls of `follow` and `unfollow` so far: no image may come."""

    def touch(self, driver: "PartitionDriver") -> None:
        """Check this partition's fetch parameters again before the next fetch."""

    def note_flush_ended(self, driver: "PartitionDriver") -> None:
        """Resume fetching: the next fetch no longer waits for this log's flush."""


class Proposals(Protocol):
    """The ISR proposals to the controller."""

    def add(self, driver: "PartitionDriver", proposal: effects.ProposeIsr) -> None:
        """Send a proposal; feed IsrAnswered back, whatever its outcome."""


class LogStartKeeper(Protocol):
    """Makes log starts durable."""

    def note(self, driver: "PartitionDriver") -> None:
        """Make the new log start durable; report it by `note_log_start_kept`."""


class Removals(Protocol):
    """The removals of dead files."""

    def add(self, delay_ms: int, work: Callable[[], None]) -> None:
        """Do `work` in the disk queue after the delay, or leave the files to the next start."""

    def add_of_topic(self, topic: str, work: Callable[[], None]) -> None:
        """Do `work` after the topic's delay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionDependencies:
    """The receivers of a partition's effects; all partitions of a broker share them."""

    now_ms: Callable[[], int]  # monotonic
    disk: DiskQueue
    flushes: DiskQueue
    checkpoints: DirectoryCheckpoints
    readers: Readers
    fetchers: Fetchers
    proposals: Proposals
    log_starts: LogStartKeeper
    removals: Removals
    listeners: Sequence[LeadershipListener]
    failed: Callable[["PartitionDriver", StorageError], None]  # its log is unusable
    report: Callable[[TopicPartition], None]  # sends the state of its log to the controller
    clock_ahead_ms: Callable[[], int] = lambda: 0  # of this broker's clock to the clients'
    has_other_directories: Callable[[], bool] = lambda: False  # that work, if this one fails
    new_flusher: type[LogFlusher] = LogFlusher
