"""ElectLeaders: which elections are held, and what is said of the others."""

from typing import cast

import pytest

from quorumlog.metadata_quorum.controller.log_loss import unclean_elections
from quorumlog.metadata_quorum.controller.requests import AlterPartitions, IsrResults
from quorumlog.metadata_quorum.controller_client import IsrProposal, NewTopic
from quorumlog.metadata_quorum.image.features import LEVEL_OF_CLUSTER_MIN_ISR, METADATA_FEATURE
from quorumlog.metadata_quorum.image.model import PartitionImage
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, PartitionIndex
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


def test_an_unclean_election_needs_a_live_replica_and_a_partition_without_a_leader() -> None:
    bench = Bench()
    bench.start(1, 2)
    bench.create(NewTopic(name="t", assignments={0: ids(1)}))
    bench.create(NewTopic(name="led", assignments={0: ids(2)}))
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


def unclean_leader() -> tuple[Bench, PartitionImage]:
    """Broker 2 was elected uncleanly for t-0, and the others live."""
    bench = Bench()
    bench.start(1, 2, 3)
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


def propose(bench: Bench, *members: int, is_recovering: bool) -> ErrorCode:
    partition, cluster = bench.partition(), bench.controller.cluster
    leader, topic_id = cluster.brokers[partition.leader_id], cluster.topic_id("t")
    assert topic_id is not None
    proposal = IsrProposal(
        topic_id=topic_id,
        partition=PartitionIndex(0),
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        new_isr=tuple((one, cluster.brokers[one].broker_epoch) for one in ids(*members)),
        is_recovering=is_recovering,
    )
    request = AlterPartitions(
        broker_id=leader.broker_id, broker_epoch=leader.broker_epoch, proposals=(proposal,)
    )
    [result] = cast("IsrResults", bench.ask(request)).results
    return result.error_code


def test_a_leader_recovers_with_its_first_isr() -> None:
    """KIP-704: it may not recover together with others, nor recover again."""
    bench, before = unclean_leader()
    assert propose(bench, 2, 3, is_recovering=True) is ErrorCode.INVALID_REQUEST
    assert propose(bench, 2, is_recovering=True) is ErrorCode.NONE
    assert bench.partition() == before
    assert propose(bench, 2, is_recovering=False) is ErrorCode.NONE
    assert not bench.partition().is_recovering
    assert bench.partition().leader_epoch == before.leader_epoch
    assert propose(bench, 2, is_recovering=True) is ErrorCode.INVALID_REQUEST


def test_the_controller_allows_unclean_elections_for_topics_that_do_not_say() -> None:
    bench = Bench(settings=ControllerSettings(unclean_leader_election_enable=True))
    bench.start(1, 2)
    bench.create(topic("t", 1, 2))
    bench.create(topic("strict", 1, 2, unclean_leader_election_enable="false"))
    bench.die(2)
    bench.revive(2)
    bench.die(1)
    assert bench.partition().leader_id == 2
    assert bench.partition("strict").leader_id == NO_LEADER


def test_an_operator_is_told_of_each_unclean_election() -> None:
    bench, _ = unclean_leader()
    remarks = unclean_elections(bench.replay(), bench.log)
    assert [*remarks] == [
        "UNCLEAN ELECTION: broker 2 now leads t-0. Acknowledged records that it lacks are lost"
    ]


def test_a_last_known_leader_must_be_alive() -> None:
    """KAFKA-19522. Nobody is known to have all when the other's disk is gone, too."""
    bench = Bench()
    for broker_id in (1, 2):
        bench.register(broker_id, boot="first")
        bench.heartbeat(broker_id)
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
