"""One connection to each broker: what shares a request, what is refused. Time jumps."""

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest

from quorumlog.broker.transactions.io.broker_channels import (
    ANSWERED_AT_ONCE,
    REQUEST_WEIGHT_MAX,
    WAITING_WEIGHT_MAX,
    BrokerChannels,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.transactions.service import ROUND_S, FakeBrokers, image_of

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
