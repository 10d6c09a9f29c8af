"""AlterPartition requests of a broker (KIP-497): each proposal has its result fed back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from quorumlog.broker.controller_requests import isr_proposals
from quorumlog.broker.controller_requests.isr_proposals import IsrProposals
from quorumlog.broker.partitions.core.effects import ProposeIsr
from quorumlog.broker.partitions.core.events import IsrAnswered
from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.controller_client import (
    ControllerUnavailable,
    IsrProposal,
    IsrResult,
)
from quorumlog.metadata_quorum.controller_requests import AlterPartitions, IsrResults
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import (
    BrokerId,
    Epoch,
    PartitionIndex,
    TopicId,
    TopicPartition,
)
from tests.support.waiting import loop_turns, until

US, OTHER = BrokerId(1), BrokerId(2)
TOPIC_ID = TopicId(b"i" * 16)
PROPOSED = ProposeIsr(
    leader_epoch=Epoch(3), partition_epoch=Epoch(7), new_isr=((US, -1), (OTHER, 20))
)
UNKNOWN = IsrAnswered(asked_epoch=Epoch(7), error_code=ErrorCode.REQUEST_TIMED_OUT)


def result(error_code: ErrorCode = ErrorCode.NONE, index: int = 0) -> IsrResult:
    return IsrResult(
        topic_id=TOPIC_ID,
        partition=PartitionIndex(index),
        error_code=error_code,
        leader_id=US,
        leader_epoch=Epoch(3),
        partition_epoch=Epoch(8),
        isr=(US, OTHER),
    )


def answered(error_code: ErrorCode = ErrorCode.NONE) -> IsrAnswered:
    return IsrAnswered(
        asked_epoch=Epoch(7),
        error_code=error_code,
        leader_epoch=Epoch(3),
        partition_epoch=Epoch(8),
        isr=(US, OTHER),
    )


class Partition:
    """Stands in for the driver of a partition."""

    def __init__(self, index: int) -> None:
        self.topic_id, self.topic_partition = TOPIC_ID, TopicPartition("t", index)
        self.fed: list[object] = []
        self.partition = SimpleNamespace(state=SimpleNamespace(isr=frozenset({US})))

    def feed(self, _: int, event: object) -> None:
        self.fed.append(event)


class Sent:
    """Proposals of broker 1, which is registered in epoch 10, and a controller of this test."""

    def __init__(self) -> None:
        self.broker_epoch = 10
        self.requests: list[list[IsrProposal]] = []
        self.answer: Any = (ErrorCode.NONE, [])
        controller: Any = self
        self.proposals = IsrProposals(US, controller, lambda: self.broker_epoch)

    async def ask(self, request: AlterPartitions) -> IsrResults:
        assert (request.broker_id, request.broker_epoch) == (US, self.broker_epoch)
        self.requests.append([*request.proposals])
        if isinstance(self.answer, Exception):
            raise self.answer
        error_code, results = self.answer
        return IsrResults(error_code=error_code, results=tuple(results))

    def add(self, partition: Any) -> None:
        self.proposals.add(partition, PROPOSED)


@asynccontextmanager
async def sending() -> AsyncIterator[Sent]:
    sent = Sent()
    task = asyncio.create_task(sent.proposals.run())
    yield sent
    task.cancel()


@pytest.mark.parametrize(
    ("answer", "fed"),
    [
        ((ErrorCode.NONE, [result()]), answered()),
        (
            (ErrorCode.NONE, [result(ErrorCode.INVALID_UPDATE_VERSION)]),
            answered(ErrorCode.INVALID_UPDATE_VERSION),
        ),
        ((ErrorCode.NONE, [result(index=5)]), UNKNOWN),
        ((ErrorCode.STALE_BROKER_EPOCH, []), UNKNOWN),
        (ControllerUnavailable("silence"), UNKNOWN),
    ],
    ids=["granted", "refused", "left out", "refused whole", "no answer"],
)
async def test_the_outcome_is_fed_back(answer: Any, fed: IsrAnswered) -> None:
    async with sending() as sent:
        sent.answer, partition = answer, Partition(0)
        sent.add(partition)
        await until(lambda: partition.fed)
    assert partition.fed == [fed]
    [[proposal]] = sent.requests
    assert (proposal.leader_epoch, proposal.partition_epoch) == (3, 7)
    assert proposal.new_isr == ((US, 10), (OTHER, 20))  # our epoch is that of our registration
    granted = fed.error_code is ErrorCode.NONE
    assert (sent.proposals.expands, sent.proposals.shrinks) == (int(granted), 0)


async def test_a_proposal_is_in_a_request_or_waits_for_the_next() -> None:
    async with sending() as sent:
        partition: Any = Partition(0)
        sent.broker_epoch = -1
        sent.add(partition)
        await loop_turns(5)
        sent.proposals.check_progress(partition)  # `registered` wakes the task
        sent.broker_epoch = 10
        with pytest.raises(InvariantViolation, match="t-0: a request with its ISR proposal"):
            sent.proposals.check_progress(partition)
        sent.proposals.wake()
        sent.proposals.check_progress(partition)
        await until(lambda: partition.fed)
        with pytest.raises(InvariantViolation, match="t-0: its ISR proposal is under way"):
            sent.proposals.check_progress(partition)


async def test_proposals_share_a_request_once_the_broker_is_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(isr_proposals, "RETRY_BACKOFF_S", 0)
    async with sending() as sent:
        first, second = Partition(0), Partition(1)
        sent.broker_epoch, sent.answer = -1, (ErrorCode.NONE, [result(), result(index=1)])
        for partition in (first, second, first):
            sent.add(partition)
        await loop_turns()
        assert sent.requests == []
        sent.broker_epoch = 10
        sent.proposals.wake()
        await until(lambda: second.fed)
    [proposals] = sent.requests
    assert [proposal.partition for proposal in proposals] == [0, 1]
    assert first.fed == second.fed == [answered()]
