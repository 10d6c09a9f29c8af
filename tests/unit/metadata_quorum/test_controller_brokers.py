"""Decisions of the controller about brokers: registration, fencing, shutdown, resuming."""

from itertools import product
from typing import Any

import pytest

from quorumlog.metadata_quorum.controller.brokers import (
    OPENING_SESSIONS,
    TRANSITIONS,
    BrokerState,
    Sessions,
    next_state,
    state_of,
)
from quorumlog.metadata_quorum.controller.requests import AllocateProducerIds
from quorumlog.metadata_quorum.controller_client import BrokerHeartbeat
from quorumlog.metadata_quorum.image.records import PartitionChange
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId, Offset
from tests.support.metadata_quorum.brokers import broker_image
from tests.support.metadata_quorum.controllers import Bench, one_at_once, topic


def after_heartbeat(
    *,
    fenced: bool = False,
    stopping: bool = True,
    leads: bool = False,
    replayed: bool = True,
    may_open: bool = False,
    **heartbeat: Any,
) -> tuple[BrokerState, BrokerState]:
    """Return the state of a broker of epoch 5 before a heartbeat, and its next one."""
    broker = broker_image(fenced=fenced, in_controlled_shutdown=stopping)
    given = {"metadata_offset": 5, **heartbeat}
    after = next_state(
        broker,
        BrokerHeartbeat(broker_id=BrokerId(1), broker_epoch=5, **given),
        has_leaderships=leads,
        others_have_replayed_shutdown=replayed,
        may_open_logs=may_open,
    )
    return state_of(broker), after


def test_every_heartbeat_in_every_state_makes_a_legal_change() -> None:
    names = ("fenced", "stopping", "want_fence", "may_open", "want_shut_down", "leads", "replayed")
    seen = {
        after_heartbeat(metadata_offset=offset, **dict(zip(names, flags, strict=True)))
        for offset in (4, 5)
        for flags in product((False, True), repeat=len(names))
    }
    changes = {(before, after) for before, after in seen if after is not before}
    assert changes == {(state, after) for state in TRANSITIONS for after in TRANSITIONS[state]}


def test_a_broker_that_still_leads_something_may_not_stop() -> None:
    for leads in (False, True):
        _, after = after_heartbeat(leads=leads)
        assert (after is BrokerState.SHUTDOWN_NOW) is not leads
    bench = Bench().start(1)
    assert bench.heartbeat(1, want_shut_down=True).should_shut_down  # it leads nothing
    with bench.unwritten():  # it is fenced already
        assert bench.heartbeat(1, want_shut_down=True).should_shut_down


def test_the_broker_epoch_is_the_offset_of_the_registration() -> None:
    bench = Bench().start(1)
    epoch = bench.register(2).broker_epoch
    assert epoch == len(bench.log) - 1 == bench.broker(2).broker_epoch
    behind = bench.heartbeat(2, metadata_offset=epoch - 1)
    assert (behind.is_fenced, behind.is_caught_up) == (True, False)
    assert not bench.heartbeat(2, metadata_offset=epoch).is_fenced  # it has replayed it


def test_a_second_process_under_a_live_id_waits_unless_it_is_on_the_same_address() -> None:
    bench = Bench().start(1)
    other = bench.register(1, incarnation="b", port=19999)
    assert other.error_code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    old_epoch = bench.broker(1).broker_epoch
    reply = bench.register(1, incarnation="b")  # the successor
    assert reply.error_code is ErrorCode.NONE
    assert reply.broker_epoch > old_epoch
    for stale_epoch in (99, old_epoch):
        stale = bench.heartbeat(1, broker_epoch=stale_epoch)
        assert stale.error_code is ErrorCode.STALE_BROKER_EPOCH
    bench.now_ms += bench.settings.broker_session_timeout_ms
    assert bench.register(1, incarnation="c", port=19999).error_code is ErrorCode.NONE


