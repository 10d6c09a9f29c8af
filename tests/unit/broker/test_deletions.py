"""Deletion of records: what the leader allows, and when all live replicas have followed."""

from dataclasses import replace

import pytest

from quorumlog.broker.partitions.core import events
from quorumlog.broker.partitions.core.deletions import (
    DeletionQueue,
    DeletionResult,
    WaitingDeletion,
    policy_refusal,
)
from quorumlog.broker.partitions.core.purgatory import Deadlines
from quorumlog.invariants import InvariantViolation
from quorumlog.settings.topics import TopicConfig
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Offset
from tests.support.broker.replicas import ALL_ALIVE, BROKERS, Replica, fetched_by, image

ONE, TWO, THREE = BROKERS


def leader(records: int = 5) -> Replica:
    replica = Replica(ONE)
    published = events.PartitionPublished(image=image(1, 4, 9, (1,)), brokers=ALL_ALIVE)
    replica.step(0, published)
    replica.append(0, [0] * records)
    return replica


def fetch(replica: Replica, who: BrokerId, log_start: int) -> None:
    end, start = replica.partition.state.log_end_offset, Offset(log_start)
    replica.step(0, fetched_by(who, end, broker_epoch=0, leader_epoch=4, log_start_offset=start))


def rise(replica: Replica, offset: int) -> None:
    replica.step(0, events.LogStartRose(log_start_offset=Offset(offset)))


def test_what_is_committed_may_be_deleted_by_a_leader_if_the_policy_lets_it() -> None:
    for offset, expected in {
        -1: (ErrorCode.NONE, 5),
        0: (ErrorCode.NONE, 0),
        5: (ErrorCode.NONE, 5),
        6: (ErrorCode.OFFSET_OUT_OF_RANGE, -1),
        -2: (ErrorCode.OFFSET_OUT_OF_RANGE, -1),
    }.items():
        assert leader().partition.serving.judge_deletion(offset, ErrorCode.NONE) == expected
    not_leader = Replica(TWO).partition.serving.judge_deletion(0, ErrorCode.POLICY_VIOLATION)
    assert not_leader == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    refused = leader().partition.serving.judge_deletion(0, ErrorCode.POLICY_VIOLATION)
    assert refused == (ErrorCode.POLICY_VIOLATION, -1)


@pytest.mark.parametrize(
    ("policy", "is_allowed"),
    [("delete", True), ("compact", False), ("compact,delete", True), ("compact, delete", True)],
)
def test_a_topic_that_is_only_compacted_keeps_the_newest_of_each_key(
    policy: str, is_allowed: bool
) -> None:
    expected = ErrorCode.NONE if is_allowed else ErrorCode.POLICY_VIOLATION
    assert policy_refusal(TopicConfig({"cleanup.policy": policy}, {})) is expected
    assert policy_refusal(TopicConfig({}, {})) is ErrorCode.NONE
    brokers = {"log.cleanup.policy": policy}
    assert policy_refusal(TopicConfig({}, brokers)) is expected


def test_the_low_watermark_is_the_least_start_of_the_live_replicas_in_this_epoch() -> None:
    replica = leader()
    partition = replica.partition
    assert partition.serving.low_watermark() == -1  # the followers have said nothing yet
    fetch(replica, TWO, 0)
    fetch(replica, THREE, 0)
    rise(replica, 3)
    fetch(replica, TWO, 3)
    fetch(replica, THREE, 3)
    assert partition.serving.low_watermark() == 0  # a restart would bring our own start back
    replica.keep_log_start(0)
    assert partition.serving.low_watermark() == 3
    fetch(replica, THREE, 2)
    assert partition.serving.low_watermark() == 2
    fenced = {**ALL_ALIVE, THREE: replace(ALL_ALIVE[THREE], fenced=True)}
    replica.step(0, events.BrokersPublished(brokers=fenced))
    assert partition.serving.low_watermark() == 3
    newer = events.PartitionPublished(image=image(1, 5, 10, (1,)), brokers=ALL_ALIVE)
    replica.step(0, newer)
    assert replica.partition.serving.low_watermark() == -1


def test_a_start_that_was_cut_away_is_not_kept() -> None:
    replica = Replica(TWO)
    replica.log.append([(3, 0)] * 5)
    partition = replica.partition
    partition.state.log_end_offset = partition.state.high_watermark = Offset(5)
    replica.step(0, events.LogStartRose(log_start_offset=Offset(5)))
    replica.step(0, events.LogTruncated(log_end_offset=Offset(4)))
    assert (partition.state.log_start_offset, partition.state.high_watermark) == (4, 4)
    replica.step(0, events.LogStartKept(log_start_offset=Offset(5)))
    assert partition.state.kept_log_start_offset == 4
    replica.step(0, events.LogStartedOver(offset=Offset(2)))
    assert (partition.state.log_start_offset, partition.state.kept_log_start_offset) == (2, 2)


def test_a_kept_start_beyond_the_start_breaks_an_invariant() -> None:
    replica = leader()
    replica.partition.state.kept_log_start_offset = Offset(1)
    with pytest.raises(InvariantViolation, match="2: kept log start"):
        replica.step(0, events.Ticked())


def test_a_deletion_is_handed_back_once() -> None:
    deadlines: Deadlines[WaitingDeletion] = Deadlines()
    queue = DeletionQueue(deadlines)
    told: list[DeletionResult] = []
    waits = [
        WaitingDeletion(deadline_ms, Offset(required), Offset(0), told.append)
        for deadline_ms, required in ((10, 7), (20, 3), (30, 5))
    ]
    assert [queue.add(wait) for wait in waits] == [True, False, False]
    assert deadlines.expire(10) == waits[:1]
    assert queue.complete(Offset(2)) == []
    assert queue.complete(Offset(4)) == [waits[1]]
    assert queue.complete(Offset(9)) == [waits[2]]
    assert not queue
    assert (len(deadlines), deadlines.next_deadline_ms()) == (0, None)
    queue.add(WaitingDeletion(40, Offset(1), Offset(0), told.append))
    assert len(queue.fail()) == 1
    assert not queue
