"""Decisions of the controller about partitions: proposals of an ISR, elections and leaders."""

from dataclasses import replace
from typing import Any

import pytest

from quorumlog.metadata_quorum.controller import leader_balance
from quorumlog.metadata_quorum.controller.log_loss import unclean_elections
from quorumlog.metadata_quorum.controller_client import IsrResult, NewTopic
from quorumlog.metadata_quorum.image.features import LEVEL_OF_CLUSTER_MIN_ISR, METADATA_FEATURE
from quorumlog.metadata_quorum.image.model import PartitionImage
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId, PartitionIndex, TopicId
from tests.support.metadata_quorum.controllers import SETTINGS, Bench, ids, topic


@pytest.fixture
def bench() -> Bench:
    bench = Bench().start(1, 2, 3, 4)
    bench.create(topic("t", 1, 2, 3))
    return bench


def propose(bench: Bench, *members: int, by: int = 1, **changes: Any) -> IsrResult:
    """Propose an ISR of t-0, and return the result."""
    [result] = bench.propose(bench.proposal(*members, **changes), by=by).results
    return result


def test_an_isr_is_granted_with_its_new_partition_epoch(bench: Bench) -> None:
    before = bench.partition()
    result = propose(bench, 1, 2)
    after = bench.partition()
    assert (result.error_code, result.isr, after.isr) == (ErrorCode.NONE, (1, 2), (1, 2))
    assert result.partition_epoch == after.partition_epoch == before.partition_epoch + 1
    assert result.leader_epoch == after.leader_epoch == before.leader_epoch
    with bench.unwritten():  # it is in force
        again = propose(bench, 1, 2)
    assert (again.error_code, again.partition_epoch) == (ErrorCode.NONE, after.partition_epoch)


@pytest.mark.parametrize(
    ("members", "changes", "by", "error_code"),
    [
        ((1, 2), {"topic_id": TopicId(bytes(16))}, 1, "UNKNOWN_TOPIC_ID"),
        ((1, 2), {"partition": PartitionIndex(1)}, 1, "UNKNOWN_TOPIC_ID"),
        ((1, 2), {"leader_epoch": 3}, 1, "NOT_CONTROLLER"),
        ((1, 2), {"leader_epoch": 3}, 2, "NOT_CONTROLLER"),
        ((1, 2), {"partition_epoch": 99}, 1, "NOT_CONTROLLER"),
        ((1, 2), {"leader_epoch": 0, "partition_epoch": 0}, 2, "FENCED_LEADER_EPOCH"),
        ((1, 2), {"partition_epoch": 0}, 2, "INVALID_REQUEST"),
        ((1, 4), {"partition_epoch": 0}, 1, "INVALID_UPDATE_VERSION"),
        ((1, 4), {}, 1, "INVALID_REQUEST"),
        ((2, 3), {}, 1, "INVALID_REQUEST"),
        ((1, 2, 2), {}, 1, "INVALID_REQUEST"),
        ((), {}, 1, "INVALID_REQUEST"),
        ((1, 3), {}, 1, "INELIGIBLE_REPLICA"),
        ((1, 2), {"new_isr": ((BrokerId(1), -1), (BrokerId(2), 0))}, 1, "INELIGIBLE_REPLICA"),
    ],
)
def test_a_proposal_is_refused_with_kafkas_code_in_kafkas_order(
    bench: Bench, members: tuple[int, ...], changes: dict[str, Any], by: int, error_code: str
) -> None:
    bench.die(3)
    bench.die(1)
    bench.revive(1)
    propose(bench, 2, 1, by=2)
    bench.die(2)
    bench.revive(2)
    partition = bench.partition()
    assert (partition.leader_id, partition.leader_epoch) == (1, 2)
    if changes.get("partition_epoch") == 99:
        changes = {"partition_epoch": partition.partition_epoch + 1}
    assert propose(bench, *members, by=by, **changes).error_code is ErrorCode[error_code]


def test_an_earlier_process_of_the_leader_may_not_propose(bench: Bench) -> None:
    response = bench.propose(bench.proposal(1), epoch_drift=-1)
    assert (response.error_code, response.results) == (ErrorCode.STALE_BROKER_EPOCH, ())


def test_a_partition_named_twice_is_changed_once(bench: Bench) -> None:
    first, second = bench.propose(bench.proposal(1, 2), bench.proposal(1)).results
    assert (first.error_code, second.error_code) == (ErrorCode.NONE, ErrorCode.INVALID_REQUEST)
    assert bench.partition().isr == (1, 2)


