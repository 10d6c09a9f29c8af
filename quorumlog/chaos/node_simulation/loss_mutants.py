"""Planted bugs in the handling of damaged logs and outdated log directories (decision 14).

They show in runs with faults that destroy copies, which the best copy judges: see `copies`.
"""

from collections.abc import Set
from dataclasses import replace
from typing import Any, Final

from quorumlog.broker.partitions.core.placement import Standing
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.partitions.log.registrations import Registrations
from quorumlog.chaos.simulation.kernel.mutants import Mutants
from quorumlog.chaos.simulation.worlds.brokers.controller_mutants import controller_with
from quorumlog.chaos.simulation.worlds.brokers.rules import UNCHECKED_RULES
from quorumlog.metadata_quorum.controller.controller import Controller
from quorumlog.metadata_quorum.controller.log_evidence import LogEvidence
from quorumlog.metadata_quorum.controller.requests import ControllerRequest, Decision
from quorumlog.metadata_quorum.controller_client import BrokerHeartbeat, BrokerRegistration
from quorumlog.metadata_quorum.image import PartitionImage
from quorumlog.metadata_quorum.image.partitions_by_broker import Place
from quorumlog.metadata_quorum.io.parts import QuorumParts
from quorumlog.node.substitutes import Substitutes
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import LacksRecords
from quorumlog.storage.io.disk import Disk
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import BrokerId, Offset


def _with(*broken: type[Any]) -> Substitutes:
    planted = Substitutes(partition_rules=UNCHECKED_RULES)
    for one in broken:
        if issubclass(one, LogDirectory):
            planted = replace(planted, new_logs=one)
        else:
            planted = replace(planted, quorum=QuorumParts(controller=controller_with(one)))
    return planted


LOSSES: Final = Mutants(_with)


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
    def decide(
        self, request: ControllerRequest, *, now_ms: int, base_offset: Offset
    ) -> Decision[object]:
        if isinstance(request, BrokerRegistration):
            request = replace(request, incarnations=None)
        return super().decide(request, now_ms=now_ms, base_offset=base_offset)


class _NotesNoFailure(Registrations):
    def note_failure(self) -> None:
        pass


class _ForgetsItsFailure(LogDirectory):
    def __init__(self, disk: Disk, directory: str, defaults: LogSettings) -> None:
        super().__init__(disk, directory, defaults)
        self.registrations = _NotesNoFailure(disk, directory)  # type: ignore[misc]  # a mutant


@LOSSES.breaks(
    "a broker with a failed disk is fenced as if its logs were complete", also=_ForgetsItsFailure
)
class _FailsWithoutLoss(Controller):
    def decide(
        self, request: ControllerRequest, *, now_ms: int, base_offset: Offset
    ) -> Decision[object]:
        if isinstance(request, BrokerHeartbeat):
            request = replace(request, has_failed=False)
        return super().decide(request, now_ms=now_ms, base_offset=base_offset)


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
