"""Requests of a simulated broker to the controller over the network, and its ISR proposals."""

from collections.abc import Callable
from typing import Any, Final

from quorumlog.broker.partitions.core import effects, events
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.chaos.simulation.kernel.randomness import seeded
from quorumlog.chaos.simulation.kernel.run import Environment
from quorumlog.chaos.simulation.worlds.brokers.controller_node import (
    CONTROLLER_ID,
    ControllerNode,
)
from quorumlog.chaos.simulation.worlds.brokers.fetching import Broker
from quorumlog.metadata_quorum.controller.requests import (
    AlterPartitions,
    ControllerRequest,
    IsrResults,
    ReportLogs,
    ReportReply,
)
from quorumlog.metadata_quorum.controller_client import IsrProposal, LogReport
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import PartitionIndex, TopicPartition

PROPOSAL_TIMEOUT_US: Final = 200_000
LATE_SHARE: Final = 0.2  # of the runs; in them the metadata log may overtake ISR responses


class ControllerRequests:
    """The requests of one broker, and the Proposals of its partitions."""

    def __init__(self, node: Broker, environment: Environment, controller: ControllerNode) -> None:
        self._node: Final = node
        self._environment: Final = environment
        self._controller: Final = controller
        are_late = seeded("late answers", environment.seed).random() < LATE_SHARE
        rng = seeded(f"late answers {node.node_id}", environment.seed)
        self._late_rng: Final = rng if are_late else None
        self._to_report: Final[dict[TopicPartition, None]] = {}  # not acknowledged yet

    def forget(self) -> None:
        """Drop the reports of an earlier process."""
        self._to_report.clear()

    def ask(
        self, request: ControllerRequest, answered: Callable[[Any], None], *, late_us: int = 0
    ) -> None:
        """Send a request; it, or its response, may be lost, late or doubled."""
        network, push = self._environment.network, self._environment.timeline.push
        incarnation = self._node.machine.incarnation

        def arrive() -> None:
            response = self._controller.ask(request)
            end = len(self._controller.records)
            for after_us in network.arrivals_us(CONTROLLER_ID, self._node.node_id):
                push(after_us + late_us, come_back, response, end)

        def come_back(response: object, end: int) -> None:
            if self._node.machine.is_up and self._node.machine.incarnation == incarnation:
                self._node.take(answered, response)
                self._node.take(self._node.learn, end)

        for after_us in network.arrivals_us(self._node.node_id, CONTROLLER_ID):
            push(after_us, arrive)

    def report(self, at: TopicPartition) -> None:
        """Report the intact part of a log with the next heartbeat, if that is still due then."""
        self._to_report[at] = None

    def send_reports(self) -> None:
        """Send the reports that are not acknowledged yet."""
        due = {at: self._report_of(at) for at in self._to_report}
        reports = tuple(report for report in due.values() if report is not None)
        request = ReportLogs(
            broker_id=self._node.node_id, broker_epoch=self._node.broker_epoch, reports=reports
        )

        def answered(reply: ReportReply) -> None:
            if reply.error_code is ErrorCode.NONE:
                for at, report in due.items():
                    if self._report_of(at) == report:
                        self._to_report.pop(at, None)

        if reports:
            self.ask(request, answered)

    def _report_of(self, at: TopicPartition) -> LogReport | None:
        node = self._node
        return node.replicas.reported.report_of(at, node.replicas.image, node.broker_epoch)

    def add(self, driver: PartitionDriver, proposal: effects.ProposeIsr) -> None:
        """Send a proposal, and feed its response, even if another one is pending by then."""
        request = AlterPartitions(
            broker_id=self._node.node_id,
            broker_epoch=self._node.broker_epoch,
            proposals=(
                IsrProposal(
                    topic_id=driver.topic_id,
                    partition=PartitionIndex(driver.topic_partition.partition),
                    leader_epoch=proposal.leader_epoch,
                    partition_epoch=proposal.partition_epoch,
                    new_isr=tuple(
                        (member, self._node.broker_epoch if member == self._node.node_id else epoch)
                        for member, epoch in proposal.new_isr
                    ),
                ),
            ),
        )

        is_answered = False

        def isr_answered(results: IsrResults | None) -> None:
            nonlocal is_answered
            if not is_answered:
                is_answered = True
                self._isr_answered(driver, proposal, results)

        rng = self._late_rng
        late_us = 0 if rng is None else rng.choice((0, rng.randrange(PROPOSAL_TIMEOUT_US)))
        self.ask(request, isr_answered, late_us=late_us)
        self._node.machine.later(PROPOSAL_TIMEOUT_US, self._node.take, isr_answered, None)

    def _isr_answered(
        self, driver: PartitionDriver, proposal: effects.ProposeIsr, results: IsrResults | None
    ) -> None:
        if self._node.replicas.drivers.get(driver.topic_partition) is not driver:
            return
        answer = events.IsrAnswered(
            asked_epoch=proposal.partition_epoch, error_code=ErrorCode.REQUEST_TIMED_OUT
        )
        if results is not None and results.error_code is ErrorCode.NONE:
            [result] = results.results
            answer = events.IsrAnswered(
                asked_epoch=proposal.partition_epoch,
                error_code=result.error_code,
                leader_epoch=result.leader_epoch,
                partition_epoch=result.partition_epoch,
                isr=result.isr,
            )
        driver.feed(self._node.machine.now_ms(), answer)