def test_a_rebooted_follower_does_not_come_in_on_an_old_fetch(bench: Bench) -> None:
    """KAFKA-14617: the leader saw it in sync before it was killed."""
    old_sight = bench.proposal(1, 2, 3).new_isr
    bench.die(3)
    bench.let_in(3, "b")
    assert propose(bench, 1, 2, new_isr=old_sight).error_code is ErrorCode.INELIGIBLE_REPLICA


def test_a_late_copy_of_a_refused_proposal_is_not_granted(bench: Bench) -> None:
    """The leader has given up on the member by then, and commits without it."""
    propose(bench, 1, 2)
    joining = bench.proposal(1, 2, 3)
    bench.die(3)
    assert bench.propose(joining).results[0].error_code is ErrorCode.INELIGIBLE_REPLICA
    bench.revive(3)  # the same process is let in again
    assert not bench.broker(3).fenced
    assert bench.propose(joining).results[0].error_code is ErrorCode.INVALID_UPDATE_VERSION
    assert bench.partition().isr == (1, 2)
    assert propose(bench, 1, 2, 3).error_code is ErrorCode.NONE


def test_the_first_replica_in_order_that_is_in_sync_leads_next(bench: Bench) -> None:
    propose(bench, 1, 3, 2)
    bench.die(1)
    assert (bench.partition().leader_id, bench.partition().isr) == (2, (3, 2))
    propose(bench, 2, 3, by=2)
    bench.die(2)
    assert (bench.partition().leader_id, bench.partition().isr) == (3, (3,))


def test_who_is_about_to_stop_does_not_come_in(bench: Bench) -> None:
    bench.create(topic("led-by-2", 2))
    propose(bench, 1, 3)
    joining = bench.proposal(1, 2, 3)
    bench.heartbeat(2, want_shut_down=True)
    assert bench.broker(2).in_controlled_shutdown
    assert bench.propose(joining).results[0].error_code is ErrorCode.INELIGIBLE_REPLICA


def test_a_member_that_nobody_can_tell_from_its_former_process_does_not_come_in(
    bench: Bench,
) -> None:
    """KIP-903: -1 comes from followers that do not say which process they are; ours all do."""
    propose(bench, 1, 2)
    unknown = (*bench.proposal(1, 2).new_isr, (BrokerId(3), -1))
    assert propose(bench, 1, 2, new_isr=unknown).error_code is ErrorCode.INELIGIBLE_REPLICA


def test_below_min_isr_those_that_leave_stay_eligible() -> None:
    """KIP-966: nothing is committed without them, so they hold all that is."""
    bench = Bench().start(1, 2, 3)
    bench.create(topic("t", 1, 2, 3, min_insync_replicas="2"))
    bench.die(1)
    assert (bench.partition().isr, bench.partition().elr) == ((2, 3), ())
    bench.die(2)
    assert (bench.partition().isr, bench.partition().elr) == ((3,), (2,))
    bench.die(3)
    assert (bench.partition().isr, bench.partition().elr) == ((), (2, 3))
    bench.revive(1)
    assert bench.partition().leader_id == -1
    bench.revive(2)
    assert (bench.partition().leader_id, bench.partition().isr) == (2, (2,))
    assert bench.partition().elr == (3,)


def test_what_is_committed_is_for_the_leader_to_say() -> None:
    """Below the level of a number of the cluster, the ELR goes by the node that leads."""
    bench = Bench(features={METADATA_FEATURE: (1, LEVEL_OF_CLUSTER_MIN_ISR - 1)})
    for broker_id, least in ((1, 1), (2, 2), (3, 2)):
        bench.let_in(broker_id, min_insync_replicas=least)
    bench.create(topic("t", 1, 2, 3))
    bench.die(3)
    bench.die(2)
    assert (bench.partition().isr, bench.partition().elr) == ((1,), ())  # 1 commits alone
    bench.die(1)
    assert bench.partition().elr == (1,)
    bench.revive(2)
    assert bench.partition().leader_id == -1
    bench.let_in(1, "configured anew", min_insync_replicas=2)
    propose(bench, 1, 2)
    bench.die(2)
    assert (bench.partition().isr, bench.partition().elr) == ((1,), (2,))  # and now it does not


# --- ElectLeaders: which elections are held, and the outcome of the others ---


