"""Decisions of the controller about topics: creation, placement, deletion."""

from collections import Counter

import pytest

from quorumlog.metadata_quorum.controller.placement import place_replicas
from quorumlog.metadata_quorum.controller.requests import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    FindTopics,
    TopicResults,
)
from quorumlog.metadata_quorum.controller_client import NewPartitions, NewTopic
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicId
from tests.support.metadata_quorum.controllers import Bench, ids, topic

UNKNOWN = TopicId(b"?" * 16)


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.start(1, 2, 3)
    return bench


def test_minus_one_means_the_clusters_default(bench: Bench) -> None:
    result = bench.create(NewTopic(name="t"))
    assert (result.error_code, result.partitions, result.replication_factor) == (0, 1, 3)
    assert sorted(bench.partition().replicas) == [1, 2, 3] == sorted(bench.partition().isr)
    assert bench.partition().leader_id == bench.partition().replicas[0]
    assert result.topic_id == bench.controller.cluster.topic_id("t")


@pytest.mark.parametrize(
    ("new_topic", "error_code", "message"),
    [
        (NewTopic(name=""), "INVALID_TOPIC_EXCEPTION", "empty string"),
        (NewTopic(name=".."), "INVALID_TOPIC_EXCEPTION", "'.' or '..'"),
        (NewTopic(name="x" * 250), "INVALID_TOPIC_EXCEPTION", "longer than"),
        (NewTopic(name="a/b"), "INVALID_TOPIC_EXCEPTION", "other than ASCII"),
        (NewTopic(name="here\n"), "INVALID_TOPIC_EXCEPTION", "other than ASCII"),
        (NewTopic(name="__cluster_metadata"), "INVALID_REQUEST", "prohibited"),
        (NewTopic(name="is.here"), "TOPIC_ALREADY_EXISTS", "'is.here' already exists"),
        (NewTopic(name="is_here"), "INVALID_TOPIC_EXCEPTION", "collides with existing"),
        (NewTopic(name="t", partitions=0), "INVALID_PARTITIONS", "non-positive"),
        (NewTopic(name="t", partitions=10**6), "POLICY_VIOLATION", "at most 10000"),
        (NewTopic(name="t", replication_factor=-2), "INVALID_REPLICATION_FACTOR", "non-positive"),
        (NewTopic(name="t", replication_factor=4), "INVALID_REPLICATION_FACTOR", "only 3 broker"),
        (
            NewTopic(name="t", configs={"retenton.ms": "1"}),
            "INVALID_CONFIG",
            "did you mean retention.ms",
        ),
        (NewTopic(name="t", configs={"retention.ms": "x"}), "INVALID_CONFIG", "Not a number"),
        (NewTopic(name="t", configs={"cleanup.policy": "x"}), "INVALID_CONFIG", "compact, delete"),
        (NewTopic(name="t", configs={"segment.index.bytes": "4"}), "INVALID_CONFIG", "least 12"),
        (NewTopic(name="t", partitions=1, assignments={0: ids(1)}), "INVALID_REQUEST", "manual"),
        (NewTopic(name="t", assignments={1: ids(1)}), "INVALID_REPLICA_ASSIGNMENT", "consecutive"),
        (NewTopic(name="t", assignments={0: ()}), "INVALID_REPLICA_ASSIGNMENT", "empty"),
        (NewTopic(name="t", assignments={0: ids(1, 1)}), "INVALID_REPLICA_ASSIGNMENT", "than once"),
        (NewTopic(name="t", assignments={0: ids(9)}), "INVALID_REPLICA_ASSIGNMENT", "broker 9"),
        (
            NewTopic(name="t", assignments={0: ids(1), 1: ids(1, 2)}),
            "INVALID_REPLICA_ASSIGNMENT",
            "the topic's replication factor",
        ),
    ],
)
def test_a_bad_topic_is_refused_and_says_why(
    bench: Bench, new_topic: NewTopic, error_code: str, message: str
) -> None:
    bench.create(NewTopic(name="is.here"))
    written = len(bench.log)
    result = bench.create(new_topic)
    assert result.error_code is ErrorCode[error_code]
    assert message in (result.error_message or "")
    assert len(bench.log) == written


def test_one_bad_topic_does_not_spoil_the_others(bench: Bench) -> None:
    request = CreateTopics(
        topics=tuple(NewTopic(name=name) for name in ("ok", "twice", "a.b", "twice", "a_b"))
    )
    response = bench.ask(request)
    assert isinstance(response, TopicResults)
    codes = [result.error_code.name for result in response.results]
    assert codes == [
        "NONE",
        "INVALID_REQUEST",
        "NONE",
        "INVALID_REQUEST",
        "INVALID_TOPIC_EXCEPTION",
    ]


