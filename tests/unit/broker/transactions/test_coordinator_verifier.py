"""The question of a leader before the first append of a transaction (KIP-890). Time jumps."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from quorumlog.broker.transactions.io.coordinator_verifier import ADDING_LANES, CoordinatorVerifier
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from tests.support.transactions.coordination import T0, T1
from tests.support.transactions.service import (
    HOME,
    ROUND_S,
    SETTINGS,
    FakeBroker,
    FakeBrokers,
    image_of,
)

pytestmark = pytest.mark.jumping_time


class Coordinator:
    """Broker 3 coordinates; `codes` are its answers, the last one again and again."""

    def __init__(self, broker: FakeBroker) -> None:
        self.codes: list[int] = [0]
        self.left_out: set[TopicPartition] = set()
        self.error_code = 0
        broker.answer = self.answer

    def answer(self, request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse:
        if self.error_code:
            return AddPartitionsToTxnResponse(error_code=self.error_code)
        code = self.codes.pop(0) if len(self.codes) > 1 else self.codes[0]
        return AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResult(
                    transactional_id=one.transactional_id,
                    topic_results=[
                        AddPartitionsToTxnTopicResult(
                            name=topic.name,
                            results_by_partition=[
                                AddPartitionsToTxnPartitionResult(
                                    partition_index=index, partition_error_code=code
                                )
                                for index in topic.partitions
                                if TopicPartition(topic.name, index) not in self.left_out
                            ],
                        )
                        for topic in one.topics
                    ],
                )
                for one in request.transactions
            ]
        )


class World:
    def __init__(self) -> None:
        self.brokers = FakeBrokers()
        self.coordinator = Coordinator(self.brokers[3])
        self.verifier = CoordinatorVerifier(
            partition_of=lambda _id: HOME, settings=SETTINGS, peers=self.brokers.peers
        )
        self.publish(home_leader=3)

    def publish(self, **changes: Any) -> None:
        self.verifier.publish(image_of({"t": [1, 1]}, **changes))

    async def verify(
        self, *partitions: TopicPartition, name: str = "x", adds: bool = False
    ) -> list[ErrorCode]:
        where: Sequence[TopicPartition] = partitions or [T0, T1]
        found = await self.verifier.verify(name, 5, 6, where, adds=adds)
        assert [*found] == [*where]
        return [*found.values()]

    @property
    def requests(self) -> list[AddPartitionsToTxnRequest]:
        return self.brokers[3].requests


@asynccontextmanager
async def asked() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.verifier.stop()
    assert world.brokers.failures == []


async def test_the_coordinators_broker_is_asked() -> None:
    async with asked() as world:
        for adds in (False, True):
            assert await world.verify(adds=adds) == [ErrorCode.NONE, ErrorCode.NONE]
            [one] = world.requests[-1].transactions
            assert (one.transactional_id, one.producer_id, one.producer_epoch) == ("x", 5, 6)
            assert one.verify_only is not adds
            assert [(topic.name, topic.partitions) for topic in one.topics] == [("t", [0, 1])]


async def test_questions_about_many_transactions_share_a_request() -> None:
    async with asked() as world:
        first = asyncio.ensure_future(world.verify())
        await asyncio.sleep(0.1 * ROUND_S)
        others = [world.verify(name=f"id-{index % 5}") for index in range(10)]
        answers = await asyncio.gather(first, *others)
        assert answers == [[ErrorCode.NONE] * 2] * 11
        assert [len(request.transactions) for request in world.requests] == [1, 5]
        assert world.brokers[3].in_flight_max == 1


async def test_only_what_an_answer_can_tell_apart_shares_a_request() -> None:
    async with asked() as world:
        verify = world.verifier.verify
        first = verify("w", 5, 6, [T0], adds=True)
        await asyncio.sleep(0.1 * ROUND_S)
        others = [
            verify("x", 5, 6, [T0], adds=True),
            verify("x", 5, 7, [T1], adds=True),  # of another epoch
            verify("x", 5, 6, [T1], adds=False),
            verify("x", 5, 6, [T1, T0], adds=True),
        ]
        for answer in (first, *others):
            assert {*(await answer).values()} == {ErrorCode.NONE}
        sent = [
            (one.producer_epoch, one.verify_only, one.topics[0].partitions)
            for request in world.requests[1:]
            for one in request.transactions
        ]
        questions = [one for one in sent if one[1]]
        additions = [one for one in sent if not one[1]]
        assert questions == [(6, True, [1])]
        assert additions == [(6, False, [0, 1]), (7, False, [1])]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"),
        ("INVALID_PRODUCER_ID_MAPPING", "INVALID_PRODUCER_ID_MAPPING"),
        ("TRANSACTION_ABORTABLE", "TRANSACTION_ABORTABLE"),
        ("COORDINATOR_LOAD_IN_PROGRESS", "NOT_ENOUGH_REPLICAS"),
        ("NOT_COORDINATOR", "NOT_ENOUGH_REPLICAS"),
        ("UNKNOWN_TOPIC_OR_PARTITION", "NOT_ENOUGH_REPLICAS"),
    ],
)
async def test_errors_are_those_that_a_producer_understands(said: str, told: str) -> None:
    async with asked() as world:
        world.coordinator.codes = [ErrorCode[said]]
        for adds in (False, True):
            assert await world.verify(T0, adds=adds) == [ErrorCode[told]]


async def test_what_cannot_be_asked_is_tried_again_by_the_producer() -> None:
    async with asked() as world:
        again = [ErrorCode.NOT_ENOUGH_REPLICAS]
        world.brokers[3].is_up = False
        assert await world.verify(T0) == again
        world.brokers[3].is_up = True
        world.brokers[3].is_hanging = True
        assert await world.verify(T0) == again
        world.publish(home_leader=3, fenced=[3])
        assert await world.verify(T0) == again
        world.publish(home_leader=-1)
        assert await world.verify(T0) == again
        world.publish(home_leader=3)
        world.brokers[3].is_hanging = False
        assert await world.verify(T0) == [ErrorCode.NONE]
        world.coordinator.left_out = {T1}
        assert await world.verify(T0, T1) == [ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR]
        world.coordinator.error_code = 9999  # of a release to come
        assert await world.verify(T0) == [ErrorCode.UNKNOWN_SERVER_ERROR]


async def test_to_add_waits_for_the_end_of_the_transaction_before() -> None:
    async with asked() as world:
        busy = ErrorCode.CONCURRENT_TRANSACTIONS
        world.brokers[3].duration_s = 0.001
        world.coordinator.codes = [busy, busy, ErrorCode.NONE]
        assert await world.verify(adds=True) == [ErrorCode.NONE] * 2
        assert len(world.requests) == 3
        world.coordinator.codes = [busy]
        started_s = asyncio.get_running_loop().time()
        assert await world.verify(adds=True) == [busy] * 2
        waited_s = asyncio.get_running_loop().time() - started_s
        assert waited_s < SETTINGS.add_partitions_to_txn_retry_backoff_max_ms / 1000
        assert len(world.requests) > 6


async def test_an_older_client_tries_again_by_itself() -> None:
    async with asked() as world:
        world.coordinator.codes = [ErrorCode.CONCURRENT_TRANSACTIONS]
        assert await world.verify(adds=False) == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
        assert len(world.requests) == 1


async def test_a_verifier_that_stops_answers_what_is_open() -> None:
    world = World()
    open_question = asyncio.ensure_future(world.verify(T0))
    await asyncio.sleep(0.1 * ROUND_S)
    await world.verifier.stop()
    assert await open_question == [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert await world.verify(T0) == [ErrorCode.NOT_ENOUGH_REPLICAS]
    assert world.brokers[3].connections[0].closed.done()


@pytest.mark.parametrize("adds", [True, False])
async def test_what_waits_at_the_coordinator_holds_up_no_other(adds: bool) -> None:
    async with asked() as world:
        world.brokers[3].is_hanging = True
        waits = world.verifier.verify("w", 5, 6, [T0], adds=True)
        await asyncio.sleep(0.1 * ROUND_S)
        world.brokers[3].is_hanging = False
        assert {*(await world.verifier.verify("x", 5, 6, [T0], adds=adds)).values()} == {0}
        assert not waits.done()


async def test_there_are_few_connections_for_additions() -> None:
    async with asked() as world:
        answers = []
        for index in range(20):
            answers.append(world.verifier.verify(f"id-{index}", 5, 6, [T0, T1], adds=True))
            await asyncio.sleep(0.01 * ROUND_S)
        for answer in answers:
            assert {*(await answer).values()} == {ErrorCode.NONE}
        assert world.brokers[3].in_flight_max == len(world.brokers[3].connections) == ADDING_LANES
