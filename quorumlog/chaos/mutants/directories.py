"""Planted bugs in log directories: moves between them, damaged logs, outdated directories.

Whole nodes alone can run them: no simulated world has several log directories.
"""

from collections.abc import Set
from dataclasses import replace
from typing import Any, Final
from weakref import WeakKeyDictionary

from quorumlog.broker.partitions.core.directory_moves import (
    AfterStep,
    CaughtUp,
    CopyFrom,
    CutTo,
    DirectoryMoveRules,
    LogView,
    StartOver,
    Step,
)
from quorumlog.broker.partitions.core.placement import Standing
from quorumlog.broker.partitions.log.future_logs import FutureLogs
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.partitions.log.log_names import FUTURE_SUFFIX
from quorumlog.broker.partitions.log.registrations import BrokerProcess, Registrations
from quorumlog.chaos.mutants.mutant import Mutants
from quorumlog.metadata_quorum.controller.controller import Controller
from quorumlog.metadata_quorum.controller.decision import Decision
from quorumlog.metadata_quorum.controller.partition_changes import LogEvidence
from quorumlog.metadata_quorum.controller_client import BrokerHeartbeat, BrokerRegistration
from quorumlog.metadata_quorum.controller_requests import ControllerRequest
from quorumlog.metadata_quorum.image import PartitionImage
from quorumlog.metadata_quorum.image.partitions_by_broker import Place
from quorumlog.storage.errors import LacksRecords
from quorumlog.storage.io.disk import Disk
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import BrokerId, Offset, TopicPartition

DIRECTORIES: Final = Mutants("replication")
LOSSES: Final = Mutants("replication")
"""They show in runs with faults that destroy copies: see `node_simulation.copies`."""


# --- moves between directories ---


@DIRECTORIES.breaks("a copy replaces its log before the copy is complete")
class _SwapsBeforeItHasCaughtUp(DirectoryMoveRules):
    def ending(self, step: Step, *, reaches_end: bool, **known: bool) -> AfterStep:
        is_copying = isinstance(step, CopyFrom | CaughtUp)
        return super().ending(step, reaches_end=reaches_end or is_copying, **known)


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
    def ending(self, step: Step, **known: bool) -> AfterStep:
        ending = super().ending(step, **known)
        return ending if ending is AfterStep.GO_ON else AfterStep.SWAP


class _UnflushedCopy(Log):
    def flush(self) -> Offset:
        self._flushed_offset = self._log_end_offset
        return self.log_end_offset


@DIRECTORIES.breaks("a copy replaces its log before the copy is flushed")
class _CopiesAreNotFlushed(LogDirectory):
    def __init__(self, disk: Disk, directory: str, *others: Any, **options: Any) -> None:
        super().__init__(disk, directory, *others, **options)
        copies = FutureLogs(disk, directory, _UnflushedCopy, self._names)
        self.futures = copies  # type: ignore[misc]  # a mutant


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


# --- damaged logs and outdated directories (decision 14) ---


@LOSSES.breaks(
    "a log of a member of ISR or ELR is truncated or set aside, and still counts as complete"
)
class _BelievesEachMember(LogDirectory):
    def open(
        self, *opened: Any, standing: Standing = Standing.SPARE, **known: Any
    ) -> tuple[Log, Offset]:
        if standing is Standing.COUNTED_ON:
            standing = Standing.SPARE
        return super().open(*opened, standing=standing, **known)


@LOSSES.breaks("a damaged log is truncated or set aside before the report to the controller")
class _CutsBeforeItReports(LogDirectory):
    def open(
        self, *opened: Any, standing: Standing = Standing.SPARE, **known: Any
    ) -> tuple[Log, Offset]:
        try:
            return super().open(*opened, standing=standing, **known)
        except LacksRecords:
            log, _ = super().open(*opened, **known)
            log.close(clean=False)
            self._unopened.add(str(opened[0]))
            raise


@LOSSES.breaks("a restored log directory counts as complete")
class _BelievesOldDirectories(Controller):
    def decide(self, request: ControllerRequest, **at: Any) -> Decision[object]:
        if isinstance(request, BrokerRegistration):
            request = replace(request, incarnations=None)
        return super().decide(request, **at)


class _NotesNoFailure(Registrations):
    def note_failure(self) -> None:
        pass


class _ForgetsItsFailure(LogDirectory):
    def __init__(self, disk: Disk, directory: str, *others: Any, **options: Any) -> None:
        super().__init__(disk, directory, *others, **options)
        self.registrations = _NotesNoFailure(disk, directory)  # type: ignore[misc]  # a mutant


@LOSSES.breaks(
    "a broker with a failed disk is fenced as if its logs were complete", also=_ForgetsItsFailure
)
class _FailsWithoutLoss(Controller):
    def decide(self, request: ControllerRequest, **at: Any) -> Decision[object]:
        if isinstance(request, BrokerHeartbeat):
            request = replace(request, has_failed=False)
        return super().decide(request, **at)


@LOSSES.breaks("the first reported log decides the election where ISR and ELR are empty")
class _TheFirstReportDecides(LogEvidence):
    def decided(
        self,
        at: Place,
        partition: PartitionImage,
        last_known_elr: Set[BrokerId],
        candidates: Set[BrokerId],
    ) -> BrokerId:
        reported = last_known_elr & self._reports(at, partition).keys() & candidates
        return super().decided(at, partition, reported or last_known_elr, candidates)


@LOSSES.breaks("the replica with the shortest reported log leads where ISR and ELR are empty")
class _TheShortestLogLeads(LogEvidence):
    def best(
        self, at: Place, partition: PartitionImage, candidates: Set[BrokerId]
    ) -> BrokerId | None:
        reports = self._reports(at, partition)
        return min(
            candidates & reports.keys(),
            key=lambda one: (reports[one].last_epoch, reports[one].log_end_offset),
            default=None,
        )
