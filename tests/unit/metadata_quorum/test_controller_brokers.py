"""Decisions of the controller about brokers: registration, fencing, controlled shutdown."""

from itertools import product

import pytest

from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.controller.brokers import (
    TRANSITIONS,
    BrokerState,
    Sessions,
    next_state,
    state_of,
)
from quorumlog.metadata_quorum.controller.requests import AllocateProducerIds
from quorumlog.metadata_quorum.controller_client import BrokerHeartbeat
from quorumlog.metadata_quorum.image import BrokerImage
from quorumlog.metadata_quorum.image.records import BrokerRegistrationChange
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId
from tests.support.metadata_quorum.controllers import Bench, ids, topic

FLAGS = (False, True)


def test_every_heartbeat_in_every_state_makes_a_legal_change() -> None:
    seen = set()
    for fenced, stopping, *flags in product(FLAGS, repeat=8):
        behind, want_fence, may_open, want_shut_down, leads, replayed = flags
        broker = BrokerImage(
            broker_id=BrokerId(1),
            broker_epoch=5,
            incarnation_id="a",
            host="h",
            port=1,
            control_address="h:2",
            fenced=fenced,
            in_controlled_shutdown=stopping,
        )
        heartbeat = BrokerHeartbeat(
            broker_id=BrokerId(1),
            broker_epoch=5,
            metadata_offset=4 if behind else 5,
            want_fence=want_fence,
            want_shut_down=want_shut_down,
        )
        after = next_state(
            broker,
            heartbeat,
            has_leaderships=leads,
            others_have_replayed_shutdown=replayed,
            may_open_logs=may_open,
        )
        if after is not state_of(broker):
            seen.add((state_of(broker), after))
    assert seen == {(state, after) for state in TRANSITIONS for after in TRANSITIONS[state]}


def test_the_broker_epoch_is_the_offset_of_the_registration() -> None:
    bench = Bench()
    bench.start(1)
    assert (
        bench.register(2).broker_epoch
        == len(bench.log) - 1
        == bench.controller.cluster.brokers[ids(2)[0]].broker_epoch
    )


def test_a_broker_is_unfenced_only_once_it_has_replayed_its_registration() -> None:
    bench = Bench()
    epoch = bench.register(1).broker_epoch
    behind = bench.heartbeat(1, metadata_offset=epoch - 1)
    assert (behind.is_fenced, behind.is_caught_up) == (True, False)
    assert not bench.heartbeat(1, metadata_offset=epoch).is_fenced


def test_a_second_process_under_a_live_id_is_refused_until_the_session_ends() -> None:
    bench = Bench()
    bench.start(1)
    other = bench.register(1, incarnation="b", port=19999)
    assert other.error_code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    bench.now_ms += bench.settings.broker_session_timeout_ms
    assert bench.register(1, incarnation="b", port=19999).error_code is ErrorCode.NONE


def test_the_successor_on_the_same_address_need_not_wait() -> None:
    bench = Bench()
    bench.start(1)
    old_epoch = bench.controller.cluster.brokers[BrokerId(1)].broker_epoch
    reply = bench.register(1, incarnation="b")
    assert reply.error_code is ErrorCode.NONE
    assert reply.broker_epoch > old_epoch
    assert bench.heartbeat(1, broker_epoch=99).error_code is ErrorCode.STALE_BROKER_EPOCH
    stale = bench.heartbeat(1, broker_epoch=old_epoch)
    assert stale.error_code is ErrorCode.STALE_BROKER_EPOCH


def test_a_repeated_registration_keeps_its_epoch_and_writes_nothing() -> None:
    bench = Bench()
    first = bench.register(1)
    written = len(bench.log)
    assert bench.register(1) == first
    assert bench.register(1, port=19999) == first  # live, and the same process
    assert len(bench.log) == written


def test_a_new_process_starts_outside_every_isr() -> None:
    bench = Bench()
    bench.start(1, 2, 3)
    bench.create(topic())
    reply = bench.register(1, incarnation="b")
    assert reply.broker_epoch == len(bench.log) - 1  # behind the changes of partitions
    assert bench.controller.cluster.brokers[BrokerId(1)].broker_epoch == reply.broker_epoch
    partition = bench.partition()
    assert (partition.leader_id, partition.isr) == (2, (2, 3))


def test_a_silent_broker_is_fenced_and_one_that_is_heard_is_not() -> None:
    bench = Bench()
    bench.start(1, 2)
    bench.now_ms += 5000
    bench.heartbeat(2)
    assert bench.controller.next_expiry_ms() == 1000 + 9000
    bench.now_ms += 4000
    assert bench.carry_out(bench.controller.decide_expiry(bench.now_ms)) == 1
    assert bench.carry_out(bench.controller.decide_expiry(bench.now_ms)) is None


def test_the_session_that_ends_first_is_looked_at_first() -> None:
    bench = Bench()
    bench.start(1, 2)
    bench.now_ms += 5000
    bench.heartbeat(1)
    bench.now_ms += 4000
    assert bench.carry_out(bench.controller.decide_expiry(bench.now_ms)) == 2


