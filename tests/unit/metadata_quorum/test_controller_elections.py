"""ElectLeaders: which elections are held, and what is said of the others."""

import pytest

from quorumlog.metadata_quorum.controller_client import NewTopic
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.metadata_quorum.controllers import Bench, ids, topic


@pytest.fixture
def bench() -> Bench:
    """Broker 1 was away: it is back in the ISR of t-0, and leads nothing."""
    bench = Bench()
    bench.start(1, 2, 3)
    bench.create(topic())
    bench.die(1)
    bench.revive(1)
    bench.join_isr(1)
    assert (bench.partition().leader_id, bench.partition().isr) == (2, (1, 2, 3))
    return bench


def test_the_preferred_leader_takes_over_in_a_new_leader_epoch(bench: Bench) -> None:
    before = bench.partition()
    [result] = bench.elect(("t", 0))
    after = bench.partition()
    assert result.error_code is ErrorCode.NONE
    assert (after.leader_id, after.isr) == (1, before.isr)
    assert after.leader_epoch == before.leader_epoch + 1 == result.leader_epoch


def test_what_need_not_or_cannot_be_is_said_of_each_partition(bench: Bench) -> None:
    bench.create(topic("led", 3, 2))
    bench.create(topic("behind", 1, 2))
    bench.die(1)
    bench.revive(1)
    results = bench.elect(("t", 0), ("led", 0), ("behind", 0), ("t", 1), ("t", -1), ("none", 0))
    assert [result.error_code.name for result in results] == [
        "PREFERRED_LEADER_NOT_AVAILABLE",
        "ELECTION_NOT_NEEDED",
        "PREFERRED_LEADER_NOT_AVAILABLE",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "UNKNOWN_TOPIC_OR_PARTITION",
    ]


def test_a_partition_that_is_named_twice_has_one_election(bench: Bench) -> None:
    before = bench.partition()
    results = bench.elect(("t", 0), ("t", 0))
    assert [result.error_code for result in results] == [ErrorCode.NONE] * 2
    assert bench.partition().leader_epoch == before.leader_epoch + 1


def test_too_many_partitions_are_refused_whole(bench: Bench) -> None:
    results = bench.elect(*[("t", 0)] * 10_001)
    assert {result.error_code for result in results} == {ErrorCode.POLICY_VIOLATION}
    assert bench.partition().leader_id == 2


def test_an_unclean_election_is_refused_and_says_so() -> None:
    bench = Bench()
    bench.start(1, 2)
    bench.create(NewTopic(name="t", assignments={0: ids(1)}))
    bench.create(NewTopic(name="led", assignments={0: ids(2)}))
    bench.die(1)
    gone, led = bench.elect(("t", 0), ("led", 0), unclean=True)
    assert gone.error_code is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert "no leader that may lack committed records" in (gone.error_message or "")
    assert led.error_code is ErrorCode.ELECTION_NOT_NEEDED
    [preferred] = bench.elect(("t", 0))
    assert preferred.error_code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


def test_an_elected_leader_keeps_the_elr_by_its_own_number() -> None:
    """Decision 19: min.insync.replicas is that of the broker which leads."""
    bench = Bench()
    for broker_id, least in ((1, 1), (2, 2)):
        bench.register(broker_id, min_insync_replicas=least)
        bench.heartbeat(broker_id)
    bench.start(3)
    bench.create(topic())
    for broker_id in (1, 3):
        bench.die(broker_id)
    assert (bench.partition().leader_id, bench.partition().elr) == (2, (3,))
    bench.register(1, "b", min_insync_replicas=1)
    bench.heartbeat(1)
    bench.join_isr(1)
    assert bench.partition().elr == ()
    bench.elect(("t", 0))
    assert (bench.partition().leader_id, bench.partition().elr) == (1, ())
