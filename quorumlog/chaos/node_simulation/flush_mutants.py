"""Planted bugs of nodes that acknowledge only what is on the disk (`log.flush.acks`).

They show when power is lost on several nodes at once, which no world of cores simulates.
"""

from functools import partial
from typing import Any, Final

from quorumlog.broker.partitions.core.following import Followership
from quorumlog.broker.partitions.core.high_watermark import HighWatermarkRule
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.partitions.log.log_flusher import LogFlusher
from quorumlog.broker.partitions.log.surroundings import Surroundings
from quorumlog.chaos.simulation.kernel.mutants import Mutants, with_broken
from quorumlog.chaos.simulation.worlds.brokers.rules import UNCHECKED_RULES
from quorumlog.node.substitutes import Substitutes
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import Offset


def _with(broken: type[Any]) -> Substitutes:
    if issubclass(broken, Log):
        new_logs = partial(LogDirectory, new_log=broken)
        return Substitutes(partition_rules=UNCHECKED_RULES, new_logs=new_logs)
    if issubclass(broken, LogFlusher):
        new_surroundings = partial(Surroundings, new_flusher=broken)
        return Substitutes(partition_rules=UNCHECKED_RULES, new_surroundings=new_surroundings)
    return Substitutes(partition_rules=with_broken(UNCHECKED_RULES, broken))


FLUSHES: Final = Mutants(_with)


@FLUSHES.breaks("a leader counts its own records before they are on its disk")
class _CommitsBeforeItsFlush(HighWatermarkRule):
    def own_offset(self) -> Offset:
        return self._state.log_end_offset


@FLUSHES.breaks("a follower tells its leader of records that are not on its disk")
class _FollowersTellUnflushedOffsets(Followership):
    def may_fetch(self) -> bool:
        return True


@FLUSHES.breaks("a flush of a partition's log does not wait for the disk")
class _FlushesDoNotWait(Log):
    def flush(self) -> Offset:
        self._flushed_offset = self._log_end_offset
        return self.log_end_offset


@FLUSHES.breaks("a flush that ended before a cut counts for what was appended after it")
class _CountsFlushesFromBeforeCuts(LogFlusher):
    def _ended(self, outcome: Offset | StorageError) -> None:
        if isinstance(outcome, StorageError):
            super()._ended(outcome)
        else:
            self._is_under_way = False
            self._flushed(outcome)
