"""Reassignment (KIP-455): how partitions move to other replicas; brokers that are unregistered."""

import pytest

from quorumlog.chaos.mutants.controller import CONTROLLERS
from quorumlog.metadata_quorum.cluster_changes import UnregisterBroker
from quorumlog.metadata_quorum.controller.partitions import PartitionDecisions
from quorumlog.metadata_quorum.controller_client import NewTopic
from quorumlog.metadata_quorum.image.records import Partition, decode_record, encode_record
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, PartitionIndex, TopicId
from tests.support.metadata_quorum.controllers import Bench, ids, image_of, topic


@pytest.fixture
def bench() -> Bench:
    """Brokers 1 to 5; t-0 is on 1, 2, 3."""
    bench = Bench().start(1, 2, 3, 4, 5)
    bench.create(topic())
    return bench


def test_a_partition_moves_when_all_new_replicas_are_in_sync(bench: Bench) -> None:
    [result] = bench.reassign(("t", 0, (2, 3, 4)))
    begun = bench.partition()
    assert (result.error_code, result.partition_epoch) == (ErrorCode.NONE, begun.partition_epoch)
    assert begun.replicas == ids(2, 3, 4, 1)
    assert (begun.adding_replicas, begun.removing_replicas) == (ids(4), ids(1))
    assert (begun.leader_id, begun.leader_epoch, begun.isr) == (1, 0, ids(1, 2, 3))

    bench.join_isr(4, answers=ErrorCode.NEW_LEADER_ELECTED)
    done = bench.partition()
    assert (done.replicas, done.isr) == (ids(2, 3, 4), ids(2, 3, 4))
    assert not done.is_reassigned
    assert (done.leader_id, done.leader_epoch) == (2, 1)
    assert image_of(bench.replay()) == image_of(bench.controller.cluster)


def test_a_leader_that_stays_leads_anew_when_a_replica_is_gone(bench: Bench) -> None:
    bench.reassign(("t", 0, (1, 4)))
    bench.join_isr(4)
    done = bench.partition()
    assert (done.replicas, done.isr, done.leader_id) == (ids(1, 4), ids(1, 4), 1)
    assert done.leader_epoch == 1


def test_replicas_that_are_only_added_are_a_reassignment(bench: Bench) -> None:
    bench.reassign(("t", 0, (1, 2, 3, 4)))
    assert bench.partition().adding_replicas == ids(4)
    assert not bench.partition().removing_replicas
    assert bench.partition().is_reassigned
    bench.join_isr(4)
    assert not bench.partition().is_reassigned


def test_it_does_not_end_before_every_replica_that_stays_is_in_sync(bench: Bench) -> None:
    """KAFKA-15665."""
    bench.die(3)
    bench.reassign(("t", 0, (2, 3, 4)))
    bench.join_isr(4)
    assert bench.partition().is_reassigned
    assert bench.partition().isr == ids(2, 4, 1)
    bench.revive(3)
    bench.join_isr(3, answers=ErrorCode.NEW_LEADER_ELECTED)
    assert bench.partition().replicas == ids(2, 3, 4)


def test_fewer_replicas_or_another_order_are_there_at_once(bench: Bench) -> None:
    bench.reassign(("t", 0, (3, 2, 1)))
    assert bench.partition().replicas == ids(3, 2, 1)
    assert (bench.partition().leader_id, bench.partition().leader_epoch) == (1, 0)
    bench.reassign(("t", 0, (3, 2)))
    done = bench.partition()
    assert (done.replicas, done.leader_id, done.leader_epoch) == (ids(3, 2), 3, 1)
    assert {*done.isr} == {2, 3}


def test_the_same_replicas_again_change_nothing(bench: Bench) -> None:
    before = bench.partition()
    with bench.unwritten():
        [result] = bench.reassign(("t", 0, (1, 2, 3)))
    assert (result.error_code, bench.partition()) == (ErrorCode.NONE, before)
    assert result.partition_epoch == before.partition_epoch


