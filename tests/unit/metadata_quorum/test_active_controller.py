import asyncio
import random

import pytest

from quorumlog.metadata_quorum.controller.requests import AllocateProducerIds, CreateTopics
from quorumlog.metadata_quorum.controller_client import BrokerHeartbeat, NewTopic
from quorumlog.metadata_quorum.driver import active_controller
from quorumlog.metadata_quorum.driver.active_controller import ActiveController, Ask, NotController
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from tests.support.metadata_quorum.controllers import Bench, image_of

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
        controller, ask = active(), Ask(IDS, future(), 0)
        controller.wait_for_claim(ask)
        bench = Bench()
        bench.start(1)
        assert controller.claim(image_of(bench.controller.cluster), 0) == [ask]
        activation = controller.decide_activation()
        assert activation is not None
        assert activation.records == ()
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


def test_one_that_is_often_late_fences_a_silent_broker_all_the_same() -> None:
    controller, bench = active(), Bench()
    bench.start(1)
    controller.claim(image_of(bench.controller.cluster), 0)
    fenced, now_ms = [], 0
    for _ in range(4):
        now_ms += 11_000  # each time two seconds late
        decision = controller.decide_expiry(now_ms)
        assert decision is not None
        fenced.append(decision.response)
    assert fenced == [None, None, 1, 1]  # nothing was applied in between


def test_a_broker_that_is_heard_between_the_stalls_is_excused_again() -> None:
    controller, bench = active(), Bench()
    bench.start(1)
    controller.claim(image_of(bench.controller.cluster), 0)
    epoch = bench.controller.cluster.brokers[BrokerId(1)].broker_epoch
    heartbeat = BrokerHeartbeat(broker_id=BrokerId(1), broker_epoch=epoch, metadata_offset=epoch)
    for now_ms in range(11_000, 110_000, 11_000):
        decision = controller.decide_expiry(now_ms)
        assert decision is not None
        assert decision.records == ()
        controller.hear(heartbeat, now_ms)


def test_a_heartbeat_counts_from_when_it_came_not_from_when_it_is_decided() -> None:
    """KAFKA-15019: one that waited must not prolong the session by its waiting."""

    async def scenario() -> None:
        controller, bench = active(), Bench()
        bench.start(1)
        controller.claim(image_of(bench.controller.cluster), 0)
        epoch = bench.controller.cluster.brokers[BrokerId(1)].broker_epoch
        heartbeat = BrokerHeartbeat(
            broker_id=BrokerId(1), broker_epoch=epoch, metadata_offset=epoch
        )
        controller.hear(heartbeat, 2_000)
        ask = Ask(heartbeat, future(), 2_000)
        controller.decide(ask, now_ms=8_000, end_offset=Offset(bench.controller.cluster.end_offset))
        assert controller.next_expiry_ms() == 11_000

    asyncio.run(scenario())


def test_there_is_a_limit_to_who_waits_for_the_take_over_and_one_that_gave_up_does_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(active_controller, "WAITING_MAX", 1)

    async def scenario() -> None:
        controller, asks = active(), [Ask(IDS, future(), 0) for _ in range(3)]
        asks[1].answer.cancel()
        for ask in asks:
            controller.wait_for_claim(ask)
        assert not asks[0].answer.done()
        with pytest.raises(NotController, match="too many"):
            await asks[2].answer

    asyncio.run(scenario())


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
