"""The classes that hold a controller's rules about partitions."""

from dataclasses import dataclass

from quorumlog.metadata_quorum.controller.log_evidence import LogEvidence
from quorumlog.metadata_quorum.controller.partition_changes import PartitionChanges
from quorumlog.metadata_quorum.controller.partitions import PartitionDecisions
from quorumlog.metadata_quorum.controller.reassignment import ReassignmentDecisions
from quorumlog.metadata_quorum.controller.resumptions import Resumptions
from quorumlog.metadata_quorum.controller.slices import Slices


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerRules:
    """The rule classes of a controller; a simulation may replace each of them."""

    evidence: type[LogEvidence] = LogEvidence
    changes: type[PartitionChanges] = PartitionChanges
    partitions: type[PartitionDecisions] = PartitionDecisions
    reassignments: type[ReassignmentDecisions] = ReassignmentDecisions
    resumptions: type[Resumptions] = Resumptions
    slices: type[Slices] = Slices
