"""Decisions of the controller about topics: creation, deletion, growth, and where replicas are."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from quorumlog.metadata_quorum.controller import assignments
from quorumlog.metadata_quorum.controller.assignments import place_replicas
from quorumlog.metadata_quorum.controller_client import NewPartitions, NewTopic
from quorumlog.metadata_quorum.controller_requests import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    FindTopics,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, TopicId
from tests.support.metadata_quorum.controllers import Bench, ids, topic

UNKNOWN = TopicId(b"?" * 16)


@pytest.fixture
def bench() -> Bench:
    return Bench().start(1, 2, 3)


def test_minus_one_means_the_clusters_default(bench: Bench) -> None:
    result = bench.create(NewTopic(name="t"))
    assert (result.error_code, result.partitions, result.replication_factor) == (0, 1, 3)
    assert sorted(bench.partition().replicas) == [1, 2, 3] == sorted(bench.partition().isr)
    assert bench.partition().leader_id == bench.partition().replicas[0]
    assert result.topic_id == bench.controller.cluster.topic_id("t")


def topic_on_broker_1(partitions: int) -> NewTopic:
    return NewTopic(name="t", assignments={index: ids(1) for index in range(partitions)})


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
        (topic_on_broker_1(10_001), "POLICY_VIOLATION", "at most 10000"),
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
    with bench.unwritten():
        result = bench.create(new_topic)
    assert result.error_code is ErrorCode[error_code]
    assert message in (result.error_message or "")


def test_one_bad_topic_does_not_spoil_the_others(bench: Bench) -> None:
    names = {
        "ok": "NONE",
        "twice": "INVALID_REQUEST",
        "a.b": "NONE",
        "a_b": "INVALID_TOPIC_EXCEPTION",
    }
    topics = tuple(NewTopic(name=name) for name in [*names, "twice"])
    assert bench.codes(CreateTopics(topics=topics)) == [*names.values(), names["twice"]]


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
    first = bench.create(topic(retention_ms="5")).topic_id
    deletion = DeleteTopics(topic_ids=(first, UNKNOWN))
    assert bench.codes(deletion) == ["NONE", "UNKNOWN_TOPIC_ID"]
    second = bench.create(topic()).topic_id
    assert second != first
    assert bench.controller.cluster.configs("t") == {}
    # A deletion that is repeated leaves the next topic of that name alone.
    assert bench.codes(DeleteTopics(topic_ids=(first,))) == ["UNKNOWN_TOPIC_ID"]
    found = bench.ask(FindTopics(names=("t", "none"))).results
    assert [(one.error_code.name, one.topic_id) for one in found] == [
        ("NONE", second),
        ("UNKNOWN_TOPIC_OR_PARTITION", bytes(16)),
    ]
    assert bench.codes(DeleteTopics(topic_ids=(second, second))) == ["INVALID_REQUEST"] * 2
    assert bench.controller.cluster.topic_id("t") == second


def test_what_is_only_validated_is_answered_and_not_written(bench: Bench) -> None:
    bench.create(topic(retention_ms="5"))
    growth = NewPartitions(name="t", count=3)
    with bench.unwritten():
        for request in (
            CreatePartitions(topics=(growth,), validate_only=True),
            CreateTopics(topics=(NewTopic(name="u"),), validate_only=True),
        ):
            assert bench.codes(request) == ["NONE"]


def test_a_topic_id_is_a_random_uuid_whose_text_starts_with_no_dash() -> None:
    bench = Bench()
    drawn = iter([bytes(4), b"\xf8" + bytes(15), bytes(16)])  # where to place; two ids
    bench.random_bytes = lambda n: next(drawn)[:n]
    bench.controller = bench.take_over()
    bench.start(1)
    result = bench.create(NewTopic(name="t", replication_factor=1))
    assert result.topic_id == bytes.fromhex("00000000000040008000000000000000")


# --- CreatePartitions ---


@pytest.fixture
def grown() -> Bench:
    """Partition t-0 is on brokers 1 and 2 of three."""
    bench = Bench().start(1, 2, 3)
    bench.create(topic("t", 1, 2))
    return bench


def to(count: int, *assignments: tuple[int, ...], name: str = "t") -> NewPartitions:
    """The growth of a topic; without assignments, the controller places the partitions."""
    where = tuple(ids(*replicas) for replicas in assignments)
    return NewPartitions(name=name, count=count, assignments=where or None)


def test_a_topic_grows_and_keeps_its_replication_factor(grown: Bench) -> None:
    before = grown.partition()
    [result] = grown.ask(CreatePartitions(topics=(to(4),))).results
    assert (result.error_code, result.partitions, result.replication_factor) == (0, 4, 2)
    partitions = grown.controller.cluster.partitions("t")
    assert partitions[0] == before
    assert [len(partition.replicas) for partition in partitions] == [2, 2, 2, 2]
    assert all(partition.leader_id == partition.replicas[0] for partition in partitions)


def test_the_request_may_say_where_the_new_partitions_go(grown: Bench) -> None:
    grown.die(2)
    grown.ask(CreatePartitions(topics=(to(3, (3, 1), (2, 3)),)))
    _, second, third = grown.controller.cluster.partitions("t")
    assert (second.replicas, second.isr, second.leader_id) == ((3, 1), (3, 1), 3)
    assert (third.replicas, third.isr, third.leader_id) == ((2, 3), (3,), 3)


@pytest.mark.parametrize(
    ("growth", "error_code", "message"),
    [
        (to(2, name="no"), "UNKNOWN_TOPIC_OR_PARTITION", "does not host"),
        (to(1), "INVALID_PARTITIONS", "already has 1"),
        (to(0), "INVALID_PARTITIONS", "would not be an increase"),
        (to(-1), "INVALID_PARTITIONS", "would not be an increase"),
        (to(2**31 - 1), "POLICY_VIOLATION", "at most 10000 partitions"),
        (to(3, (1, 2)), "INVALID_REPLICA_ASSIGNMENT", "but 1 assignment"),
        (to(2, (1,)), "INVALID_REPLICA_ASSIGNMENT", "replication factor is 2"),
        (to(2, (1, 9)), "INVALID_REPLICA_ASSIGNMENT", "broker 9"),
        (to(2, ()), "INVALID_REPLICA_ASSIGNMENT", "empty"),
        (to(2, (3, 3)), "INVALID_REPLICA_ASSIGNMENT", "more than once"),
        (to(2, (4, 5)), "INVALID_REPLICA_ASSIGNMENT", "for partition 1 are fenced"),
    ],
)
def test_a_growth_that_cannot_be_is_refused_and_not_written(
    grown: Bench, growth: NewPartitions, error_code: str, message: str
) -> None:
    grown.start(4, 5)
    grown.die(4)
    grown.die(5)
    with grown.unwritten():
        [(code, said)] = grown.outcomes(CreatePartitions(topics=(growth,)))
    assert code == error_code
    assert message in said


def test_each_topic_has_its_own_outcome(grown: Bench) -> None:
    grown.create(topic("u", 3))
    topics = (to(2), to(2, name="u"), to(3), to(3, name="no"))
    results = grown.ask(CreatePartitions(topics=topics)).results
    assert [(result.name, result.error_code.name) for result in results] == [
        ("t", "INVALID_REQUEST"),
        ("u", "NONE"),
        ("t", "INVALID_REQUEST"),
        ("no", "UNKNOWN_TOPIC_OR_PARTITION"),
    ]
    assert len(grown.controller.cluster.partitions("t")) == 1


def test_too_many_partitions_over_all_topics_are_refused_whole(grown: Bench) -> None:
    grown.create(topic("u", 3))
    with grown.unwritten():
        codes = grown.codes(CreatePartitions(topics=(to(5001), to(5002, name="u"))))
    assert codes == ["POLICY_VIOLATION"] * 2


# --- replicas are spread over racks, over brokers, and leaders over all ---


Racks = Mapping[BrokerId, str | None]


def racks(*names: str | None) -> Racks:
    """Brokers from 1 on, each with its rack."""
    return {BrokerId(number): name for number, name in enumerate(names, start=1)}


def place(
    where: Racks, replication_factor: int, start: int, fenced: Sequence[BrokerId] = ()
) -> list[list[str | None]]:
    """Return the racks of 24 partitions, after a look that no broker has two replicas of one."""
    usable = [broker_id for broker_id in where if broker_id not in fenced]
    placed = place_replicas(
        usable,
        fenced,
        partitions=24,
        replication_factor=replication_factor,
        start=start,
        racks=where,
    )
    assert all(len({*replicas}) == replication_factor for replicas in placed)
    return [[where[one] for one in replicas] for replicas in placed]


@pytest.mark.parametrize("start", [0, 1, 7, 2**32 - 1])
@pytest.mark.parametrize(
    "where",
    [
        racks("a", "a", "b", "b", "c", "c"),
        racks("a", "b", "c"),
        racks("a", "a", "a", "a", "b", "c"),
        racks("a", None, None, "b", "b"),
    ],
    ids=["even", "one each", "uneven", "some without"],
)
def test_no_rack_has_two_replicas_while_another_has_none(where: Racks, start: int) -> None:
    known = {*where.values()}
    for replication_factor in range(1, len(where) + 1):
        for found in place(where, replication_factor, start):
            assert len({*found}) == min(replication_factor, len(known))
    for found in place(where, 3, start, fenced=[BrokerId(1)]):
        assert len({*found[:2]}) == 2


@pytest.mark.parametrize("start", [0, 1, 7, 2**32 - 1])
@pytest.mark.parametrize(
    ("where", "partitions", "seconds"),
    [(racks(None, None, None, None), 12, 3), (racks("a", "a", "b", "b", "c", "c"), 36, 2)],
    ids=["without racks", "racks"],
)
def test_leaders_are_even_over_brokers_and_followers_over_all(
    where: Racks, partitions: int, seconds: int, start: int
) -> None:
    placed = place_replicas(
        [*where], (), partitions=partitions, replication_factor=3, start=start, racks=where
    )
    assert all(len({*replicas}) == 3 for replicas in placed)
    each = partitions // len(where)
    assert {*Counter(replicas[0] for replicas in placed).values()} == {each}
    assert {*Counter(r for replicas in placed for r in replicas).values()} == {3 * each}
    # The death of 1 spreads its leaderships.
    assert len({replicas[1] for replicas in placed if replicas[0] == 1}) >= seconds


def test_a_fenced_broker_is_taken_last_although_its_rack_is_free() -> None:
    where = racks("a", "a", "b")
    placed = place_replicas(
        ids(1, 2), ids(3), partitions=4, replication_factor=2, start=0, racks=where
    )
    assert {frozenset(replicas) for replicas in placed} == {frozenset({1, 2})}


def test_brokers_of_one_rack_are_placed_as_without_racks() -> None:
    where = racks("a", "a", "a", "a")
    for one in (where, None):
        placed = place_replicas(
            [*where], (), partitions=12, replication_factor=3, start=5, racks=one
        )
        assert placed[:2] == [(2, 4, 1), (3, 1, 2)]


def test_a_topic_is_spread_over_the_racks_of_its_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_spread() -> bool:
        bench = Bench()
        where = {1: "a", 2: "a", 3: "b", 4: "b"}
        for broker_id, rack in where.items():
            bench.let_in(broker_id, rack=rack)
        bench.create(NewTopic(name="t", partitions=8, replication_factor=2))
        partitions = bench.controller.cluster.partitions("t")
        return all({where[r] for r in one.replicas} == {"a", "b"} for one in partitions)

    assert is_spread()
    # The planted bug: racks are not looked at.
    monkeypatch.setattr(assignments, "_spread", lambda stripe, count, *_: [*stripe[:count]])
    monkeypatch.setattr(assignments, "_ring", lambda ring, _: [*ring])
    assert not is_spread()