def test_a_repeated_registration_keeps_its_epoch_and_writes_nothing() -> None:
    bench = Bench()
    first = bench.register(1)
    written = len(bench.log)
    assert bench.register(1) == first
    assert bench.register(1, port=19999) == first  # live, and the same process
    assert len(bench.log) == written


def test_a_new_process_starts_outside_every_isr() -> None:
    bench = Bench().start(1, 2, 3)
    bench.create(topic())
    reply = bench.register(1, incarnation="b")
    assert reply.broker_epoch == len(bench.log) - 1  # behind the changes of partitions
    assert bench.broker(1).broker_epoch == reply.broker_epoch
    partition = bench.partition()
    assert (partition.leader_id, partition.isr) == (2, (2, 3))


@pytest.mark.parametrize(("silent", "heard"), [(1, 2), (2, 1)])
def test_a_silent_broker_is_fenced_and_one_that_is_heard_is_not(silent: int, heard: int) -> None:
    bench = Bench().start(1, 2)
    bench.now_ms += 5000
    bench.heartbeat(heard)
    assert bench.controller.next_expiry_ms() == 1000 + 9000
    assert bench.expire(4000) == silent
    assert bench.expire() is None


def test_two_sessions_that_end_together_are_decided_one_after_the_other() -> None:
    """KAFKA-13173: the second decision is made on what the first has left."""
    bench = Bench().start(1, 2, 3)
    bench.create(topic())
    bench.now_ms += 9000
    bench.heartbeat(3)
    while bench.expire() is not None:
        pass
    partition = bench.partition()
    assert (partition.leader_id, partition.isr) == (3, (3,))


def test_a_new_controller_notices_that_a_broker_stays_silent() -> None:
    """KAFKA-18138: the broker dies while the controller changes."""
    bench = Bench().start(1)
    bench.now_ms += 8000
    bench.controller = bench.take_over()
    assert bench.expire(8999) is None
    assert bench.expire(1) == 1


def test_a_dead_process_is_fenced_at_once_unless_another_has_registered_since() -> None:
    bench = Bench().start(1, 2)
    epoch = bench.broker(1).broker_epoch
    replaced = bench.controller.decide_process_died(
        BrokerId(1), broker_epoch=epoch - 1, now_ms=bench.now_ms
    )
    assert replaced.records == ()
    bench.die(1)
    assert bench.broker(1).fenced
    # Its session is over: a process on another address may take the id.
    assert bench.register(1, incarnation="b", port=19999).error_code is ErrorCode.NONE


def test_what_a_dead_process_had_said_before_counts_no_more() -> None:
    """Its heartbeats may lie in our sockets for as long as we were paused ourselves."""
    bench = Bench().start(1, 2)
    bench.die(1)
    assert bench.heartbeat(1).error_code is ErrorCode.STALE_BROKER_EPOCH
    bench.controller.renew_all(bench.now_ms)
    assert bench.broker(1).fenced
    assert not bench.controller.sessions.is_live(BrokerId(1), bench.now_ms)
    # It lived after all: it registers again, under the same incarnation, and is let in.
    assert bench.register(1).error_code is ErrorCode.NONE
    bench.heartbeat(1)
    assert not bench.broker(1).fenced


def test_controlled_shutdown_moves_leaders_away_then_waits_for_the_others_to_know() -> None:
    bench = Bench().start(1, 2)
    bench.create(topic("t", 1, 2))
    bench.heartbeat(2)
    first = bench.heartbeat(1, want_shut_down=True)
    assert (first.should_shut_down, bench.partition().leader_id) == (False, 2)
    bench.create(topic("u", 1, 2))  # a broker that stops is given nothing more
    assert (bench.partition("u").leader_id, bench.partition("u").isr) == (2, (2,))
    assert not bench.heartbeat(1, want_shut_down=True).should_shut_down
    bench.heartbeat(2)
    assert bench.heartbeat(1, want_shut_down=True).should_shut_down
    assert bench.broker(1).fenced
    bench.die(2)
    assert (bench.partition().leader_id, bench.partition().elr) == (NO_LEADER, (2,))