@pytest.fixture
def away() -> Bench:
    """Broker 1 was away: it is back in the ISR of t-0, and leads nothing."""
    bench = Bench().start(1, 2, 3)
    bench.create(topic())
    bench.die(1)
    bench.revive(1)
    bench.join_isr(1)
    assert (bench.partition().leader_id, bench.partition().isr) == (2, (1, 2, 3))
    return bench


def test_the_preferred_leader_takes_over_in_a_new_leader_epoch(away: Bench) -> None:
    before = away.partition()
    [result] = away.elect(("t", 0))
    after = away.partition()
    assert result.error_code is ErrorCode.NONE
    assert (after.leader_id, after.isr) == (1, before.isr)
    assert after.leader_epoch == before.leader_epoch + 1 == result.leader_epoch


def test_what_need_not_or_cannot_be_is_said_of_each_partition(away: Bench) -> None:
    away.create(topic("led", 3, 2))
    away.create(topic("behind", 1, 2))
    away.die(1)
    away.revive(1)
    results = away.elect(("t", 0), ("led", 0), ("behind", 0), ("t", 1), ("t", -1), ("none", 0))
    assert [result.error_code.name for result in results] == [
        "PREFERRED_LEADER_NOT_AVAILABLE",
        "ELECTION_NOT_NEEDED",
        "PREFERRED_LEADER_NOT_AVAILABLE",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "UNKNOWN_TOPIC_OR_PARTITION",
    ]


def test_a_partition_that_is_named_twice_has_one_election(away: Bench) -> None:
    before = away.partition()
    results = away.elect(("t", 0), ("t", 0))
    assert [result.error_code for result in results] == [ErrorCode.NONE] * 2
    assert away.partition().leader_epoch == before.leader_epoch + 1


def test_too_many_partitions_are_refused_whole(away: Bench) -> None:
    results = away.elect(*[("t", 0)] * 10_001)
    assert {result.error_code for result in results} == {ErrorCode.POLICY_VIOLATION}
    assert away.partition().leader_id == 2


def test_an_unclean_election_needs_a_live_replica_and_a_partition_without_a_leader() -> None:
    bench = Bench().start(1, 2)
    bench.create(topic("t", 1))
    bench.create(topic("led", 2))
    bench.die(1)
    gone, led = bench.elect(("t", 0), ("led", 0), unclean=True)
    assert gone.error_code is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert gone.error_message == "no replica of t-0 is alive: start one of [1]"
    assert led.error_code is ErrorCode.ELECTION_NOT_NEEDED
    [preferred] = bench.elect(("t", 0))
    assert preferred.error_code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


def test_an_elected_leader_keeps_the_elr_by_its_own_number() -> None:
    """Below its level, min.insync.replicas is that of the broker which leads."""
    bench = Bench(features={METADATA_FEATURE: (1, LEVEL_OF_CLUSTER_MIN_ISR - 1)})
    for broker_id, least in ((1, 1), (2, 2), (3, 1)):
        bench.let_in(broker_id, min_insync_replicas=least)
    bench.create(topic())
    for broker_id in (1, 3):
        bench.die(broker_id)
    assert (bench.partition().leader_id, bench.partition().elr) == (2, (3,))
    bench.let_in(1, "b", min_insync_replicas=1)
    bench.join_isr(1)
    assert bench.partition().elr == ()
    bench.elect(("t", 0))
    assert (bench.partition().leader_id, bench.partition().elr) == (1, ())


def unclean_leader() -> tuple[Bench, PartitionImage]:
    """Broker 2 was elected uncleanly for t-0, and the others live."""
    bench = Bench().start(1, 2, 3)
    bench.create(topic("t", 1, 2, 3, unclean_leader_election_enable="true"))
    for broker_id in (2, 3):
        bench.die(broker_id)
        bench.revive(broker_id)
    bench.die(1)
    bench.revive(1)
    partition = bench.partition()
    assert (partition.leader_id, partition.isr, partition.elr) == (2, (2,), ())
    assert partition.is_recovering
    return bench, partition


