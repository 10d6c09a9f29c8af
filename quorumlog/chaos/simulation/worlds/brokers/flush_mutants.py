"""Replicas that break a rule of `log.flush.acks`: they count unflushed records."""

from dataclasses import replace
from typing import Any, Final

from quorumlog.broker.partitions.core.following import Followership
from quorumlog.broker.partitions.core.high_watermark import HighWatermarkRule
from quorumlog.broker.partitions.log.log_flusher import LogFlusher
from quorumlog.chaos.simulation.kernel.mutants import Mutants, with_broken
from quorumlog.chaos.simulation.worlds.brokers.rules import UNCHECKED_RULES, BrokenRules
from quorumlog.chaos.simulation.worlds.storage_mutants import Storage
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import Offset


def _with(broken: type[Any]) -> BrokenRules:
    unchecked = BrokenRules(partition=UNCHECKED_RULES)
    if issubclass(broken, Log):
        return replace(unchecked, storage=Storage(log=broken))
    if issubclass(broken, LogFlusher):
        return replace(unchecked, flusher=broken)
    return BrokenRules(partition=with_broken(UNCHECKED_RULES, broken))


FLUSH_MUTANTS: Final = Mutants(_with)


@FLUSH_MUTANTS.breaks("a leader counts its own records before they are flushed")
class _CommitsBeforeItsFlush(HighWatermarkRule):
    def own_offset(self) -> Offset:
        return self._state.log_end_offset


@FLUSH_MUTANTS.breaks("a follower's fetch offset includes unflushed records")
class _FollowersTellUnflushedOffsets(Followership):
    def may_fetch(self) -> bool:
        return True


@FLUSH_MUTANTS.breaks("a flush of a partition's log completes before the fsync")
class _FlushesDoNotWait(Log):
    def flush(self) -> Offset:
        self._flushed_offset = self._log_end_offset
        return self.log_end_offset


@FLUSH_MUTANTS.breaks(
    "a flush's result counts although the log was truncated or flushed since its start"
)
class _CountsFlushesFromBeforeCuts(LogFlusher):
    def _ended(self, outcome: Offset | StorageError) -> None:
        if isinstance(outcome, StorageError):
            super()._ended(outcome)
        else:
            self._is_under_way = False
            self._flushed(outcome)