def test_a_heartbeat_that_was_overtaken_takes_nothing_back() -> None:
    sessions = Sessions(session_timeout_ms=9000)
    for offset in (7, 5):
        sessions.touch(BrokerId(1), 0, offset)
    assert sessions.least_offset(frozenset({BrokerId(1)})) == 7


def test_the_last_of_the_isr_waits_in_the_elr_until_it_is_back() -> None:
    bench = Bench().start(1, 2)
    bench.create(topic("t", 1, 2))
    bench.die(1)
    bench.die(2)
    assert (bench.partition().leader_id, bench.partition().isr) == (NO_LEADER, ())
    assert bench.partition().elr == (2,)
    bench.revive(1)
    assert bench.partition().leader_id == NO_LEADER  # it may lack what 2 has committed alone
    bench.revive(2)
    assert (bench.partition().leader_id, bench.partition().isr) == (2, (2,))


def test_producer_ids_come_in_blocks_and_only_to_the_registered() -> None:
    bench = Bench().start(1)
    epoch = bench.broker(1).broker_epoch
    for broker_id, broker_epoch, code, first in (
        (1, epoch, "NONE", 0),
        (1, epoch, "NONE", 1000),
        (1, epoch - 1, "STALE_BROKER_EPOCH", -1),
        (2, 0, "BROKER_ID_NOT_REGISTERED", -1),
    ):
        request = AllocateProducerIds(broker_id=BrokerId(broker_id), broker_epoch=broker_epoch)
        reply = bench.ask(request)
        assert (reply.error_code.name, reply.block.first) == (code, first)


def test_a_dead_process_leaves_after_a_broker_that_is_silent() -> None:
    """A silent machine may have lost its memory: it must not be the last of an ISR."""
    bench = Bench().start(1, 2, 3)
    bench.create(topic("t", 1, 2, 3))
    bench.now_ms += 4000
    bench.heartbeat(1)
    bench.heartbeat(2)
    bench.die(1)
    assert not bench.broker(1).fenced
    expiry_ms = bench.controller.next_expiry_ms()
    assert expiry_ms is not None
    assert bench.carry_out(bench.controller.decide_expiry(expiry_ms - 1)) is None
    assert bench.carry_out(bench.controller.decide_expiry(expiry_ms)) == 3
    assert bench.carry_out(bench.controller.decide_expiry(expiry_ms + 1)) == 1
    assert bench.partition("t").isr == (2,)


@pytest.mark.parametrize("is_new", [False, True], ids=["", "a new controller has heard nobody"])
def test_a_dead_process_leaves_once_the_silent_broker_is_heard(is_new: bool) -> None:
    bench = Bench().start(1, 2)
    bench.now_ms += 4000
    if is_new:
        bench.controller = bench.take_over()
    bench.die(1)
    assert not bench.broker(1).fenced
    bench.now_ms += 1000
    bench.heartbeat(2)
    expiry_ms = bench.controller.next_expiry_ms()
    assert expiry_ms is not None
    assert bench.now_ms - 1000 < expiry_ms <= bench.now_ms  # a late look would renew all sessions
    assert bench.expire() == 1


def test_a_new_process_waits_until_a_silent_broker_is_heard() -> None:
    """It leaves the ISRs as it registers, just as a dead one that is fenced."""
    bench = Bench().start(1, 2)
    bench.now_ms += 4000
    refused = bench.register(1, incarnation="b")
    assert refused.error_code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert "another broker is unheard" in str(refused.error_message)
    bench.heartbeat(2)
    assert bench.register(1, incarnation="b").error_code is ErrorCode.NONE


