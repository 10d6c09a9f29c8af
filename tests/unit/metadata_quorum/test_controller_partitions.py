"""Decisions of the controller about partitions: proposals of an ISR, and leaders."""

from dataclasses import replace
from typing import Any

import pytest

from quorumlog.metadata_quorum.controller.requests import AlterPartitions, IsrResults
from quorumlog.metadata_quorum.controller_client import IsrProposal
from quorumlog.metadata_quorum.image.features import LEVEL_OF_CLUSTER_MIN_ISR, METADATA_FEATURE
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, PartitionIndex, TopicId
from tests.support.metadata_quorum.controllers import Bench, ids, topic


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.start(1, 2, 3, 4)
    bench.create(topic("t", 1, 2, 3))
    return bench


def proposal(bench: Bench, *members: int, **changes: Any) -> IsrProposal:
    partition, cluster = bench.partition(), bench.controller.cluster
    topic_id = cluster.topic_id("t")
    assert topic_id is not None
    made = IsrProposal(
        topic_id=topic_id,
        partition=PartitionIndex(0),
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        new_isr=tuple((b, cluster.brokers[b].broker_epoch) for b in ids(*members)),
    )
    return replace(made, **changes)


def alter(bench: Bench, *proposals: IsrProposal, broker_id: int = 1, drift: int = 0) -> IsrResults:
    epoch = bench.controller.cluster.brokers[BrokerId(broker_id)].broker_epoch + drift
    response = bench.ask(
        AlterPartitions(broker_id=BrokerId(broker_id), broker_epoch=epoch, proposals=proposals)
    )
    assert isinstance(response, IsrResults)
    return response


def test_an_isr_is_granted_with_its_new_partition_epoch(bench: Bench) -> None:
    before = bench.partition()
    (result,) = alter(bench, proposal(bench, 1, 2)).results
    after = bench.partition()
    assert (result.error_code, result.isr, after.isr) == (ErrorCode.NONE, (1, 2), (1, 2))
    assert result.partition_epoch == after.partition_epoch == before.partition_epoch + 1
    assert result.leader_epoch == after.leader_epoch == before.leader_epoch


def test_the_isr_that_is_in_force_is_granted_without_a_record(bench: Bench) -> None:
    written = len(bench.log)
    (result,) = alter(bench, proposal(bench, 1, 2, 3)).results
    assert (result.error_code, len(bench.log)) == (ErrorCode.NONE, written)
    assert result.partition_epoch == bench.partition().partition_epoch


@pytest.mark.parametrize(
    ("members", "changes", "broker_id", "error_code"),
    [
        ((1, 2), {"topic_id": TopicId(bytes(16))}, 1, "UNKNOWN_TOPIC_ID"),
        ((1, 2), {"partition": PartitionIndex(1)}, 1, "UNKNOWN_TOPIC_ID"),
        ((1, 2), {"leader_epoch": Epoch(2)}, 1, "NOT_CONTROLLER"),
        ((1, 2), {"leader_epoch": Epoch(2)}, 2, "NOT_CONTROLLER"),
        ((1, 2), {"partition_epoch": Epoch(5)}, 1, "NOT_CONTROLLER"),
        ((1, 2), {"leader_epoch": Epoch(0), "partition_epoch": Epoch(0)}, 2, "FENCED_LEADER_EPOCH"),
        ((1, 2), {"partition_epoch": Epoch(0)}, 2, "INVALID_REQUEST"),
        ((1, 4), {"partition_epoch": Epoch(0)}, 1, "INVALID_UPDATE_VERSION"),
        ((1, 4), {}, 1, "INVALID_REQUEST"),
        ((2, 3), {}, 1, "INVALID_REQUEST"),
        ((1, 2, 2), {}, 1, "INVALID_REQUEST"),
        ((), {}, 1, "INVALID_REQUEST"),
        ((1, 3), {}, 1, "INELIGIBLE_REPLICA"),
        ((1, 2), {"new_isr": ((BrokerId(1), -1), (BrokerId(2), 0))}, 1, "INELIGIBLE_REPLICA"),
    ],
)
def test_a_proposal_is_refused_with_kafkas_code_in_kafkas_order(
    bench: Bench, members: tuple[int, ...], changes: dict[str, Any], broker_id: int, error_code: str
) -> None:
    bench.die(3)
    bench.die(1)
    bench.revive(1)
    alter(bench, proposal(bench, 2, 1), broker_id=2)
    bench.die(2)
    bench.revive(2)
    assert (bench.partition().leader_id, bench.partition().leader_epoch) == (1, 2)
    changes = {"leader_epoch": Epoch(2), **changes}
    if error_code == "NOT_CONTROLLER" and "partition_epoch" not in changes:
        changes["leader_epoch"] = Epoch(3)
    if changes.get("partition_epoch") == 5:
        changes["partition_epoch"] = Epoch(bench.partition().partition_epoch + 1)
    (result,) = alter(bench, proposal(bench, *members, **changes), broker_id=broker_id).results
    assert result.error_code is ErrorCode[error_code]


