"""Decides ISR, ELR and leader of a partition by reports of its replicas' logs (`ReportLogs`).

docs/decisions/0014-whole-logs.md
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from quorumlog.metadata_quorum.controller.brokers import active_brokers, broker_epoch_error
from quorumlog.metadata_quorum.controller.decision import Decision
from quorumlog.metadata_quorum.controller.features import level_for
from quorumlog.metadata_quorum.controller.log_loss import LogLoss, listed
from quorumlog.metadata_quorum.controller.partition_changes import LogEvidence, PartitionChanges
from quorumlog.metadata_quorum.controller.partitions import PartitionDecisions
from quorumlog.metadata_quorum.controller.reassignment import ReassignmentDecisions
from quorumlog.metadata_quorum.controller.resumptions import Resumptions
from quorumlog.metadata_quorum.controller.slices import Slices
from quorumlog.metadata_quorum.controller_requests import ReportLogs, ReportReply
from quorumlog.metadata_quorum.image.features import LEVEL_OF_LAST_KNOWN_ELR
from quorumlog.metadata_quorum.image.partitions_by_broker import Place
from quorumlog.metadata_quorum.image.records import MetadataRecord, PartitionChange, RemoveTopic
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerRules:
    """The rule classes of a controller; a simulation may replace each of them."""

    evidence: type[LogEvidence] = LogEvidence
    changes: type[PartitionChanges] = PartitionChanges
    partitions: type[PartitionDecisions] = PartitionDecisions
    reassignments: type[ReassignmentDecisions] = ReassignmentDecisions
    resumptions: type[Resumptions] = Resumptions
    slices: type[Slices] = Slices


ResponseT = TypeVar("ResponseT")


class LogReports:
    """Builds the objects that decide about partitions too, because they all use the reports."""

    def __init__(
        self, cluster: ClusterReplay, settings: ControllerSettings, rules: ControllerRules
    ) -> None:
        self._cluster: Final = cluster
        self._evidence: Final = rules.evidence(cluster)
        self.changes: Final = rules.changes(cluster, settings, self._evidence)
        self.partitions: Final = rules.partitions(cluster, self.changes)

    def note_applied(self, record: MetadataRecord) -> None:
        """Drop the reports about a partition that now has a leader, or was deleted."""
        if isinstance(record, PartitionChange) and record.leader not in {None, NO_LEADER}:
            self._evidence.forget(Place(record.topic_id, record.partition_id))
        elif isinstance(record, RemoveTopic):
            self._evidence.forget_topic(record.topic_id)

    def raised_level(self, response: ResponseT) -> Decision[ResponseT] | None:
        """Return a slice that raises the level for last known ELRs; None: in force, or refused."""
        level, _ = level_for(self._cluster, LEVEL_OF_LAST_KNOWN_ELR)
        if level is None:
            return None
        return Decision(response=response, records=(level,), goes_on=True)

    def decide(self, request: ReportLogs) -> Decision[ReportReply]:
        """Take a broker out of ISR and ELR where its log is damaged; elect by the reported logs."""
        error_code = broker_epoch_error(self._cluster, request.broker_id, request.broker_epoch)
        if error_code is not ErrorCode.NONE:
            return Decision(response=ReportReply(error_code=error_code))
        if (raised := self.raised_level(ReportReply(error_code=ErrorCode.NONE))) is not None:
            return raised
        active = active_brokers(self._cluster)
        lacking: list[str] = []
        waiting: list[str] = []
        changes: dict[Place, PartitionChange | None] = {}
        for report in request.reports:
            located = self.partitions.find(Place(report.topic_id, report.partition))
            if located is None or located.place in changes:
                continue
            partition, name = located.partition, f"{located.topic_name}-{located.index}"
            self._evidence.note(request.broker_id, request.broker_epoch, partition, report)
            if request.broker_id in {*partition.isr, *partition.elr} and not report.is_whole:
                changes[located.place] = self.partitions.departed(
                    located, request.broker_id, active, LogLoss.DAMAGED
                )
                lacking.append(name)
            elif partition.is_undecided:
                changes[located.place] = self.changes.change(located, (), active)
                if changes[located.place] is None and self._evidence.damage(
                    located.place, partition
                ):
                    waiting.append(name)
        return Decision(
            response=ReportReply(error_code=ErrorCode.NONE),
            records=tuple(change for change in changes.values() if change is not None),
            remark=_remark_on_reports(request.broker_id, lacking, waiting),
        )


def _remark_on_reports(
    broker_id: BrokerId, lacking: Sequence[str], waiting: Sequence[str]
) -> str | None:
    """Return a remark for the operator about damaged logs, if there are any."""
    remarks = []
    if lacking:
        remarks.append(
            f"broker {broker_id} may lack acknowledged records of {listed(lacking)}: its logs are "
            "damaged. It is out of their ISRs and ELRs until it has caught up"
        )
    if waiting:
        remarks.append(
            f"EVERY LOG OF {listed(waiting)} THAT MAY HOLD ALL RECORDS IS DAMAGED: they have no "
            "leader until a log is repaired, or an unclean election gives the lead to the longest"
        )
    return ". ".join(remarks) or None
