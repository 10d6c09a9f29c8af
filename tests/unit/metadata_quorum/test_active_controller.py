"""The active controller: waiting requests, answers, sessions, and decisions in slices."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from quorumlog.metadata_quorum.controller.controller import Controller
from quorumlog.metadata_quorum.controller.decision import Decision
from quorumlog.metadata_quorum.controller.log_loss import NO_LOSS, Losses
from quorumlog.metadata_quorum.controller.log_reports import ControllerRules
from quorumlog.metadata_quorum.controller.partition_changes import LogEvidence, PartitionChanges
from quorumlog.metadata_quorum.controller.partitions import Departure, PartitionDecisions
from quorumlog.metadata_quorum.controller.slices import Slices
from quorumlog.metadata_quorum.controller_client import BrokerHeartbeat, NewTopic
from quorumlog.metadata_quorum.controller_requests import AllocateProducerIds, DeleteTopics
from quorumlog.metadata_quorum.driver import active_controller
from quorumlog.metadata_quorum.driver.active_controller import ActiveController, Claim
from quorumlog.metadata_quorum.driver.dependencies import Ask, ControllerDeposed, NotController
from quorumlog.metadata_quorum.image.model import PartitionImage
from quorumlog.metadata_quorum.image.partitions_by_broker import PartitionsByBroker, Place
from quorumlog.metadata_quorum.image.records import MetadataRecord, PartitionChange
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.wire.codec.identifiers import (
    NO_LEADER,
    BrokerId,
    Epoch,
    Offset,
    PartitionIndex,
    TopicId,
)
from tests.support.metadata_quorum.controllers import Bench, image_of, one_at_once, topic

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


async def test_who_has_gone_meanwhile_gets_no_answer_and_holds_up_nobody() -> None:
    controller, gone, other = active(), future(), future()
    for answer in (gone, other):
        controller.answer_when_committed(Offset(5), Ask(IDS, answer, 0), Decision(response="it"))
    gone.cancel()
    controller.advance(Offset(5))
    assert await other == "it"


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


def test_one_that_was_not_running_blames_no_broker_and_one_that_is_often_late_does() -> None:
    """A paused process finds every session over: it has not listened."""
    controller = active()
    assert controller.controller.next_expiry_ms() == 9000
    assert look(controller, 60_000).records == ()
    assert controller.controller.next_expiry_ms() == 69_000
    assert look(controller, 69_500).response == 1
    late = active()
    fenced = [look(late, now_ms).response for now_ms in range(11_000, 45_000, 11_000)]
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


# --- decisions about many partitions: how much a slice does, and the rest after the last ---


ONE = BrokerId(1)


class TenAtOnce(Slices):
    at_once = 10


class Slicing(Controller):
    rules = ControllerRules(slices=TenAtOnce)


def bench_of(partitions: int, *, replication_factor: int = 3) -> Bench:
    bench = Bench(controller_class=Slicing).start(1, 2, 3)
    bench.create(NewTopic(name="t", partitions=partitions, replication_factor=replication_factor))
    return bench


def take_over(bench: Bench) -> None:
    """A controller that has just taken over fences no dead broker before it hears the others."""
    bench.controller = bench.take_over()
    bench.activate()
    for broker_id in (2, 3):
        bench.heartbeat(broker_id)


def partitions_of(bench: Bench) -> tuple[PartitionImage, ...]:
    return bench.controller.cluster.partitions("t")


def slices_of_death(bench: Bench) -> Iterator[tuple[MetadataRecord, ...]]:
    while True:
        decision = bench.controller.decide_process_died(
            ONE, broker_epoch=bench.broker(1).broker_epoch, now_ms=bench.now_ms
        )
        bench.carry_out(decision)
        yield decision.records
        if not decision.goes_on:
            return


def test_a_death_changes_a_few_partitions_at_once_and_fences_last() -> None:
    bench = bench_of(25)
    bench.now_ms += 1
    sizes = []
    for records in slices_of_death(bench):
        sizes.append(len(records))
        assert bench.controller.check_invariants() == []
        is_left = any(ONE in partition.isr for partition in partitions_of(bench))
        assert bench.broker(1).fenced is not is_left
    assert sizes == [10, 10, 6]


def test_the_next_controller_goes_on_where_one_died_between_two_slices() -> None:
    bench = bench_of(25)
    bench.now_ms += 1
    next(slices_of_death(bench))
    take_over(bench)
    assert not bench.broker(1).fenced
    bench.die(1)
    assert bench.broker(1).fenced
    assert all(ONE not in partition.isr for partition in partitions_of(bench))
    assert bench.controller.check_invariants() == []


def test_a_broker_that_is_fenced_before_the_last_slice_is_noticed() -> None:
    """The planted bug: that the first slice already fences."""

    class AllAtOnce(TenAtOnce):
        def departure(self, broker_id: BrokerId, losses: Losses = NO_LOSS) -> Departure:
            return super().departure(broker_id, losses)._replace(is_whole=True)

    class FencesAtOnce(Controller):
        rules = ControllerRules(slices=AllAtOnce)

    bench = bench_of(25)
    bench.controller_class = FencesAtOnce
    take_over(bench)
    bench.die(1)
    assert any("fenced broker" in broken for broken in bench.controller.check_invariants())


def test_a_controlled_shutdown_hands_over_in_slices_and_no_leader_takes_the_broker_back() -> None:
    bench = bench_of(25)
    decisions = []
    carry_out = bench.carry_out

    def seen(decision):  # type: ignore[no-untyped-def]
        decisions.append(decision)
        if decision.goes_on:
            carry_out(decision)
            assert bench.broker(ONE).in_controlled_shutdown
            return decision.response
        return carry_out(decision)

    bench.carry_out = seen  # type: ignore[method-assign]
    reply = bench.heartbeat(1, want_shut_down=True)
    assert not reply.should_shut_down  # the others have not replayed it
    assert [len(one.records) for one in decisions] == [11, 10, 5]
    assert all(ONE not in partition.isr for partition in partitions_of(bench))
    for broker_id in (2, 3):
        bench.heartbeat(broker_id)
    assert bench.heartbeat(1, want_shut_down=True).should_shut_down


def test_a_broker_that_lost_its_disk_leaves_every_elr_before_it_is_registered() -> None:
    bench = bench_of(25, replication_factor=1)
    alone = {at for at, one in enumerate(partitions_of(bench)) if one.replicas == (ONE,)}
    bench.create(NewTopic(name="u", partitions=25, replication_factor=3))
    bench.die(1)
    remarks, goes_on = [], True
    while goes_on:
        decision = bench.controller.decide(
            bench.registration(1, "b", directory="another"),
            now_ms=bench.now_ms,
            base_offset=Offset(len(bench.log)),
        )
        bench.carry_out(decision)
        remarks.append(decision.remark or "")
        assert len(decision.records) <= 11
        goes_on = decision.goes_on
    assert len(remarks) == 1 + len(alone) // 10
    assert all("t-" in remark for remark in remarks[:-1])
    assert all(partitions_of(bench)[at].elr == () for at in alone)
    assert bench.controller.check_invariants() == []


def test_leaders_are_elected_in_slices_after_a_take_over_and_after_an_unfencing() -> None:
    bench = bench_of(75, replication_factor=1)
    bench.die(1)
    leaderless = sum(one.leader_id == NO_LEADER for one in partitions_of(bench))
    assert leaderless == 25
    bench.controller = bench.take_over()
    assert bench.carry_out(bench.controller.decide_activation()) is None
    bench.elect_rest()  # looks at all of them in vain
    bench.register(4)
    beat, offset = bench.heartbeat_request(4), Offset(len(bench.log))
    bench.carry_out(bench.controller.decide(beat, now_ms=bench.now_ms, base_offset=offset))
    assert not bench.broker(4).fenced
    assert not bench.controller.has_elections  # it replicates none of them
    bench.revive(1)
    assert all(one.leader_id != NO_LEADER for one in partitions_of(bench))
    assert not bench.controller.has_elections


def test_a_partition_that_is_deleted_between_two_slices_gets_no_leader() -> None:
    bench = bench_of(75, replication_factor=1)
    bench.die(1)
    bench.controller = bench.take_over()
    bench.carry_out(bench.controller.decide_activation())
    assert bench.controller.has_elections
    bench.ask(DeleteTopics(topic_ids=(bench.topic_id(),)))
    bench.elect_rest()


@pytest.mark.parametrize("others", [0, 2_000])
def test_what_is_decided_about_a_broker_costs_what_it_has(
    others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = 0
    partition = ClusterReplay.partition

    def counted(self: ClusterReplay, name: str, index: int) -> PartitionImage | None:
        nonlocal looked_at
        looked_at += 1
        return partition(self, name, index)

    bench = Bench().start(1, 2, 3, 4)
    bench.create(NewTopic(name="t", assignments={i: (ONE, BrokerId(2)) for i in range(5)}))
    if others:
        where = {i: (BrokerId(3), BrokerId(4)) for i in range(others)}
        bench.create(NewTopic(name="u", assignments=where))
    monkeypatch.setattr(ClusterReplay, "partition", counted)
    monkeypatch.setattr(ClusterReplay, "partitions", None)  # nor is a whole topic asked for
    bench.heartbeat(1)
    bench.heartbeat(1, want_fence=True)
    bench.heartbeat(1)
    bench.heartbeat(1, want_shut_down=True)
    bench.die(2)
    assert looked_at == 10  # 5 to fence broker 1, which then has nothing to stop for, 5 for 2


# --- the index ---


def _sets(by_broker: PartitionsByBroker, broker_id: BrokerId) -> list[set[Place]]:
    kinds = (by_broker.in_sync, by_broker.eligible, by_broker.leading)
    return [{*kind.of(broker_id)} for kind in kinds]


def test_a_copy_of_the_index_does_not_see_later_changes() -> None:
    bench = bench_of(3)
    cluster = bench.controller.cluster
    copied = cluster.by_broker.copy()
    before = _sets(copied, ONE)
    bench.die(1)
    assert _sets(copied, ONE) == before
    assert _sets(cluster.by_broker, ONE) == [set(), set(), set()]


def test_an_index_holds_the_partitions_of_a_large_topic_in_order() -> None:
    index, topic_id = PartitionsByBroker(), TopicId(b"t" * 16)
    led = PartitionImage(
        leader_id=ONE, leader_epoch=Epoch(0), partition_epoch=Epoch(0), replicas=(ONE,), isr=(ONE,)
    )
    numbers = [0, 63, 64, 65, 127, 128, 9_999]
    for number in reversed(numbers):
        index.note(topic_id, PartitionIndex(number), None, led)
    assert [at.partition for at in index.leading.of(ONE)] == numbers
    index.remove_topic(topic_id)
    assert not index.leading.has_any(ONE)


def test_the_image_of_a_change_shares_what_did_not_change() -> None:
    bench = bench_of(3)
    bench.create(NewTopic(name="u", partitions=1, replication_factor=1))
    cluster = bench.replay()
    before = image_of(cluster)
    topic = before.topics["t"]
    change = PartitionChange(topic_id=topic.topic_id, partition_id=PartitionIndex(1))
    cluster.apply(cluster.end_offset, change)
    after = image_of(cluster)
    assert after.topics["u"] is before.topics["u"]
    assert after.topics["t"].partitions[0] is topic.partitions[0]
    assert after.topic_names is before.topic_names
    assert after.brokers is before.brokers
    assert image_of(cluster).topics is after.topics


def test_a_decision_about_departures_looks_no_further_than_its_slice() -> None:
    bench = bench_of(1000)
    located = 0

    class Counting(PartitionDecisions):
        def _located(self, at: Place):  # type: ignore[no-untyped-def]
            nonlocal located
            located += 1
            return super()._located(at)

    cluster = bench.controller.cluster
    changes = PartitionChanges(cluster, bench.settings, LogEvidence(cluster))
    decisions = Counting(cluster, changes)
    departure = decisions.decide_departure(ONE, at_most=10)
    assert (len(departure.changes), departure.is_whole) == (10, False)
    assert located == 11
