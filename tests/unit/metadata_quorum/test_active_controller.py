"""The active controller: which requests wait for it, its answers, and the sessions it ends."""

import asyncio
from dataclasses import replace

import pytest

from quorumlog.metadata_quorum.controller.requests import AllocateProducerIds, Decision
from quorumlog.metadata_quorum.controller_client import BrokerHeartbeat
from quorumlog.metadata_quorum.driver import active_controller
from quorumlog.metadata_quorum.driver.active_controller import ActiveController, Claim
from quorumlog.metadata_quorum.driver.seams import Ask, ControllerDeposed, NotController
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset
from tests.support.metadata_quorum.controllers import Bench, one_at_once, topic

IDS = AllocateProducerIds(broker_id=BrokerId(1), broker_epoch=0)


def active() -> ActiveController:
    """One that has taken over at 0 ms; broker 1 is registered."""
    bench = Bench(now_ms=0).start(1)
    return ActiveController(bench.take_over(), leader_epoch=Epoch(1))


def heartbeat(controller: ActiveController) -> BrokerHeartbeat:
    epoch = controller.controller.cluster.brokers[BrokerId(1)].broker_epoch
    return BrokerHeartbeat(broker_id=BrokerId(1), broker_epoch=epoch, metadata_offset=epoch)


def look(controller: ActiveController, now_ms: int) -> Decision[BrokerId | None]:
    """Run for the first time since the last look."""
    controller.note_time(now_ms)
    return controller.decide_expiry(now_ms)


def future() -> "asyncio.Future[object]":
    return asyncio.get_running_loop().create_future()


async def test_an_answer_leaves_when_what_it_stands_on_is_committed() -> None:
    controller, first, second = active(), future(), future()
    controller.answer_when_committed(Offset(5), Ask(IDS, first, 0), Decision(response="first"))
    controller.answer_when_committed(Offset(7), Ask(IDS, second, 0), Decision(response="second"))
    controller.advance(Offset(6))
    assert (first.done(), second.done()) == (True, False)
    controller.resign()
    with pytest.raises(NotController):
        await second


async def test_one_that_is_deposed_tells_a_change_that_may_be_made_from_what_was_not_done() -> None:
    controller, changed, repeated, refused = active(), future(), future(), future()
    broker_epoch = heartbeat(controller).broker_epoch
    request = AllocateProducerIds(broker_id=BrokerId(1), broker_epoch=broker_epoch)
    ask = Ask(request, changed, 0, "id")
    end_offset = Offset(controller.controller.cluster.end_offset)
    decision = controller.decide(ask, now_ms=0, end_offset=end_offset)
    controller.answer_when_committed(Offset(end_offset + len(decision.records)), ask, decision)
    assert controller.maybe_answer_again(Ask(request, repeated, 0, "id"))
    no_change = Decision(response="it exists")
    controller.answer_when_committed(Offset(end_offset + 9), Ask(request, refused, 0), no_change)
    controller.resign()
    for answer, kind in (
        (changed, ControllerDeposed),
        (repeated, ControllerDeposed),
        (refused, NotController),
    ):
        assert type(answer.exception()) is kind


def test_one_that_was_not_running_blames_no_broker() -> None:
    """A paused process finds every session over: it has not listened."""
    controller = active()
    assert controller.controller.next_expiry_ms() == 9000
    assert look(controller, 60_000).records == ()
    assert controller.controller.next_expiry_ms() == 69_000
    assert look(controller, 69_500).response == 1


def test_one_that_is_often_late_fences_a_silent_broker_all_the_same() -> None:
    controller = active()
    fenced, now_ms = [], 0
    for _ in range(4):
        now_ms += 11_000  # each time two seconds late
        fenced.append(look(controller, now_ms).response)
    assert fenced == [None, None, 1, 1]  # nothing was applied in between


def test_a_session_that_was_touched_between_the_stalls_is_renewed_again() -> None:
    controller = active()
    for now_ms in range(11_000, 110_000, 11_000):
        assert look(controller, now_ms).records == ()
        controller.controller.touch(heartbeat(controller), now_ms)


def test_a_broker_that_leaves_slice_by_slice_is_fenced_however_long_that_takes() -> None:
    """Its session is over for longer and longer, although this process ran all the time."""
    bench = Bench(now_ms=0, controller_class=one_at_once()).start(1, 2)
    for index in range(40):
        bench.create(topic(f"t{index}", 1, 2))
    controller = ActiveController(bench.take_over(), leader_epoch=Epoch(1))
    bench.controller = controller.controller
    heard = replace(heartbeat(controller), metadata_offset=Offset(len(bench.log)))
    slices = 0
    for now_ms in range(0, 30_000, 100):
        controller.note_time(now_ms)
        if now_ms % 1_000 == 0:
            controller.controller.touch(heard, now_ms)
        due_ms = controller.controller.next_expiry_ms()
        if due_ms is not None and due_ms <= now_ms:
            decision = controller.decide_expiry(now_ms)
            assert decision.response == 2
            bench.carry_out(decision)
            slices += 1
            if not decision.goes_on:
                break
    assert slices == 40
    assert now_ms == 9_000 + 39 * 100


async def test_a_heartbeat_counts_from_when_it_came_not_from_when_it_is_decided() -> None:
    """KAFKA-15019: one that waited must not prolong the session by its waiting."""
    controller = active()
    controller.controller.touch(heartbeat(controller), 2_000)
    ask = Ask(heartbeat(controller), future(), 2_000)
    controller.decide(
        ask, now_ms=8_000, end_offset=Offset(controller.controller.cluster.end_offset)
    )
    assert controller.controller.next_expiry_ms() == 11_000


async def test_requests_wait_for_the_take_over_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(active_controller, "WAITING_MAX", 1)
    claim, answers = Claim(Epoch(1), Offset(0)), [future() for _ in range(3)]
    answers[1].cancel()  # its caller has given up
    for answer in answers:
        claim.wait(Ask(IDS, answer, 0))
    assert [ask.answer for ask in claim.waiting] == answers[:1]
    with pytest.raises(NotController, match="too many"):
        await answers[2]
    claim.resign()
    with pytest.raises(NotController, match="no more"):
        await answers[0]
