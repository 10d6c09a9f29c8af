"""Reads of committed records by this broker itself: coordinators load their partitions."""

from collections.abc import Callable
from dataclasses import dataclass

from quorumlog.broker.partitions.core.data_path import LocalRead, ReadEnd
from quorumlog.broker.partitions.log.cold_reads import BRING_INS_MAX, bring_in
from quorumlog.broker.partitions.log.disk_queue import DiskQueue
from quorumlog.broker.partitions.log.replica_set import ReplicaSet
from quorumlog.storage.errors import NotInMemory, OffsetOutOfRange, StorageError
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Offset, TopicPartition
from quorumlog.wire.codec.message import contents


@dataclass(frozen=True, slots=True)
class LocalReads:
    """Reads replicas; a thread brings records that are only on disk into memory."""

    _replicas: ReplicaSet
    _disk: DiskQueue

    def read(
        self,
        at: TopicPartition,
        offset: int,
        max_bytes: int,
        done: Callable[[LocalRead], None],
        *,
        bring_ins: int = 0,
    ) -> None:
        """Pass whole committed batches of a replica to `done`; at least one if there is any.

        This happens at once, or when they are in memory; `bring_ins` counts the attempts.
        """
        driver = self._replicas.drivers.get(at)
        if driver is None or driver.is_truncating:
            done(LocalRead(self._replicas.error_for_missing(at)))
            return
        start, end = driver.log.log_start_offset, driver.end(ReadEnd.LOG_END)
        try:
            read = driver.read(
                Offset(offset),
                max_bytes=max_bytes,
                end=ReadEnd.HIGH_WATERMARK,
                at_least_one=True,
                may_wait=bring_ins >= BRING_INS_MAX,
            )
        except NotInMemory as absent:

            def read_again(error: StorageError | None) -> None:
                if error is None:
                    self.read(at, offset, max_bytes, done, bring_ins=bring_ins + 1)
                else:
                    done(LocalRead(ErrorCode.KAFKA_STORAGE_ERROR))

            bring_in(self._disk, at, driver.log, absent, is_wanted=lambda: True, done=read_again)
        except OffsetOutOfRange:
            done(LocalRead(ErrorCode.OFFSET_OUT_OF_RANGE, log_start_offset=start))
        except StorageError:
            done(LocalRead(ErrorCode.KAFKA_STORAGE_ERROR))
        else:
            records, next_offset = b"".join(contents(read.chunks)), Offset(read.next_offset)
            done(LocalRead(ErrorCode.NONE, records, next_offset, start, end))
