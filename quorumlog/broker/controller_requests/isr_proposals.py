"""AlterPartition requests: batched, one request in flight, every result fed back to its partition.

Source: KIP-497. A request whose outcome is unknown is fed back as REQUEST_TIMED_OUT; the core then
proposes again.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from quorumlog.broker.partitions.core import effects, events
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.clock import monotonic_ms
from quorumlog.invariants import require
from quorumlog.metadata_quorum.controller_client import (
    ControllerClient,
    ControllerUnavailable,
    IsrProposal,
    IsrResult,
)
from quorumlog.metadata_quorum.controller_requests import AlterPartitions, IsrResults
from quorumlog.wakeup import Wakeup
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, PartitionIndex, TopicId

RETRY_BACKOFF_S: Final = 0.05  # after a refusal: its cause may take a moment to end

_logger: Final = logging.getLogger(__name__)

_Asked = tuple[PartitionDriver, effects.ProposeIsr]


class IsrProposals:
    """Runs one task. It sends no request while `broker_epoch()` is -1, that is, not registered."""

    def __init__(
        self, broker_id: BrokerId, controller: ControllerClient, broker_epoch: Callable[[], int]
    ) -> None:
        self._broker_id: Final = broker_id
        self._controller: Final = controller
        self._broker_epoch: Final = broker_epoch
        self._waiting: dict[tuple[TopicId, int], _Asked] = {}
        self._sent: dict[tuple[TopicId, int], _Asked] = {}  # in the request under way
        self.shrinks = self.expands = 0  # committed by the controller, since the start
        self._wake: Final = Wakeup()
        self.wake: Final = self._wake.set  # to check again for proposals to send

    def add(self, driver: PartitionDriver, proposal: effects.ProposeIsr) -> None:
        """Send the proposal with the next request; a newer one for the partition replaces it."""
        self._waiting[driver.topic_id, driver.topic_partition.partition] = driver, proposal
        self._wake.set()

    async def run(self) -> None:
        """Send the added proposals until cancelled."""
        while True:
            await self._wake.wait()
            if self._broker_epoch() < 0:
                continue  # `registered` wakes the task
            self._sent, self._waiting = self._waiting, {}
            granted = not self._sent or await self._send(self._sent)
            self._sent = {}
            if not granted:
                await asyncio.sleep(RETRY_BACKOFF_S)

    def check_progress(self, driver: PartitionDriver) -> None:
        """Raise InvariantViolation if a proposal of this partition is neither sent nor waiting.

        A waiting proposal is sent by the next request. Tests and simulations call it.
        """
        key, at = (driver.topic_id, driver.topic_partition.partition), driver.topic_partition
        require(key in self._waiting or key in self._sent, f"{at}: its ISR proposal is under way")
        sleeps = self._broker_epoch() >= 0 and self._wake.sleeps()
        require(not sleeps, f"{at}: a request with its ISR proposal")

    async def _send(self, asked: dict[tuple[TopicId, int], _Asked]) -> bool:
        """Send the proposals; feed every result back. Return whether all were granted."""
        broker_epoch = self._broker_epoch()
        proposals = tuple(self._proposal(*one, broker_epoch) for one in asked.values())
        request = AlterPartitions(
            broker_id=self._broker_id, broker_epoch=broker_epoch, proposals=proposals
        )
        sizes = {key: len(driver.partition.state.isr) for key, (driver, _) in asked.items()}
        try:
            reply = await self._controller.ask(request)
        except ControllerUnavailable as error:
            _logger.info("AlterPartition of %d partitions: %s", len(proposals), error)
            reply = IsrResults(error_code=ErrorCode.REQUEST_TIMED_OUT)
        by_key = {(result.topic_id, int(result.partition)): result for result in reply.results}
        now_ms, granted = monotonic_ms(), True
        for key, (driver, proposal) in asked.items():
            answer = self._answer(proposal, reply.error_code, by_key.get(key))
            granted = granted and answer.error_code is ErrorCode.NONE
            driver.feed(now_ms, answer)
            if answer.error_code is ErrorCode.NONE:
                self.expands += len(answer.isr) > sizes[key]
                self.shrinks += len(answer.isr) < sizes[key]
        return granted

    def _proposal(
        self, driver: PartitionDriver, proposal: effects.ProposeIsr, broker_epoch: int
    ) -> IsrProposal:
        return IsrProposal(
            topic_id=driver.topic_id,
            partition=PartitionIndex(driver.topic_partition.partition),
            leader_epoch=proposal.leader_epoch,
            partition_epoch=proposal.partition_epoch,
            new_isr=tuple(
                (member, broker_epoch if member == self._broker_id else epoch)
                for member, epoch in proposal.new_isr
            ),
        )

    def _answer(
        self, proposal: effects.ProposeIsr, error_code: ErrorCode, result: IsrResult | None
    ) -> events.IsrAnswered:
        asked_epoch = proposal.partition_epoch
        if error_code is not ErrorCode.NONE or result is None:
            # The whole request was refused, or the response lacks this partition: propose again.
            return events.IsrAnswered(
                asked_epoch=asked_epoch, error_code=ErrorCode.REQUEST_TIMED_OUT
            )
        return events.IsrAnswered(
            asked_epoch=asked_epoch,
            error_code=ErrorCode(result.error_code),
            leader_epoch=result.leader_epoch,
            partition_epoch=result.partition_epoch,
            isr=result.isr,
        )