def test_two_sessions_that_end_together_are_decided_one_after_the_other() -> None:
    """KAFKA-13173: the second decision is made on what the first has left."""
    bench = Bench()
    bench.start(1, 2, 3)
    bench.create(topic())
    bench.now_ms += 9000
    bench.heartbeat(3)
    while bench.carry_out(bench.controller.decide_expiry(bench.now_ms)) is not None:
        pass
    partition = bench.partition()
    assert (partition.leader_id, partition.isr) == (3, (3,))


def test_a_new_controller_notices_that_a_broker_stays_silent() -> None:
    """KAFKA-18138: the broker dies while the controller changes."""
    bench = Bench()
    bench.start(1)
    bench.now_ms += 8000
    bench.controller = bench.take_over()
    assert bench.carry_out(bench.controller.decide_expiry(bench.now_ms + 8999)) is None
    assert bench.carry_out(bench.controller.decide_expiry(bench.now_ms + 9000)) == 1


def test_a_heartbeat_counts_when_it_arrives_not_when_its_turn_comes() -> None:
    """KAFKA-15019: an overloaded controller must not fence those that it makes wait."""
    bench = Bench()
    bench.start(1)
    broker = bench.controller.cluster.brokers[BrokerId(1)]
    heartbeat = BrokerHeartbeat(
        broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, metadata_offset=0
    )
    bench.controller.touch(heartbeat, bench.now_ms + 8000)
    assert bench.carry_out(bench.controller.decide_expiry(bench.now_ms + 9000)) is None


def test_a_dead_process_is_fenced_at_once_unless_another_has_registered_since() -> None:
    bench = Bench()
    bench.start(1, 2)
    epoch = bench.controller.cluster.brokers[BrokerId(1)].broker_epoch
    replaced = bench.controller.decide_process_died(
        BrokerId(1), broker_epoch=epoch - 1, now_ms=bench.now_ms
    )
    assert replaced.records == ()
    bench.die(1)
    assert bench.controller.cluster.brokers[BrokerId(1)].fenced
    # Its session is over: a process on another address may take the id.
    assert bench.register(1, incarnation="b", port=19999).error_code is ErrorCode.NONE


def test_what_a_dead_process_had_said_before_counts_no_more() -> None:
    """Its heartbeats may lie in our sockets for as long as we were paused ourselves."""
    bench = Bench()
    bench.start(1, 2)
    bench.die(1)
    assert bench.heartbeat(1).error_code is ErrorCode.STALE_BROKER_EPOCH
    bench.controller.renew_all(bench.now_ms)
    assert bench.controller.cluster.brokers[BrokerId(1)].fenced
    assert not bench.controller.sessions.is_live(BrokerId(1), bench.now_ms)
    # It lived after all: it registers again, under the same incarnation, and is let in.
    assert bench.register(1).error_code is ErrorCode.NONE
    bench.heartbeat(1)
    assert not bench.controller.cluster.brokers[BrokerId(1)].fenced


def test_controlled_shutdown_moves_leaders_away_then_waits_for_the_others_to_know() -> None:
    bench = Bench()
    bench.start(1, 2)
    bench.create(topic("t", 1, 2))
    bench.heartbeat(2)
    first = bench.heartbeat(1, want_shut_down=True)
    assert (first.should_shut_down, bench.partition().leader_id) == (False, 2)
    assert not bench.heartbeat(1, want_shut_down=True).should_shut_down
    bench.heartbeat(2)
    assert bench.heartbeat(1, want_shut_down=True).should_shut_down
    assert bench.controller.cluster.brokers[BrokerId(1)].fenced


def test_a_broker_that_stops_is_given_nothing_more() -> None:
    bench = Bench()
    bench.start(1, 2)
    bench.create(topic("t", 1, 2))
    bench.heartbeat(1, want_shut_down=True)
    bench.create(topic("u", 1, 2))
    assert (bench.partition("u").leader_id, bench.partition("u").isr) == (2, (2,))
    bench.die(2)
    assert (bench.partition().leader_id, bench.partition().elr) == (NO_LEADER, (2,))


def test_a_broker_that_still_leads_something_may_not_stop() -> None:
    broker = BrokerImage(
        broker_id=BrokerId(1),
        broker_epoch=5,
        incarnation_id="a",
        host="h",
        port=1,
        control_address="h:2",
        fenced=False,
        in_controlled_shutdown=True,
    )
    heartbeat = BrokerHeartbeat(broker_id=BrokerId(1), broker_epoch=5, metadata_offset=5)
    for leads in FLAGS:
        after = next_state(
            broker,
            heartbeat,
            has_leaderships=leads,
            others_have_replayed_shutdown=True,
            may_open_logs=False,
        )
        assert (after is BrokerState.SHUTDOWN_NOW) is not leads