def test_a_leader_recovers_with_its_first_isr() -> None:
    """KIP-704: it may not recover together with others, nor recover again."""
    bench, before = unclean_leader()
    together = propose(bench, 2, 3, by=2, is_recovering=True)
    assert together.error_code is ErrorCode.INVALID_REQUEST
    assert propose(bench, 2, by=2, is_recovering=True).error_code is ErrorCode.NONE
    assert bench.partition() == before
    assert propose(bench, 2, by=2).error_code is ErrorCode.NONE
    assert not bench.partition().is_recovering
    assert bench.partition().leader_epoch == before.leader_epoch
    again = propose(bench, 2, by=2, is_recovering=True)
    assert again.error_code is ErrorCode.INVALID_REQUEST


def test_the_controller_allows_unclean_elections_for_topics_that_do_not_say() -> None:
    bench = Bench(settings=ControllerSettings(unclean_leader_election_enable=True)).start(1, 2)
    bench.create(topic("t", 1, 2))
    bench.create(topic("strict", 1, 2, unclean_leader_election_enable="false"))
    bench.die(2)
    bench.revive(2)
    bench.die(1)
    assert bench.partition().leader_id == 2
    assert bench.partition("strict").leader_id == NO_LEADER


def test_an_operator_is_told_of_each_unclean_election() -> None:
    bench, _ = unclean_leader()
    assert [*unclean_elections(bench.replay(), bench.log)] == [
        "UNCLEAN ELECTION: broker 2 now leads t-0. Acknowledged records that it lacks are lost"
    ]


def test_a_last_known_leader_must_be_alive() -> None:
    """KAFKA-19522. Nobody is known to have all when the other's disk is gone, too."""
    bench = Bench()
    for broker_id in (1, 2):
        bench.let_in(broker_id, boot="first")
    bench.create(topic("t", 1, 2, min_insync_replicas="2"))
    bench.die(2)
    bench.die(1)
    bench.register(1, "b", boot="later")
    bench.register(2, "b", directory="new", boot="first")
    partition = bench.partition()
    assert (partition.leader_id, partition.last_known_leader) == (NO_LEADER, 1)
    assert (partition.isr, partition.elr) == ((), ())
    bench.heartbeat(2)
    assert bench.partition().leader_id == NO_LEADER
    bench.heartbeat(1)
    assert bench.partition().leader_id == NO_LEADER  # its log may be gone
    bench.report(1, 7)
    assert (bench.partition().leader_id, bench.partition().is_recovering) == (1, True)


# --- automatic balance: leaderships go back to preferred replicas, in slices ---


INTERVAL_MS = SETTINGS.leader_imbalance_check_interval_seconds * 1000


def back_again(**settings: Any) -> Bench:
    """Broker 1 was away, and is back in the ISR of t-0 alone; it is preferred for t-0 and u-0."""
    bench = Bench(settings=replace(SETTINGS, **settings)).start(1, 2)
    for name in ("t", "u"):
        bench.create(NewTopic(name=name, assignments={0: ids(1, 2), 1: ids(2, 1)}))
    bench.die(1)
    bench.revive(1)
    bench.join_isr(1)
    assert bench.partition().leader_id == bench.partition("u").leader_id == 2
    return bench


def balance(bench: Bench, slices: int) -> None:
    due_ms = bench.controller.next_balance_ms()
    assert due_ms is not None
    bench.now_ms = max(bench.now_ms, due_ms)
    for _ in range(slices):
        bench.carry_out(bench.controller.decide_balance(bench.now_ms))


def test_a_preferred_replica_in_sync_leads_again_and_no_other() -> None:
    bench = back_again()
    assert bench.controller.next_balance_ms() == 1000 + INTERVAL_MS
    balance(bench, 2)
    assert bench.partition().leader_id == 1
    assert bench.partition("u").leader_id == 2
    assert bench.controller.next_balance_ms() == bench.now_ms + INTERVAL_MS


def test_a_small_imbalance_stays() -> None:
    bench = back_again(leader_imbalance_per_broker_percentage=100)
    balance(bench, 1)
    assert bench.partition().leader_id == 2
    assert bench.controller.next_balance_ms() == bench.now_ms + INTERVAL_MS


def test_a_look_goes_on_slice_by_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_balance, "LOOKED_AT_AT_ONCE", 1)
    bench = back_again()
    balance(bench, 4)
    assert bench.partition().leader_id == 2
    assert bench.controller.next_balance_ms() <= bench.now_ms  # type: ignore[operator]  # it is on
    balance(bench, 2)
    assert bench.partition().leader_id == 1


def test_it_can_be_switched_off() -> None:
    assert back_again(auto_leader_rebalance_enable=False).controller.next_balance_ms() is None