def test_validate_only_answers_and_writes_nothing(bench: Bench) -> None:
    written = len(bench.log)
    response = bench.ask(CreateTopics(topics=(NewTopic(name="t"),), validate_only=True))
    assert isinstance(response, TopicResults)
    assert response.results[0].error_code is ErrorCode.NONE
    assert len(bench.log) == written


def test_without_an_unfenced_broker_nothing_can_be_placed() -> None:
    bench = Bench()
    bench.register(1)
    result = bench.create(NewTopic(name="t", replication_factor=1))
    assert result.error_code is ErrorCode.INVALID_REPLICATION_FACTOR
    manual = bench.create(topic("t", 1))
    assert manual.error_code is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_fenced_broker_gets_replicas_but_is_not_in_sync(bench: Bench) -> None:
    bench.die(2)
    bench.create(NewTopic(name="t"))
    assert bench.partition().replicas[2] == 2
    assert 2 not in bench.partition().isr


def test_a_deleted_topic_may_be_created_again_under_another_id(bench: Bench) -> None:
    first = bench.create(topic(retention_ms="5"))
    response = bench.ask(DeleteTopics(topic_ids=(first.topic_id, UNKNOWN)))
    assert isinstance(response, TopicResults)
    assert [r.error_code.name for r in response.results] == ["NONE", "UNKNOWN_TOPIC_ID"]
    second = bench.create(topic())
    assert second.topic_id != first.topic_id
    assert bench.controller.cluster.configs("t") == {}


def test_what_is_only_validated_or_is_so_already_writes_nothing(bench: Bench) -> None:
    bench.create(topic(retention_ms="5"))
    written = len(bench.log)
    for request in (
        CreatePartitions(topics=(NewPartitions(name="t", count=3),), validate_only=True),
        CreateTopics(topics=(NewTopic(name="u"),), validate_only=True),
    ):
        response = bench.ask(request)
        assert isinstance(response, TopicResults)
        assert response.results[0].error_code is ErrorCode.NONE
    assert len(bench.log) == written


def test_a_topic_named_twice_is_not_deleted(bench: Bench) -> None:
    topic_id = bench.create(topic()).topic_id
    response = bench.ask(DeleteTopics(topic_ids=(topic_id, topic_id)))
    assert isinstance(response, TopicResults)
    assert {result.error_code for result in response.results} == {ErrorCode.INVALID_REQUEST}
    assert bench.controller.cluster.topic_id("t") is not None


def test_a_deletion_that_is_repeated_leaves_the_next_topic_of_that_name_alone(bench: Bench) -> None:
    first = bench.create(topic())
    found = bench.ask(FindTopics(names=("t", "none")))
    assert isinstance(found, TopicResults)
    assert [(r.error_code.name, r.topic_id) for r in found.results] == [
        ("NONE", first.topic_id),
        ("UNKNOWN_TOPIC_OR_PARTITION", bytes(16)),
    ]
    bench.ask(DeleteTopics(topic_ids=(first.topic_id,)))
    second = bench.create(topic())
    again = bench.ask(DeleteTopics(topic_ids=(first.topic_id,)))
    assert isinstance(again, TopicResults)
    assert again.results[0].error_code is ErrorCode.UNKNOWN_TOPIC_ID
    assert bench.controller.cluster.topic_id("t") == second.topic_id


def test_a_topic_id_is_a_random_uuid_whose_text_starts_with_no_dash() -> None:
    bench = Bench()
    drawn = iter([bytes(4), b"\xf8" + bytes(15), bytes(16)])  # where to place; two ids
    bench.random_bytes = lambda n: next(drawn)[:n]
    bench.controller = bench.take_over()
    bench.start(1)
    result = bench.create(NewTopic(name="t", replication_factor=1))
    assert result.topic_id == bytes.fromhex("00000000000040008000000000000000")


@pytest.mark.parametrize("start", [0, 1, 7, 2**32 - 1])
def test_leaders_and_replicas_are_spread_evenly(start: int) -> None:
    placed = place_replicas(ids(1, 2, 3, 4), (), partitions=12, replication_factor=3, start=start)
    assert all(len({*replicas}) == 3 for replicas in placed)
    assert {*Counter(replicas[0] for replicas in placed).values()} == {3}
    assert {*Counter(r for replicas in placed for r in replicas).values()} == {9}
    seconds = {replicas[1] for replicas in placed if replicas[0] == 1}
    assert seconds == {2, 3, 4}  # the death of 1 spreads its leaderships
