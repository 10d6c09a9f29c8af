"""Brokers that were killed all at once take up their places again (decision 13)."""

from typing import Any

import pytest

from quorumlog.metadata_quorum.controller.brokers import OPENING_SESSIONS
from quorumlog.metadata_quorum.image.records import PartitionChange
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Offset
from tests.support.metadata_quorum.controllers import Bench, one_at_once, topic

BROKERS = (1, 2, 3)
BOOT = "the system runs on"


def killed(bench: Bench | None = None) -> Bench:
    """Return a controller that has just taken over, of brokers that were all killed."""
    bench = bench or Bench()
    for broker_id in BROKERS:
        bench.register(broker_id, boot=BOOT)
        bench.heartbeat(broker_id)
    for name, leader in (("t", 1), ("u", 2), ("v", 3), ("w", 1)):
        bench.create(topic(name, leader, *(one for one in BROKERS if one != leader)))
    bench.controller = bench.take_over()
    bench.activate()
    return bench


def come_back(bench: Bench, *broker_ids: int, boot: str = BOOT) -> None:
    for broker_id in broker_ids:
        reply = bench.register(broker_id, incarnation="b", boot=boot)
        assert reply.error_code is ErrorCode.NONE
        assert (
            reply.broker_epoch == bench.controller.cluster.brokers[BrokerId(broker_id)].broker_epoch
        )


def is_fenced(bench: Bench, broker_id: int) -> bool:
    return bench.controller.cluster.brokers[BrokerId(broker_id)].fenced


def open_logs(bench: Bench, broker_id: int) -> bool:
    """Let a broker say that it opens its logs; return whether it is fenced then."""
    return bench.heartbeat(broker_id, want_fence=True, is_opening=True).is_fenced


@pytest.mark.parametrize(
    "bench", [Bench(), Bench(controller_class=one_at_once())], ids=["", "sliced"]
)
def test_brokers_that_were_all_killed_keep_their_places_and_lead_in_new_epochs(
    bench: Bench,
) -> None:
    killed(bench)
    before = {name: bench.partition(name) for name in "tuvw"}
    count = len(bench.log)
    come_back(bench, *BROKERS)
    for name, was in before.items():
        now = bench.partition(name)
        assert (now.leader_id, now.isr, now.elr) == (was.leader_id, was.isr, ())
        assert now.leader_epoch == was.leader_epoch + 1
    changes = [record for record in bench.log[count:] if isinstance(record, PartitionChange)]
    assert len(changes) == len(before)  # one each
    assert not any(map(open_logs, [bench] * 3, BROKERS))
    for broker_id in BROKERS:
        assert not bench.heartbeat(broker_id).is_fenced
    assert bench.controller.check_invariants() == []


def test_the_new_epoch_is_in_the_log_before_the_registration() -> None:
    bench = killed()
    come_back(bench, 1)
    epoch = bench.controller.cluster.brokers[BrokerId(1)].broker_epoch
    assert [isinstance(record, PartitionChange) for record in bench.log[epoch - 2 :]] == [
        *(True, True),  # of t and w
        False,
    ]


def test_a_broker_that_lost_its_memory_leaves_and_the_others_keep_their_places() -> None:
    bench = killed()
    come_back(bench, 1)
    come_back(bench, 2, boot="another one")
    come_back(bench, 3)
    assert is_fenced(bench, 2)
    for name, leader in (("t", 1), ("u", 1), ("v", 3)):
        partition = bench.partition(name)
        assert ({*partition.isr}, partition.elr, partition.leader_id) == ({1, 3}, (), leader)


@pytest.mark.parametrize(
    "seen", [{"boot": None}, {"boot": BOOT, "directory": "another"}, {"has_offline_dirs": True}]
)
def test_what_is_not_known_to_be_whole_leaves(seen: dict[str, Any]) -> None:
    bench = killed()
    come_back(bench, 2, 3)
    bench.now_ms += bench.settings.broker_session_timeout_ms  # another directory is no successor
    assert not any(map(open_logs, [bench] * 2, (2, 3)))
    assert bench.register(1, incarnation="b", **{"boot": BOOT, **seen}).error_code is ErrorCode.NONE
    assert is_fenced(bench, 1)
    assert {*bench.partition("t").isr} == {2, 3}