def test_a_cancelled_one_leaves_the_replicas_as_they_were(bench: Bench) -> None:
    bench.reassign(("t", 0, (4, 5, 1)))
    bench.join_isr(4)
    assert 4 in bench.partition().isr
    [result] = bench.reassign(("t", 0, None))
    after = bench.partition()
    assert result.error_code is ErrorCode.NONE
    assert {*after.replicas} == {*after.isr} == {1, 2, 3}
    assert not after.is_reassigned
    assert after.leader_epoch == 1  # 4 counts no more
    # A new replica that leads goes, too.
    bench.reassign(("t", 0, (4, 5, 1)))
    bench.join_isr(4)
    bench.die(1)
    assert bench.partition().leader_id == 4
    bench.reassign(("t", 0, None))
    assert bench.partition().leader_id in {2, 3}


def test_what_would_leave_no_replica_in_sync_is_refused(bench: Bench) -> None:
    bench.reassign(("t", 0, (4, 5)))
    bench.join_isr(4)
    for broker_id in (1, 2, 3):
        bench.die(broker_id)
    before = bench.partition()
    assert (before.isr, before.elr) == (ids(4), ())
    for wanted in (None, (1, 5)):
        [refused] = bench.reassign(("t", 0, wanted))
        assert refused.error_code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert "too few would be left" in (refused.error_message or "")
    assert bench.partition() == before


def test_a_cancelled_one_elects_from_the_elr(bench: Bench) -> None:
    bench.create(topic("two", 1, min_insync_replicas="2"))
    bench.reassign(("two", 0, (4, 5)))
    bench.join_isr(4, "two")
    bench.die(1)
    before = bench.partition("two")
    assert (before.isr, before.elr) == (ids(4), ids(1))
    bench.reassign(("two", 0, None))
    after = bench.partition("two")
    assert (after.replicas, after.isr, after.elr, after.leader_id) == (ids(1), (), ids(1), -1)
    bench.revive(1)
    assert bench.partition("two").leader_id == 1


def test_a_changed_one_starts_from_the_first_replicas(bench: Bench) -> None:
    bench.reassign(("t", 0, (2, 3, 4)))
    bench.reassign(("t", 0, (2, 3, 5)))
    changed = bench.partition()
    assert changed.replicas == ids(2, 3, 5, 1)
    assert (changed.adding_replicas, changed.removing_replicas) == (ids(5), ids(1))
    bench.reassign(("t", 0, (1, 2, 3)))
    assert bench.partition().replicas == ids(1, 2, 3)
    assert not bench.partition().is_reassigned


def test_several_are_decided_each_on_its_own(bench: Bench) -> None:
    bench.create(NewTopic(name="u", assignments={0: ids(1), 1: ids(2)}))
    results = bench.reassign(
        ("t", 0, (4, 5)),
        ("u", 0, None),
        ("u", 1, (1, 9)),
        ("u", 2, (1,)),
        ("none", 0, (1,)),
        ("none", 0, (1,)),
    )
    assert [result.error_code.name for result in results] == [
        "NONE",
        "NO_REASSIGNMENT_IN_PROGRESS",
        "INVALID_REPLICA_ASSIGNMENT",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "INVALID_REQUEST",
        "INVALID_REQUEST",
    ]
    for wrong in ((), (1, 1)):
        [refused] = bench.reassign(("u", 0, wrong))
        assert refused.error_code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    too_many = bench.reassign(*[("t", 0, (4,))] * 10_001)
    assert {result.error_code for result in too_many} == {ErrorCode.POLICY_VIOLATION}
    assert bench.partition().adding_replicas == ids(4, 5)


def test_another_number_of_replicas_may_be_forbidden(bench: Bench) -> None:
    [refused] = bench.reassign(("t", 0, (1, 4)), may_change_replication_factor=False)
    assert refused.error_code is ErrorCode.INVALID_REPLICATION_FACTOR
    [moved] = bench.reassign(("t", 0, (1, 2, 4)), may_change_replication_factor=False)
    assert moved.error_code is ErrorCode.NONE
    [again] = bench.reassign(("t", 0, (1, 2, 5)), may_change_replication_factor=False)
    assert again.error_code is ErrorCode.NONE


def test_a_new_controller_goes_on_with_it(bench: Bench) -> None:
    bench.reassign(("t", 0, (4,)))
    bench.controller = bench.take_over()
    assert bench.partition().adding_replicas == ids(4)
    bench.join_isr(4, answers=ErrorCode.NEW_LEADER_ELECTED)
    assert bench.partition().replicas == ids(4)