def test_a_heartbeat_that_was_overtaken_takes_nothing_back() -> None:
    sessions = Sessions(session_timeout_ms=9000)
    for offset in (7, 5):
        sessions.touch(BrokerId(1), 0, offset)
    assert sessions.least_offset(frozenset({BrokerId(1)})) == 7


def test_who_leads_nothing_may_stop_at_once() -> None:
    bench = Bench()
    bench.start(1)
    assert bench.heartbeat(1, want_shut_down=True).should_shut_down


def test_the_last_of_the_isr_waits_in_the_elr_until_it_is_back() -> None:
    bench = Bench()
    bench.start(1, 2)
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
    bench = Bench()
    bench.start(1)
    epoch = bench.controller.cluster.brokers[BrokerId(1)].broker_epoch
    replies = [
        bench.ask(AllocateProducerIds(broker_id=BrokerId(b), broker_epoch=e))
        for b, e in [(1, epoch), (1, epoch), (1, epoch - 1), (2, 0)]
    ]
    assert [(r.error_code.name, r.block.first) for r in replies] == [  # type: ignore[attr-defined]
        ("NONE", 0),
        ("NONE", 1000),
        ("STALE_BROKER_EPOCH", -1),
        ("BROKER_ID_NOT_REGISTERED", -1),
    ]


def test_a_record_that_does_not_fit_is_our_bug() -> None:
    bench = Bench()
    bench.start(1)
    with pytest.raises(InvariantViolation, match="one of that in force"):
        bench.controller.apply(
            bench.controller.cluster.end_offset,
            BrokerRegistrationChange(broker_id=BrokerId(1), broker_epoch=99),
        )


def test_a_dead_process_leaves_after_a_broker_that_is_silent() -> None:
    """A silent machine may have lost its memory: it must not be the last of an ISR."""
    bench = Bench()
    bench.start(1, 2, 3)
    bench.create(topic("t", 1, 2, 3))
    bench.now_ms += 4000
    bench.heartbeat(1)
    bench.heartbeat(2)
    bench.die(1)
    assert not bench.controller.cluster.brokers[BrokerId(1)].fenced
    expiry_ms = bench.controller.next_expiry_ms()
    assert expiry_ms is not None
    assert bench.carry_out(bench.controller.decide_expiry(expiry_ms - 1)) is None
    assert bench.carry_out(bench.controller.decide_expiry(expiry_ms)) == 3
    assert bench.carry_out(bench.controller.decide_expiry(expiry_ms + 1)) == 1
    assert bench.partition("t").isr == (2,)


def test_a_dead_process_leaves_once_the_silent_broker_is_heard() -> None:
    bench = Bench()
    bench.start(1, 2)
    bench.now_ms += 4000
    bench.die(1)
    assert not bench.controller.cluster.brokers[BrokerId(1)].fenced
    bench.now_ms += 1000
    bench.heartbeat(2)
    expiry_ms = bench.controller.next_expiry_ms()
    assert expiry_ms is not None
    assert bench.now_ms - 1000 < expiry_ms <= bench.now_ms  # a late look would renew all sessions
    assert bench.carry_out(bench.controller.decide_expiry(bench.now_ms)) == 1


def test_a_new_process_waits_until_a_silent_broker_is_heard() -> None:
    """It leaves the ISRs as it registers, just as a dead one that is fenced."""
    bench = Bench()
    bench.start(1, 2)
    bench.now_ms += 4000
    refused = bench.register(1, incarnation="b")
    assert refused.error_code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert "another broker is unheard" in str(refused.error_message)
    bench.heartbeat(2)
    assert bench.register(1, incarnation="b").error_code is ErrorCode.NONE


def test_a_new_controller_has_heard_nobody() -> None:
    bench = Bench()
    bench.start(1, 2)
    bench.controller = bench.take_over()
    bench.die(1)
    assert not bench.controller.cluster.brokers[BrokerId(1)].fenced
    bench.heartbeat(2)
    assert bench.carry_out(bench.controller.decide_expiry(bench.now_ms)) == 1


def test_new_processes_that_wait_for_each_other_register_when_all_have_asked() -> None:
    """All were killed, some of them lack a log directory: each attempt is a sign.

    What may lack records is let in first.
    """
    bench = Bench()
    for broker_id in (1, 2, 3):
        bench.register(broker_id)
        bench.heartbeat(broker_id)
    bench.create(topic("t", 1, 2, 3))
    bench.controller = bench.take_over()
    assert (
        bench.register(1, incarnation="b", has_offline_dirs=True).error_code is not ErrorCode.NONE
    )
    assert bench.register(2, incarnation="b", boot="after").error_code is ErrorCode.NONE
    assert (
        bench.register(1, incarnation="b", has_offline_dirs=True).error_code is not ErrorCode.NONE
    )
    assert bench.register(3, incarnation="b", has_offline_dirs=True).error_code is ErrorCode.NONE
    assert bench.register(1, incarnation="b", has_offline_dirs=True).error_code is ErrorCode.NONE
    partition = bench.partition("t")
    assert {*partition.isr, *partition.elr} == {1}