def test_an_earlier_process_of_the_leader_may_not_propose(bench: Bench) -> None:
    response = alter(bench, proposal(bench, 1), drift=-1)
    assert (response.error_code, response.results) == (ErrorCode.STALE_BROKER_EPOCH, ())


def test_a_partition_named_twice_is_changed_once(bench: Bench) -> None:
    first, second = alter(bench, proposal(bench, 1, 2), proposal(bench, 1)).results
    assert (first.error_code, second.error_code) == (ErrorCode.NONE, ErrorCode.INVALID_REQUEST)
    assert bench.partition().isr == (1, 2)


def test_a_rebooted_follower_does_not_come_in_on_an_old_fetch(bench: Bench) -> None:
    """KAFKA-14617: the leader saw it in sync before it was killed."""
    old_sight = proposal(bench, 1, 2, 3).new_isr
    bench.die(3)
    bench.register(3, incarnation="b")
    bench.heartbeat(3)
    (result,) = alter(bench, proposal(bench, 1, 2, new_isr=old_sight)).results
    assert result.error_code is ErrorCode.INELIGIBLE_REPLICA


def test_a_late_copy_of_a_refused_proposal_is_not_granted(bench: Bench) -> None:
    """The leader has given up on the member by then, and commits without it."""
    alter(bench, proposal(bench, 1, 2))
    joining = proposal(bench, 1, 2, 3)
    bench.die(3)
    (refused,) = alter(bench, joining).results
    assert refused.error_code is ErrorCode.INELIGIBLE_REPLICA
    bench.revive(3)  # the same process is let in again
    assert not bench.controller.cluster.brokers[BrokerId(3)].fenced
    (late,) = alter(bench, joining).results
    assert late.error_code is ErrorCode.INVALID_UPDATE_VERSION
    assert bench.partition().isr == (1, 2)
    (again,) = alter(bench, proposal(bench, 1, 2, 3)).results
    assert again.error_code is ErrorCode.NONE


def test_the_first_replica_in_order_that_is_in_sync_leads_next(bench: Bench) -> None:
    alter(bench, proposal(bench, 1, 3, 2))
    bench.die(1)
    assert (bench.partition().leader_id, bench.partition().isr) == (2, (3, 2))
    alter(bench, proposal(bench, 2, 3), broker_id=2)
    bench.die(2)
    assert (bench.partition().leader_id, bench.partition().isr) == (3, (3,))


def test_who_is_about_to_stop_does_not_come_in(bench: Bench) -> None:
    bench.create(topic("led-by-2", 2))
    alter(bench, proposal(bench, 1, 3))
    joining = proposal(bench, 1, 2, 3)
    bench.heartbeat(2, want_shut_down=True)
    assert bench.controller.cluster.brokers[BrokerId(2)].in_controlled_shutdown
    (result,) = alter(bench, joining).results
    assert result.error_code is ErrorCode.INELIGIBLE_REPLICA


def test_a_member_that_nobody_can_tell_from_its_former_process_does_not_come_in(
    bench: Bench,
) -> None:
    """KIP-903: -1 comes from followers that do not say which process they are; ours all do."""
    alter(bench, proposal(bench, 1, 2))
    unknown = (*proposal(bench, 1, 2).new_isr, (BrokerId(3), -1))
    (result,) = alter(bench, proposal(bench, 1, 2, new_isr=unknown)).results
    assert result.error_code is ErrorCode.INELIGIBLE_REPLICA


def test_below_min_isr_those_that_leave_stay_eligible() -> None:
    """KIP-966: nothing is committed without them, so they hold all that is."""
    bench = Bench()
    bench.start(1, 2, 3)
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
        bench.register(broker_id, min_insync_replicas=least)
        bench.heartbeat(broker_id)
    bench.create(topic("t", 1, 2, 3))
    bench.die(3)
    bench.die(2)
    assert (bench.partition().isr, bench.partition().elr) == ((1,), ())  # 1 commits alone
    bench.die(1)
    assert bench.partition().elr == (1,)
    bench.revive(2)
    assert bench.partition().leader_id == -1
    bench.register(1, "configured anew", min_insync_replicas=2)
    bench.heartbeat(1)
    alter(bench, proposal(bench, 1, 2))
    bench.die(2)
    assert (bench.partition().isr, bench.partition().elr) == ((1,), (2,))  # and now it does not