def test_a_record_without_these_fields_is_read_as_no_reassignment() -> None:
    one = ids(1)
    written = encode_record(
        Partition(
            topic_id=TopicId(b"t" * 16),
            partition_id=PartitionIndex(0),
            replicas=one,
            isr=one,
            leader=one[0],
        )
    )
    found = decode_record(written)
    assert isinstance(found, Partition)
    assert (found.adding_replicas, found.removing_replicas) == ((), ())


def test_the_rules_can_be_replaced_by_broken_ones(bench: Bench) -> None:
    """The simulator plants its bugs so."""
    broken = CONTROLLERS["ends_before_all_are_in_sync"].parts.controller
    bench.controller = broken(
        image_of(bench.replay()), bench.settings, random_bytes=bench.random_bytes, now_ms=1
    )
    bench.reassign(("t", 0, (4, 5)))
    bench.join_isr(4, answers=ErrorCode.NEW_LEADER_ELECTED)
    assert bench.partition().replicas == ids(4, 5)


# --- UnregisterBroker: which brokers the controller forgets, and the partitions after that ---


@pytest.fixture
def three() -> Bench:
    return Bench().start(1, 2, 3)


def unregister(bench: Bench, broker_id: int) -> tuple[str, str]:
    outcomes = bench.ask(UnregisterBroker(broker_id=BrokerId(broker_id)))
    [outcome] = outcomes.results
    written = outcome.error_code is ErrorCode.NONE
    assert outcomes.end_offset == (len(bench.log) if written else -1)
    return outcome.error_code.name, outcome.error_message or ""


def test_a_dead_broker_is_forgotten_and_is_in_no_elr(three: Bench) -> None:
    three.create(topic("t", 3, 1, 2, min_insync_replicas="3"))
    three.die(3)
    assert three.partition().elr == (3,)
    assert unregister(three, 3) == ("NONE", "")
    assert sorted(three.controller.cluster.brokers) == [1, 2]
    partition = three.partition()
    assert (partition.replicas, partition.isr, partition.elr) == ((3, 1, 2), (1, 2), ())
    assert image_of(three.replay()) == image_of(three.controller.cluster)
    assert unregister(three, 3) == (
        "BROKER_ID_NOT_REGISTERED",
        "Broker ID 3 is not currently registered",
    )


def test_a_forgotten_broker_may_register_again_as_a_new_one(three: Bench) -> None:
    three.create(topic("t", 3, 1))
    three.die(3)
    unregister(three, 3)
    assert three.heartbeat(3, broker_epoch=4).error_code is ErrorCode.BROKER_ID_NOT_REGISTERED
    three.start(3)
    assert three.partition().isr == (1,)
    three.join_isr(3)
    assert three.partition().isr == (3, 1)
    assert three.controller.check_invariants() == []


def test_a_broker_in_service_is_not_unregistered(three: Bench) -> None:
    message = "Broker 2 is in service: stop it before it is unregistered"
    assert unregister(three, 2) == ("INVALID_REQUEST", message)
    assert 2 in three.controller.cluster.brokers


def test_a_broker_that_alone_holds_records_is_not_unregistered_before_they_are_given_up(
    three: Bench,
) -> None:
    for number in range(12):
        three.create(topic(f"t{number:02}", 3))
    three.die(3)
    code, message = unregister(three, 3)
    assert code == "INVALID_REQUEST"
    assert "Only broker 3 is known to have all records of t00-0, t01-0" in message
    assert "t09-0 and 2 more: start it again" in message
    assert three.partition("t00").elr == (3,)


def test_an_unclean_election_gives_up_what_a_dead_broker_held(three: Bench) -> None:
    three.create(topic("t", 3, 1))
    three.die(1)
    three.die(3)
    three.start(1)
    assert unregister(three, 3)[0] == "INVALID_REQUEST"
    [result] = three.elect(("t", 0), unclean=True)
    assert result.error_code is ErrorCode.NONE
    assert unregister(three, 3)[0] == "NONE"
    assert three.partition().leader_id == 1


def test_a_broker_that_is_removed_without_a_look_at_its_records_is_found(
    three: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: the controller does not look whether the broker alone holds a partition."""
    monkeypatch.setattr(PartitionDecisions, "held_alone_by", lambda *_: [])
    three.create(topic("t", 3))
    three.die(3)
    assert unregister(three, 3)[0] == "NONE"
    three.start(3)
    assert three.partition().replicas == ids(3)
    assert three.partition().leader_id == -1  # although its records are all there
