"""Brokers' reports of their logs for partitions whose ISR and ELR are empty.

No replica is then known to hold all committed records, so the logs decide: the longest intact log
wins, by last leader epoch, then end offset, as in Raft (5.4.1). There is no election until every
replica of the last known ELR has reported, because a missing replica may hold more records.

Source: KIP-966, Unclean Recovery ("Balanced"), which Apache Kafka has not built.
"""

from collections.abc import Mapping, Set
from typing import Final, NamedTuple

from quorumlog.metadata_quorum.controller_client import LogReport
from quorumlog.metadata_quorum.image.model import PartitionImage
from quorumlog.metadata_quorum.image.partitions_by_broker import Place
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId, Epoch, TopicId


class _Noted(NamedTuple):
    """A report with the broker epoch of its process and the leader epoch of the partition."""

    broker_epoch: int
    leader_epoch: Epoch
    report: LogReport


class LogEvidence:
    """The reports. Soft state: a new controller starts without, and the brokers report again."""

    def __init__(self, cluster: ClusterReplay) -> None:
        self._cluster: Final = cluster
        self._noted: Final[dict[Place, dict[BrokerId, _Noted]]] = {}

    def note(
        self, broker_id: BrokerId, broker_epoch: int, partition: PartitionImage, report: LogReport
    ) -> None:
        """Record a report about a partition."""
        at = Place(report.topic_id, report.partition)
        noted = _Noted(broker_epoch, partition.leader_epoch, report)
        self._noted.setdefault(at, {})[broker_id] = noted

    def forget(self, at: Place) -> None:
        """Drop the reports about a partition that has a leader, or was deleted."""
        self._noted.pop(at, None)

    def forget_topic(self, topic_id: TopicId) -> None:
        """Drop the reports about the partitions of a deleted topic."""
        for at in [at for at in self._noted if at.topic_id == topic_id]:
            self.forget(at)

    def best(
        self, at: Place, partition: PartitionImage, candidates: Set[BrokerId]
    ) -> BrokerId | None:
        """Return the candidate with the longest reported log; None: no report."""
        reports = self._reports(at, partition)
        ordered = [one for one in partition.replicas if one in candidates and one in reports]
        return max(ordered, key=lambda one: _length(reports[one]), default=None)

    def decided(
        self,
        at: Place,
        partition: PartitionImage,
        last_known_elr: Set[BrokerId],
        candidates: Set[BrokerId],
    ) -> BrokerId:
        """Return the replica to elect without an operator's permission, or NO_LEADER.

        NO_LEADER until all of the last known ELR are candidates and have reported, and if all their
        logs are damaged: records are lost for a reason other than a loss of power.
        """
        reports = self._reports(at, partition)
        if not last_known_elr <= candidates & reports.keys():
            return NO_LEADER
        if not any(reports[one].is_whole for one in last_known_elr):
            return NO_LEADER
        best = self.best(at, partition, candidates)
        return NO_LEADER if best is None else best

    def damage(self, at: Place, partition: PartitionImage) -> list[LogReport]:
        """Return the reports of the last known ELR if all its replicas report damage, or none."""
        reports = self._reports(at, partition)
        found = [reports[one] for one in partition.last_known_elr if one in reports]
        is_all = len(found) == len(partition.last_known_elr)
        return found if is_all and not any(report.is_whole for report in found) else []

    def _reports(self, at: Place, partition: PartitionImage) -> Mapping[BrokerId, LogReport]:
        """Return the reports in this leader epoch, of processes that are still registered."""
        brokers = self._cluster.brokers
        return {
            broker_id: noted.report
            for broker_id, noted in self._noted.get(at, {}).items()
            if noted.leader_epoch == partition.leader_epoch
            and broker_id in brokers
            and brokers[broker_id].broker_epoch == noted.broker_epoch
        }


def _length(report: LogReport) -> tuple[int, int]:
    return report.last_epoch, report.log_end_offset
