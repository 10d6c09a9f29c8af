import asyncio
import random

import pytest

from quorumlog.metadata_quorum.controller.requests import AllocateProducerIds, CreateTopics
from quorumlog.metadata_quorum.controller.settings import ControllerSettings
from quorumlog.metadata_quorum.controller_client import NewTopic
from quorumlog.metadata_quorum.io.active_controller import ActiveController, Ask, NotController
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from tests.unit.metadata_quorum.controllers import Bench, image_of

IDS = AllocateProducerIds(broker_id=BrokerId(1), broker_epoch=0)


def active() -> ActiveController:
    return ActiveController(
        ControllerSettings(),
        leader_epoch=Epoch(1),
        epoch_start_offset=Offset(0),
        draw=random.Random(1).randbytes,
    )


def future() -> "asyncio.Future[object]":
    return asyncio.get_running_loop().create_future()


def test_who_asks_before_the_take_over_waits_for_it() -> None:
    async def scenario() -> None:
        controller, ask = active(), Ask(IDS, future())
        assert controller.decide(ask, now_ms=0, end_offset=Offset(1)) is None
        bench = Bench()
        bench.start(1)
        records, early = controller.claim(image_of(bench.controller.cluster), 0)
        assert (records, early) == ([], [ask])
        decision = controller.decide(ask, now_ms=0, end_offset=Offset(3))
        assert decision is not None
        assert len(decision.records) == 1

    asyncio.run(scenario())


def test_an_answer_leaves_when_what_it_stands_on_is_committed() -> None:
    async def scenario() -> None:
        controller, first, second = active(), future(), future()
        controller.answer_when_committed(Offset(5), first, "first")
        controller.answer_when_committed(Offset(7), second, "second")
        controller.advance(Offset(6))
        assert (first.done(), second.done()) == (True, False)
        controller.stand_down()
        with pytest.raises(NotController):
            await second

    asyncio.run(scenario())


def test_one_that_was_not_running_blames_nobody() -> None:
    """A paused process finds every session over: it has not listened."""
    controller, bench = active(), Bench()
    bench.start(1)
    controller.claim(image_of(bench.controller.cluster), 0)
    assert controller.next_expiry_ms() == 9000
    paused = controller.decide_expiry(60_000)
    assert paused is not None
    assert paused.records == ()
    assert controller.next_expiry_ms() == 69_000
    overdue = controller.decide_expiry(69_500)
    assert overdue is not None
    assert overdue.response == 1


@pytest.mark.parametrize(
    ("counts", "made"),
    [
        ((4000, 4000, 4000), set()),  # more than 10 000 partitions: refused whole, as in Kafka
        ((5000, 4990, 10), {"t0", "t1"}),  # 10 003 records: the last topic has no room
    ],
)
def test_a_request_of_ten_thousand_records_is_refused_before_it_is_written(
    counts: tuple[int, ...], made: set[str]
) -> None:
    bench = Bench()
    bench.start(1, 2, 3)
    topics = tuple(NewTopic(name=f"t{n}", partitions=count) for n, count in enumerate(counts))
    bench.ask(CreateTopics(topics=topics))
    assert {*bench.controller.cluster.topic_names()} == made
