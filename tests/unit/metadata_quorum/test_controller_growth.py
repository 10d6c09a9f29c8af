"""CreatePartitions: what the controller grows, and what it refuses."""

import pytest

from quorumlog.metadata_quorum.controller.requests import CreatePartitions, TopicResults
from quorumlog.metadata_quorum.controller_client import NewPartitions, TopicResult
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.metadata_quorum.controllers import Bench, ids, topic


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.start(1, 2, 3)
    bench.create(topic("t", 1, 2))
    return bench


def grow(bench: Bench, *topics: NewPartitions) -> list[TopicResult]:
    response = bench.ask(CreatePartitions(topics=topics))
    assert isinstance(response, TopicResults)
    return [*response.results]


def test_a_topic_grows_and_keeps_its_replication_factor(bench: Bench) -> None:
    before = bench.partition()
    [result] = grow(bench, NewPartitions(name="t", count=4))
    assert (result.error_code, result.partitions, result.replication_factor) == (0, 4, 2)
    partitions = bench.controller.cluster.partitions("t")
    assert partitions[0] == before
    assert [len(partition.replicas) for partition in partitions] == [2, 2, 2, 2]
    assert all(partition.leader_id == partition.replicas[0] for partition in partitions)


def test_the_request_may_say_where_the_new_partitions_go(bench: Bench) -> None:
    bench.die(2)
    grow(bench, NewPartitions(name="t", count=3, assignments=(ids(3, 1), ids(2, 3))))
    _, second, third = bench.controller.cluster.partitions("t")
    assert (second.replicas, second.isr, second.leader_id) == ((3, 1), (3, 1), 3)
    assert (third.replicas, third.isr, third.leader_id) == ((2, 3), (3,), 3)


@pytest.mark.parametrize(
    ("wanted", "error_code", "message"),
    [
        (NewPartitions(name="no", count=2), "UNKNOWN_TOPIC_OR_PARTITION", "does not host"),
        (NewPartitions(name="t", count=1), "INVALID_PARTITIONS", "already has 1"),
        (NewPartitions(name="t", count=0), "INVALID_PARTITIONS", "would not be an increase"),
        (NewPartitions(name="t", count=-1), "INVALID_PARTITIONS", "would not be an increase"),
        (NewPartitions(name="t", count=2**31 - 1), "POLICY_VIOLATION", "at most 10000 partitions"),
        (
            NewPartitions(name="t", count=3, assignments=(ids(1, 2),)),
            "INVALID_REPLICA_ASSIGNMENT",
            "but 1 assignment",
        ),
        (
            NewPartitions(name="t", count=2, assignments=(ids(1),)),
            "INVALID_REPLICA_ASSIGNMENT",
            "replication factor is 2",
        ),
        (
            NewPartitions(name="t", count=2, assignments=(ids(1, 9),)),
            "INVALID_REPLICA_ASSIGNMENT",
            "broker 9",
        ),
        (
            NewPartitions(name="t", count=2, assignments=((),)),
            "INVALID_REPLICA_ASSIGNMENT",
            "empty",
        ),
        (
            NewPartitions(name="t", count=2, assignments=(ids(3, 3),)),
            "INVALID_REPLICA_ASSIGNMENT",
            "more than once",
        ),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(
    bench: Bench, wanted: NewPartitions, error_code: str, message: str
) -> None:
    written = len(bench.log)
    [result] = grow(bench, wanted)
    assert result.error_code is ErrorCode[error_code]
    assert message in (result.error_message or "")
    assert len(bench.log) == written


def test_no_partition_is_assigned_to_dead_brokers_alone(bench: Bench) -> None:
    bench.die(2)
    bench.die(3)
    [result] = grow(bench, NewPartitions(name="t", count=2, assignments=(ids(2, 3),)))
    assert result.error_code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "for partition 1 are fenced" in (result.error_message or "")


def test_each_topic_has_its_own_outcome(bench: Bench) -> None:
    bench.create(topic("u", 3))
    results = grow(
        bench,
        NewPartitions(name="t", count=2),
        NewPartitions(name="u", count=2),
        NewPartitions(name="t", count=3),
        NewPartitions(name="no", count=3),
    )
    codes = [(result.name, result.error_code.name) for result in results]
    assert codes == [
        ("t", "INVALID_REQUEST"),
        ("u", "NONE"),
        ("t", "INVALID_REQUEST"),
        ("no", "UNKNOWN_TOPIC_OR_PARTITION"),
    ]
    assert len(bench.controller.cluster.partitions("t")) == 1


def test_too_many_partitions_over_all_topics_are_refused_whole(bench: Bench) -> None:
    bench.create(topic("u", 3))
    written = len(bench.log)
    results = grow(bench, NewPartitions(name="t", count=5001), NewPartitions(name="u", count=5002))
    assert {result.error_code for result in results} == {ErrorCode.POLICY_VIOLATION}
    assert len(bench.log) == written
