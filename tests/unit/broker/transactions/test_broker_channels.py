"""What a broker asks others of transactions: a connection to each, the verifier. Time jumps."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from quorumlog.broker.partitions.log.verified_appends import TransactionProducer
from quorumlog.broker.transactions.io.broker_channels import (
    ANSWERED_AT_ONCE,
    REQUEST_WEIGHT_MAX,
    WAITING_WEIGHT_MAX,
    BrokerChannels,
)
from quorumlog.broker.transactions.io.coordinator_verifier import ADDING_LANES, CoordinatorVerifier
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicId, TopicPartition
from quorumlog.wire.codec.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
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


@dataclass(eq=False)
class Asked:
    key: int
    weight: int = 1
    group: int = 0
    outcomes: list[object] = field(default_factory=list)

    def refuse(self, error_code: ErrorCode) -> None:
        self.outcomes.append(error_code)

    def answered(self) -> None:
        pass


class Echo:
    """A request is the list of its keys, and so is the response."""

    def request_of(self, questions: Any) -> Any:
        return [question.key for question in questions]

    def answers_of(self, response: Any) -> Any:
        return response

    def answer(self, question: Asked, answers: Any) -> None:
        assert question.key in answers
        question.outcomes.append("answered")
        question.answered()


class World:
    def __init__(self) -> None:
        self.brokers = FakeBrokers()
        self.broker = self.brokers[2]
        self.broker.answer = lambda request: request
        self.channels: BrokerChannels[Asked] = BrokerChannels(Echo(), self.brokers.peers)
        self.channels.publish(image_of({}))

    def ask(self, *questions: Asked) -> list[Asked]:
        for question in questions:
            self.channels.ask(2, question)  # type: ignore[arg-type]
        return [*questions]

    async def stop(self) -> None:
        await self.channels.stop()
        assert self.brokers.failures == []


async def test_a_request_is_not_too_large_and_keeps_the_order() -> None:
    world = World()
    heavy = REQUEST_WEIGHT_MAX // 2
    asked = world.ask(*(Asked(key, heavy) for key in range(5)), Asked(5, 10 * REQUEST_WEIGHT_MAX))
    await asyncio.sleep(10 * ROUND_S)
    assert world.broker.requests == [[0, 1], [2, 3], [4], [5]]
    assert [one.outcomes for one in asked] == [["answered"]] * 6
    await world.stop()


async def test_questions_that_an_answer_would_mix_up_are_asked_in_their_order() -> None:
    world = World()
    asked = world.ask(
        Asked(1, group=1), Asked(1, group=2), Asked(2), Asked(1, group=1), Asked(1, group=2)
    )
    await asyncio.sleep(10 * ROUND_S)
    assert world.broker.requests == [[1, 2, 1], [1, 1]]
    assert [one.outcomes for one in asked] == [["answered"]] * 5
    await world.stop()


async def test_what_waits_for_a_broker_has_a_limit() -> None:
    world = World()
    world.broker.is_hanging = True
    asked = world.ask(*(Asked(key, WAITING_WEIGHT_MAX // 4) for key in range(6)))
    refused = [one.key for one in asked if one.outcomes == [ErrorCode.BROKER_NOT_AVAILABLE]]
    assert refused == [4, 5]
    await world.stop()
    assert [len(one.outcomes) for one in asked] == [1] * 6


async def test_each_question_has_one_answer_though_the_channel_is_closed_while_answering() -> None:
    world = World()
    loop = asyncio.get_running_loop()

    @dataclass(eq=False)
    class Closing(Asked):
        def refuse(self, error_code: ErrorCode) -> None:
            raise AssertionError(error_code)

        def answered(self) -> None:
            loop.call_soon(world.channels.publish, image_of({}, fenced=[2]))

    asked = world.ask(Closing(0), *(Asked(key) for key in range(1, 3 * ANSWERED_AT_ONCE)))
    await asyncio.sleep(2 * ROUND_S)
    answered = [["answered"]] * ANSWERED_AT_ONCE
    rest = [[ErrorCode.NETWORK_EXCEPTION]] * (2 * ANSWERED_AT_ONCE)
    assert [one.outcomes for one in asked] == answered + rest
    await world.stop()


async def test_a_broker_that_does_not_listen_is_asked_ever_more_rarely() -> None:
    world = World()
    world.broker.is_up = False
    tried: list[float] = []
    loop = asyncio.get_running_loop()
    while len(tried) < 12:
        [asked] = world.ask(Asked(0))
        while not asked.outcomes:
            await asyncio.sleep(0.001)
        assert asked.outcomes == [ErrorCode.NETWORK_EXCEPTION]
        tried.append(loop.time())
    pauses = [after - before for before, after in pairwise(tried)]
    assert max(pauses[:2]) < 0.1
    assert 0.7 < min(pauses[-3:]) < max(pauses[-3:]) < 1.3
    world.broker.is_up = True
    [asked] = world.ask(Asked(0))
    await asyncio.sleep(3 * ROUND_S)
    assert asked.outcomes == ["answered"]
    await world.stop()


async def test_a_channel_that_is_closed_before_it_ran_refuses_too() -> None:
    world = World()
    asked = world.ask(Asked(0))
    await world.stop()
    assert asked[0].outcomes == [ErrorCode.NETWORK_EXCEPTION]
    assert world.ask(Asked(1))[0].outcomes == [ErrorCode.BROKER_NOT_AVAILABLE]


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
        results = [
            AddPartitionsToTxnResult(
                transactional_id=one.transactional_id,
                topic_results=[self.result_of(topic, code) for topic in one.topics],
            )
            for one in request.transactions
        ]
        return AddPartitionsToTxnResponse(results_by_transaction=results)

    def result_of(self, topic: AddPartitionsToTxnTopic, code: int) -> AddPartitionsToTxnTopicResult:
        results = [
            AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
            for index in topic.partitions
            if TopicPartition(topic.name, index) not in self.left_out
        ]
        return AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=results)


class VerifierWorld:
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
        found = await self.verifier.verify(TransactionProducer(name, 5, 6), where, adds=adds)
        assert [*found] == [*where]
        return [*found.values()]

    @property
    def requests(self) -> list[AddPartitionsToTxnRequest]:
        return self.brokers[3].requests


@asynccontextmanager
async def asked() -> AsyncIterator[VerifierWorld]:
    world = VerifierWorld()
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
        first = verify(TransactionProducer("w", 5, 6), [T0], adds=True)
        await asyncio.sleep(0.1 * ROUND_S)
        others = [
            verify(TransactionProducer("x", 5, 6), [T0], adds=True),
            verify(TransactionProducer("x", 5, 7), [T1], adds=True),  # of another epoch
            verify(TransactionProducer("x", 5, 6), [T1], adds=False),
            verify(TransactionProducer("x", 5, 6), [T1, T0], adds=True),
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


async def test_two_topics_of_one_name_are_told_apart() -> None:
    """A leader that has the new topic may send its question beside one about the former topic."""
    async with asked() as world:
        verify, one = world.verifier.verify, TransactionProducer("x", 5, 6)
        first = verify(one, [T1], adds=False)
        await asyncio.sleep(0.1 * ROUND_S)
        ids = TopicId(bytes(15) + b"1"), TopicId(bytes(15) + b"2")
        for answer in [first, *(verify(one, [T0], topic_id=of, adds=False) for of in ids)]:
            assert {*(await answer).values()} == {ErrorCode.NONE}
        [transaction] = world.requests[1].transactions
        assert [(topic.topic_id, topic.partitions) for topic in transaction.topics] == [
            (of, [0]) for of in ids
        ]


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
    world = VerifierWorld()
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
        waits = world.verifier.verify(TransactionProducer("w", 5, 6), [T0], adds=True)
        await asyncio.sleep(0.1 * ROUND_S)
        world.brokers[3].is_hanging = False
        assert {
            *(await world.verifier.verify(TransactionProducer("x", 5, 6), [T0], adds=adds)).values()
        } == {0}
        assert not waits.done()


async def test_there_are_few_connections_for_additions() -> None:
    async with asked() as world:
        answers = []
        for index in range(20):
            answers.append(
                world.verifier.verify(TransactionProducer(f"id-{index}", 5, 6), [T0, T1], adds=True)
            )
            await asyncio.sleep(0.01 * ROUND_S)
        for answer in answers:
            assert {*(await answer).values()} == {ErrorCode.NONE}
        assert world.brokers[3].in_flight_max == len(world.brokers[3].connections) == ADDING_LANES