def test_new_processes_that_wait_for_each_other_register_when_all_have_asked() -> None:
    """All were killed, some of them lack a log directory: each attempt is a sign.

    What may lack records is let in first.
    """
    bench = Bench().start(1, 2, 3)
    bench.create(topic("t", 1, 2, 3))
    bench.controller = bench.take_over()

    def is_taken(broker_id: int, **seen: Any) -> bool:
        return bench.register(broker_id, "b", **seen).error_code is ErrorCode.NONE

    assert not is_taken(1, has_offline_dirs=True)
    assert is_taken(2, boot="after")
    assert not is_taken(1, has_offline_dirs=True)
    assert is_taken(3, has_offline_dirs=True)
    assert is_taken(1, has_offline_dirs=True)
    partition = bench.partition("t")
    assert {*partition.isr, *partition.elr} == {1}


# --- brokers that were killed all at once take up their places again (decision 13) ---


BROKERS = (1, 2, 3)
BOOT = "the system runs on"


def killed(bench: Bench | None = None) -> Bench:
    """Return a controller that has just taken over, of brokers that were all killed."""
    bench = bench or Bench()
    for broker_id in BROKERS:
        bench.let_in(broker_id, boot=BOOT)
    for name, leader in (("t", 1), ("u", 2), ("v", 3), ("w", 1)):
        bench.create(topic(name, leader, *(one for one in BROKERS if one != leader)))
    bench.controller = bench.take_over()
    bench.activate()
    return bench


def come_back(bench: Bench, *broker_ids: int, boot: str = BOOT) -> None:
    for broker_id in broker_ids:
        reply = bench.register(broker_id, incarnation="b", boot=boot)
        assert reply.error_code is ErrorCode.NONE
        assert reply.broker_epoch == bench.broker(broker_id).broker_epoch


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
    last = bench.log[bench.broker(1).broker_epoch - 2 :]
    assert [isinstance(record, PartitionChange) for record in last] == [True, True, False]


def test_a_broker_that_lost_its_memory_leaves_and_the_others_keep_their_places() -> None:
    bench = killed()
    come_back(bench, 1)
    come_back(bench, 2, boot="another one")
    come_back(bench, 3)
    assert bench.broker(2).fenced
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
    assert bench.broker(1).fenced
    assert {*bench.partition("t").isr} == {2, 3}


@pytest.mark.parametrize("stops", [False, True])
def test_a_broker_that_is_killed_alone_or_stops_leaves_its_isrs(stops: bool) -> None:
    bench = killed()
    come_back(bench, *BROKERS)
    for broker_id in [] if stops else BROKERS:
        bench.heartbeat(broker_id)
    if stops:
        bench.heartbeat(1, want_shut_down=True)
    bench.register(1, incarnation="c", boot=BOOT)
    assert bench.broker(1).fenced
    assert ({*bench.partition("t").isr}, bench.partition("t").leader_id) == ({2, 3}, 2)


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
    assert bench.expire() is None
    bench.heartbeat(1)
    bench.report(2, 5, whole=False)
    assert {*bench.partition("t").isr} == {1, 3}
    bench.heartbeat(2)
    assert bench.expire() == 3


def test_a_broker_whose_logs_are_not_whole_leaves_its_isrs() -> None:
    bench = killed()
    come_back(bench, *BROKERS)
    assert not open_logs(bench, 1)
    assert bench.heartbeat(1, want_fence=True).is_fenced
    assert ({*bench.partition("t").isr}, bench.partition("t").leader_id) == ({2, 3}, 2)


def test_a_process_that_dies_while_it_registers_leaves_its_epochs_to_the_next() -> None:
    bench = killed(Bench(controller_class=one_at_once()))
    epoch = bench.partition("t").leader_epoch
    decision = bench.controller.decide(
        bench.registration(1, "b", boot=BOOT),
        now_ms=bench.now_ms,
        base_offset=Offset(len(bench.log)),
    )
    bench.carry_out(decision)
    assert decision.goes_on
    bench.register(1, incarnation="c", boot=BOOT)
    assert [bench.partition(name).leader_epoch - epoch for name in "tw"] == [2, 1]
    assert not bench.broker(1).fenced
