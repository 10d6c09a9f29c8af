"""Planted bugs in moves of replicas between the log directories of a broker.

They show only in whole nodes: no simulated world has several log directories.
"""

from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

from quorumlog.broker.partitions.core.directory_moves import (
    CaughtUp,
    CopyFrom,
    CutTo,
    DirectoryMoveRules,
    Ending,
    LogView,
    StartOver,
    Step,
)
from quorumlog.broker.partitions.log.future_logs import FUTURE_SUFFIX, FutureLogs
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.partitions.log.registrations import BrokerProcess
from quorumlog.chaos.simulation.kernel.mutants import Mutants, with_broken
from quorumlog.chaos.simulation.worlds.brokers.rules import UNCHECKED_RULES
from quorumlog.node.substitutes import Substitutes
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.disk import Disk
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import Offset, TopicPartition


def _with(broken: type[Any]) -> Substitutes:
    if issubclass(broken, LogDirectory):
        return Substitutes(partition_rules=UNCHECKED_RULES, new_logs=broken)
    if issubclass(broken, Log):
        new_logs = partial(_CopiesInto, new_copy=broken)
        return Substitutes(partition_rules=UNCHECKED_RULES, new_logs=new_logs)
    return Substitutes(partition_rules=with_broken(UNCHECKED_RULES, broken))


DIRECTORIES: Final = Mutants(_with)


class _CopiesInto(LogDirectory):
    """A log directory that uses another class for the copies of moving logs."""

    def __init__(
        self, disk: Disk, directory: str, defaults: LogSettings, *, new_copy: type[Log]
    ) -> None:
        super().__init__(disk, directory, defaults)
        copies = FutureLogs(disk, directory, new_copy, self._names)
        self.futures = copies  # type: ignore[misc]  # a mutant


@DIRECTORIES.breaks("a copy replaces its log before the copy is complete")
class _SwapsBeforeItHasCaughtUp(DirectoryMoveRules):
    def ending(
        self, step: Step, *, reaches_end: bool, is_announced: bool, is_named: bool
    ) -> Ending:
        is_copying = isinstance(step, CopyFrom | CaughtUp)
        return super().ending(
            step,
            reaches_end=reaches_end or is_copying,
            is_announced=is_announced,
            is_named=is_named,
        )


@DIRECTORIES.breaks("a copy keeps records that its log truncated during the move")
class _ForgetsTruncations(DirectoryMoveRules):
    def next_step(self, current: LogView, future: LogView) -> Step:
        step = super().next_step(current, future)
        is_cut = isinstance(step, CutTo | StartOver) and future.end >= current.start > -1
        if not is_cut or future.end == future.start:
            return step
        return CopyFrom(offset=future.end) if future.end < current.end else CaughtUp()


@DIRECTORIES.breaks("a copy replaces its log without a report to the controller")
class _SwapsWithoutTheMetadata(DirectoryMoveRules):
    def ending(
        self, step: Step, *, reaches_end: bool, is_announced: bool, is_named: bool
    ) -> Ending:
        ending = super().ending(
            step, reaches_end=reaches_end, is_announced=is_announced, is_named=is_named
        )
        return ending if ending is Ending.GO_ON else Ending.SWAP


@DIRECTORIES.breaks("a copy replaces its log before the copy is flushed")
class _CopiesAreNotFlushed(Log):
    def flush(self) -> Offset:
        self._flushed_offset = self._log_end_offset
        return self.log_end_offset


_TAKEN: Final[WeakKeyDictionary[Disk, dict[str, str]]] = WeakKeyDictionary()
"""Disk -> {log: the directory in which its copy took its place}."""


@DIRECTORIES.breaks("a start opens the copy of a log as the log")
class _TakesTheCopyForTheLog(LogDirectory):
    def start(self, process: BrokerProcess | None = None) -> None:
        super().start(process)
        taken = _TAKEN.setdefault(self._disk, {})
        for name in self.futures.take_others(()):
            plain = name.removesuffix(FUTURE_SUFFIX).rpartition(".")[0]
            if not self._disk.exists(f"{self.path}/{plain}"):
                self._names.rename(name, plain)
                self._unopened.add(plain)
                taken[plain] = self.path

    def holds(self, topic_partition: TopicPartition) -> bool:
        taken = _TAKEN.get(self._disk, {})
        is_here = taken.get(str(topic_partition), self.path) == self.path
        return is_here and super().holds(topic_partition)
