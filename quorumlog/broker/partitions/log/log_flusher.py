"""Flushes one log while it is in use: after each append, or by the topic's settings.

A flush goes through a disk queue of its own, one at a time for each log. Batches appended meanwhile
share the next flush, so that a disk with slow fsyncs makes many batches durable at once (group
commit). docs/decisions/0015-flush-acks.md
"""

import logging
from collections.abc import Callable
from typing import Final

from quorumlog.broker.partitions.log.disk_queue import DiskQueue
from quorumlog.lasting_condition import LastingCondition
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import Offset, TopicPartition

_logger: Final = logging.getLogger(__name__)


class LogFlusher:
    """The flushes of one log. `flushed` receives the offset below which the log is durable.

    `failed` is called after a failed flush. If the log is still usable, as with a full disk, the
    next append or tick tries again, even if another flush of the log has made everything durable:
    only its own flushes are reported.
    """

    __slots__ = (
        "_at", "_dirty_since_ms", "_disk", "_failed", "_flushed", "_is_under_way", "_log",
        "_refused", "_ticked_ms",
    )  # fmt: skip

    def __init__(
        self,
        at: TopicPartition,
        log: Log,
        disk: DiskQueue,
        *,
        flushed: Callable[[Offset], None],
        failed: Callable[[], None],
    ) -> None:
        self._at: Final = at
        self._log = log
        self._disk: Final = disk
        self._flushed: Final = flushed
        self._failed: Final = failed
        self._refused: Final = LastingCondition(_logger)
        self._ticked_ms = 0
        self._is_under_way = False
        self._dirty_since_ms: int | None = None  # the tick that first found unflushed records

    def exchange(self, log: Log) -> None:
        """Flush this log from now on; a flush of the previous log may still end."""
        self._log = log

    def maybe_flush(self, unflushed_max: int) -> None:
        """Flush if that many records or more are not durable (flush.messages)."""
        log = self._log
        is_due = log.unflushed_offsets >= unflushed_max or self._refused.lasts()
        if is_due and not self._is_under_way:
            self._is_under_way = True
            self._disk.submit(self._at, log.flush, self._ended)

    def note_tick(self, now_ms: int) -> bool:
        """Flush if records are unflushed for flush.ms; return whether any are unflushed."""
        log, self._ticked_ms = self._log, now_ms
        if not (log.unflushed_offsets or self._refused.lasts()):
            self._dirty_since_ms = None
            return False
        if self._dirty_since_ms is None:
            self._dirty_since_ms = now_ms
        elif now_ms - self._dirty_since_ms >= log.settings.flush_ms:
            self._dirty_since_ms = now_ms
            self.maybe_flush(1)
        return True

    def _ended(self, outcome: Offset | StorageError) -> None:
        self._is_under_way = False
        if isinstance(outcome, StorageError):
            self._refused.note(self._ticked_ms, f"{self._at}: not flushed: {outcome}")
            self._failed()
        else:  # the log may have been truncated since: use its own flushed offset
            self._refused.end(self._ticked_ms, f"{self._at}: flushed again")
            self._flushed(self._log.flushed_offset)