def test_a_broker_that_is_killed_alone_leaves_its_isrs() -> None:
    bench = killed()
    come_back(bench, *BROKERS)
    for broker_id in BROKERS:
        bench.heartbeat(broker_id)
    bench.register(1, incarnation="c", boot=BOOT)
    assert is_fenced(bench, 1)
    assert ({*bench.partition("t").isr}, bench.partition("t").leader_id) == ({2, 3}, 2)


def test_a_broker_that_stops_takes_up_nothing() -> None:
    bench = killed()
    come_back(bench, *BROKERS)
    bench.heartbeat(1, want_shut_down=True)
    bench.register(1, incarnation="c", boot=BOOT)
    assert is_fenced(bench, 1)
    assert 1 not in bench.partition("t").isr


def test_a_broker_that_serves_all_along_ends_what_another_has_taken_up() -> None:
    """It was killed alone, and registered before the new controller had heard the others."""
    bench = killed()
    come_back(bench, 1)
    assert not open_logs(bench, 1)
    bench.heartbeat(2)
    assert open_logs(bench, 1)
    assert {*bench.partition("t").isr} == {2, 3}


def test_logs_may_be_opened_for_some_sessions_while_another_serves() -> None:
    bench = killed()
    come_back(bench, *BROKERS)
    bench.now_ms += 1_000_000
    assert not open_logs(bench, 1)
    bench.heartbeat(2)
    bench.now_ms += OPENING_SESSIONS * bench.settings.broker_session_timeout_ms - 1
    assert not open_logs(bench, 1)
    bench.now_ms += 1
    assert open_logs(bench, 1)
    assert {*bench.partition("t").isr} == {2, 3}


@pytest.mark.parametrize("is_known_to_be_dead", [True, False])
def test_nobody_else_leaves_before_the_logs_of_those_that_came_back_are_open(
    is_known_to_be_dead: bool,
) -> None:
    """Their logs may prove damaged, and then the one that is still down holds all."""
    bench = killed()
    come_back(bench, 1, 2)
    bench.now_ms += bench.settings.broker_session_timeout_ms
    if is_known_to_be_dead:
        bench.die(3)
    assert not any(map(open_logs, [bench] * 2, (1, 2)))
    assert bench.carry_out(bench.controller.decide_expiry(bench.now_ms)) is None
    bench.heartbeat(1)
    bench.report(2, 5, whole=False)
    assert {*bench.partition("t").isr} == {1, 3}
    bench.heartbeat(2)
    assert bench.carry_out(bench.controller.decide_expiry(bench.now_ms)) == 3


def test_a_broker_whose_logs_are_not_whole_leaves_its_isrs() -> None:
    bench = killed()
    come_back(bench, *BROKERS)
    assert not open_logs(bench, 1)
    assert bench.heartbeat(1, want_fence=True).is_fenced
    assert ({*bench.partition("t").isr}, bench.partition("t").leader_id) == ({2, 3}, 2)


def test_a_process_that_dies_while_it_registers_leaves_its_epochs_to_the_next() -> None:
    bench = killed(Bench(controller_class=one_at_once()))
    epoch = bench.partition("t").leader_epoch
    request = bench.registration(1, "b", boot=BOOT)
    decision = bench.controller.decide(
        request, now_ms=bench.now_ms, base_offset=Offset(len(bench.log))
    )
    bench.carry_out(decision)
    assert decision.goes_on
    bench.register(1, incarnation="c", boot=BOOT)
    assert [bench.partition(name).leader_epoch - epoch for name in "tw"] == [2, 1]
    assert not is_fenced(bench, 1)
