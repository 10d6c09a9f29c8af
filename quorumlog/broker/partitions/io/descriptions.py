"""Descriptions of the local replicas for operators: bytes on disk, and producers. Reads only.

Sources: KIP-113 and KIP-827 (log directories), KIP-664 (producers).
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from quorumlog.broker.partitions.core.producer_state import ActiveProducer
from quorumlog.broker.partitions.log.log_directories import LogDirectories
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.partitions.log.move_table import FutureSize
from quorumlog.broker.partitions.log.replica_set import ReplicaSet
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition

PRODUCERS_AT_ONCE: Final = 1000  # described in one turn of the event loop: about a millisecond


class ReplicaSize(NamedTuple):
    """Bytes of one replica's segments, and how far its high watermark is ahead of its log end.

    For the copy of a moving log (`is_future`) the lag is to the end of that log.
    """

    topic_partition: TopicPartition
    size: int
    offset_lag: int
    is_future: bool = False


class LogDirectoryDescription(NamedTuple):
    """One log directory, in bytes; -1 and no replicas after a disk error (KAFKA_STORAGE_ERROR)."""

    path: str
    error_code: ErrorCode
    total_bytes: int = -1
    usable_bytes: int = -1
    replicas: Sequence[ReplicaSize] = ()


@dataclass(frozen=True, slots=True)
class Descriptions:
    """Descriptions of all replicas and log directories of this broker."""

    _replicas: ReplicaSet
    _logs: LogDirectories
    _futures: Callable[[], Mapping[TopicPartition, FutureSize]]

    def progress(self) -> str:
        """Describe the progress of opening or closing the logs: see `LogProgress`."""
        return self._logs.progress.describe(
            opened=len(self._replicas.drivers), left=self._replicas.left_to_open
        )

    @property
    def lacks_room(self) -> str | None:
        """The reason why a log waits for disk space before it opens; None: no log waits."""
        return self._replicas.lacks_room

    @property
    def offline_replicas(self) -> int:
        """The number of replicas whose logs have failed."""
        return self._replicas.offline_count

    @property
    def waiting_produces(self) -> int:
        """The number of produces that wait for replicas or for the disk; a run counts as one."""
        return len(self._replicas.deadlines)

    @property
    def offline_directories(self) -> int:
        """The number of log directories that have failed, or could not be used at the start."""
        return len(self._logs.failed) + len(self._logs.refused)

    def directory_of(self, at: TopicPartition) -> str | None:
        """Return the id of the log directory that holds a partition's log."""
        home = self._logs.home_of(at)
        return None if home is None else home.directory_id

    async def log_directories(
        self, wanted: Collection[TopicPartition] | None
    ) -> list[LogDirectoryDescription]:
        """Describe each log directory with its replicas; `wanted`: only these (None: all).

        Offline directories come last.
        """
        described = [await self._describe(directory, wanted) for directory in [*self._logs.online]]
        offline = [*(directory.path for directory in self._logs.failed), *self._logs.refused]
        error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return described + [
            LogDirectoryDescription(str(Path(path).absolute()), error_code) for path in offline
        ]

    async def _describe(
        self, directory: LogDirectory, wanted: Collection[TopicPartition] | None
    ) -> LogDirectoryDescription:
        path = str(Path(directory.path).absolute())
        drivers = self._replicas.drivers
        asked = sorted(drivers if wanted is None else {*wanted} & drivers.keys())
        asked = [at for at in asked if self._logs.home_of(at) is directory]
        logs = [drivers[at].log for at in asked]
        futures = [
            (at, future)
            for at, future in sorted(self._futures().items())
            if future.directory is directory and (wanted is None or at in wanted)
        ]
        try:
            total, usable = await asyncio.to_thread(directory.space)
            sizes = await asyncio.to_thread(_sizes, logs)
            copied = await asyncio.to_thread(_sizes, [future.log for _, future in futures])
        except (StorageError, OSError):
            return LogDirectoryDescription(path, ErrorCode.KAFKA_STORAGE_ERROR)
        # A replica that was removed meanwhile has no size any more.
        held = [(at, size) for at, size in zip(asked, sizes, strict=True) if at in drivers]
        replicas = [ReplicaSize(at, size, self._offset_lag(at)) for at, size in held]
        replicas += [
            ReplicaSize(at, size, future.offset_lag, is_future=True)
            for (at, future), size in zip(futures, copied, strict=True)
        ]
        return LogDirectoryDescription(path, ErrorCode.NONE, total, usable, sorted(replicas))

    def _offset_lag(self, at: TopicPartition) -> int:
        """Return the number of committed records that the log lacks."""
        partition = self._replicas.drivers[at].partition
        return max(partition.state.high_watermark - partition.state.log_end_offset, 0)

    async def producers(self, at: TopicPartition) -> tuple[ErrorCode, list[ActiveProducer]]:
        """Return the producers of a replica, in any role."""
        driver = self._replicas.drivers.get(at)
        if driver is None:
            return self._replicas.error_for_missing(at), []
        active = []
        for count, producer_id in enumerate(driver.producers.ids()):
            if count % PRODUCERS_AT_ONCE == PRODUCERS_AT_ONCE - 1:
                await asyncio.sleep(0)
            producer = driver.producers.describe(producer_id)
            if producer is not None:  # it may have expired meanwhile
                active.append(producer)
        return ErrorCode.NONE, active


def _sizes(logs: Sequence[Log | None]) -> list[int]:
    return [0 if log is None else log.size for log in logs]
