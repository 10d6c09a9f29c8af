"""An administrator: what is asked of whom, what comes of the answers, of errors, of silence."""

import asyncio
import re
from collections.abc import Iterator
from inspect import Parameter, iscoroutinefunction, signature
from typing import Any

import pytest

from quorumlog.client import (
    Admin,
    ErrorCode,
    NewPartitions,
    NewTopic,
    OffsetAndMetadata,
    OffsetAndTimestamp,
)
from quorumlog.client.admin.asker import check_all
from quorumlog.wire.codec.messages.create_topics import CreatableTopicResult
from tests.support.client.fake_admin import MOVED, U, cluster_and_admin
from tests.support.client.fake_cluster import T, fake_cluster
from tests.support.client.refusals import refused

E = ErrorCode
EXISTS = CreatableTopicResult(error_code=E.TOPIC_ALREADY_EXISTS, error_message="there")
MOVED_ON = CreatableTopicResult(error_code=E.NOT_CONTROLLER)
DONE = CreatableTopicResult()


@pytest.mark.parametrize(
    ("answers", "complaint", "definite"),
    [
        ({"a": EXISTS, "b": EXISTS}, "TOPIC_ALREADY_EXISTS: a: there", True),
        ({"a": EXISTS, "b": DONE}, "TOPIC_ALREADY_EXISTS: a: there", False),
        ({"a": DONE}, "UNKNOWN_SERVER_ERROR: b: left out of the answer", False),
        ({"a": EXISTS, "b": MOVED_ON}, "a: there", False),
    ],
)
def test_an_error_is_definite_only_if_nothing_was_done(
    answers: dict[str, CreatableTopicResult], complaint: str, definite: bool
) -> None:
    with refused(complaint, definite=definite):
        check_all(["a", "b"], answers)


async def test_one_name_is_not_taken_for_its_letters() -> None:
    async with cluster_and_admin() as (_, admin):
        for call in (admin.delete_topics, admin.describe_topics, admin.delete_consumer_groups):
            with pytest.raises(TypeError, match=r"must be a list of names: \['ab'\]"):
                await call("ab")


def collections_of(client: type[Any]) -> Iterator[tuple[str, str]]:
    """Yield the methods that take a collection, each with the parameter."""
    for name, method in vars(client).items():
        if not name.startswith("_") and iscoroutinefunction(method):
            for parameter in signature(method).parameters.values():
                if re.search("Iterable|Mapping", str(parameter.annotation)):
                    yield name, parameter.name


@pytest.mark.parametrize("wrong", [7, NewTopic("t")], ids=["number", "topic"])
async def test_what_is_no_collection_is_refused_by_the_client_not_by_python(wrong: object) -> None:
    async with cluster_and_admin() as (_, admin):
        for owner in (admin, admin.transactions):
            taken = [*collections_of(type(owner))]
            assert taken
            for method, parameter in taken:
                await check_refusal(getattr(owner, method), parameter, wrong)


async def check_refusal(call: Any, parameter: str, wrong: object) -> None:
    given: dict[str, object] = {
        name: {} if "Mapping" in str(other.annotation) else "topic"
        for name, other in signature(call).parameters.items()
        if other.default is Parameter.empty
    }
    with pytest.raises(TypeError, match=r"must be|is a dict") as caught:
        await call(**{**given, parameter: wrong})
    assert not re.search("object is not|has no attribute", str(caught.value))


async def test_a_cluster_that_died_is_waited_for_as_long_as_was_asked() -> None:
    async with (
        fake_cluster() as cluster,
        Admin(cluster.bootstrap, default_api_timeout_ms=200) as admin,
    ):
        await cluster.kill(1, 2)
        async with asyncio.timeout(20):
            with refused():
                await admin.describe_consumer_groups(["g"])
            with refused():
                await admin.create_topics([NewTopic(name="t")])


# --- topics and elections ---

CREATED = {"topics": [{"name": "new"}, {"name": "placed"}]}


async def test_a_new_topic_takes_numbers_as_settings() -> None:
    async with cluster_and_admin() as (cluster, admin):
        cluster.offer("CreateTopics", CREATED)
        configs: dict[str, str | int | float | bool]
        configs = {"retention.ms": 1000, "preallocate": False, "cleanup.policy": "delete"}
        placed = NewTopic("placed", assignments={0: (1, 2), 1: (2, 1)})
        await admin.create_topics([NewTopic("new", 3, 2, configs=configs), placed])
        topic, other = cluster.requests()[0].topics
        given = {one.partition_index: tuple(one.broker_ids) for one in other.assignments}
        assert (given, topic.assignments) == (placed.assignments, [])
        assert (topic.name, topic.num_partitions, topic.replication_factor) == ("new", 3, 2)
        sent = {one.name: one.value for one in topic.configs}
        assert sent == {**configs, "retention.ms": "1000", "preallocate": "false"}


async def test_what_is_no_topic_is_refused_before_it_is_sent() -> None:
    async with cluster_and_admin() as (cluster, admin):
        cluster.offer("CreateTopics", CREATED)
        wrong: Any = ["x"]
        with pytest.raises(TypeError, match="must be a list of NewTopic, not of 'x'"):
            await admin.create_topics(wrong)
        wrong = {"retention.ms": [1]}
        text = r"setting 'retention\.ms' must be a str, int, float or bool"
        with pytest.raises(TypeError, match=text):
            await admin.create_topics([NewTopic("new", configs=wrong)])
        with refused("CreateTopics cannot be written", definite=True, code=E.INVALID_REQUEST):
            await admin.create_topics([NewTopic("new", 2**40)])
        topics: list[Any] = [NewTopic("n", True), NewTopic("n", 1, True)]
        topics += [
            NewTopic("n", assignments={0: (1, True)}),
            NewTopic("n", assignments={True: (1,)}),
        ]
        for topic in topics:
            with pytest.raises(TypeError, match="True"):
                await admin.create_topics([topic])
        with pytest.raises(TypeError, match="must be an int or NewPartitions, not True"):
            await admin.create_partitions({"n": True})
        with pytest.raises(TypeError, match="must be a list of broker ids, not of True"):
            await admin.alter_partition_reassignments({T: (True, 2)})
        for call in (
            admin.unregister_broker(True),
            admin.remove_raft_voter(True, bytes(16)),
            admin.describe_log_dirs([True]),
            admin.alter_replica_log_dirs(True, {T: "/d"}),
        ):
            with pytest.raises(TypeError, match="True"):
                await call
        assert cluster.seen == []


def grown(code: ErrorCode = E.NONE) -> dict[str, Any]:
    return {"results": [{"name": "t", "error_code": code, "error_message": "said"}]}


async def test_a_topic_grows() -> None:
    async with cluster_and_admin() as (cluster, admin):
        cluster.offer("CreatePartitions", grown(), grown(), grown(E.INVALID_PARTITIONS))
        await admin.create_partitions({"t": 6})
        await admin.create_partitions({"t": NewPartitions(3, [[1, 2]])}, validate_only=True)
        with refused("INVALID_PARTITIONS: t: said", definite=True):
            await admin.create_partitions({"t": 1})
        first, second, _ = cluster.requests()
        assert (first.topics[0].name, first.topics[0].count) == ("t", 6)
        assert first.topics[0].assignments is None
        assert [one.broker_ids for one in second.topics[0].assignments] == [[1, 2]]
        assert (first.validate_only, second.validate_only) == (False, True)
        wrong: Any = {"t": "6"}
        with pytest.raises(TypeError, match="t: must be an int or NewPartitions, not '6'"):
            await admin.create_partitions(wrong)


async def test_a_request_that_the_cluster_has_not_is_named() -> None:
    async with cluster_and_admin() as (_cluster, admin):
        text = "this cluster has no CreatePartitions"
        with refused(text, definite=True, code=E.UNSUPPORTED_VERSION):
            await admin.create_partitions({"t": 6})
        with refused("this cluster has no DescribeProducers"):
            await admin.describe_producers([T])
        with refused("this cluster has no OffsetDelete"):
            await admin.delete_consumer_group_offsets("g", [T])
        assert (await admin.describe_topics(["t"]))["t"].partitions[0].elr is None


def page(*indexes: int, next_index: int | None = None) -> dict[str, Any]:
    one = {"leader_id": 1, "leader_epoch": 2, "replica_nodes": [1, 2], "isr_nodes": [1]}
    partitions = [
        {**one, "partition_index": index, "eligible_leader_replicas": [2]} for index in indexes
    ]
    cursor = None if next_index is None else {"topic_name": "t", "partition_index": next_index}
    return {"topics": [{"name": "t", "partitions": partitions}], "next_cursor": cursor}


async def test_topics_are_described_page_by_page_with_their_elr() -> None:
    async with cluster_and_admin() as (cluster, admin):
        cluster.offer("DescribeTopicPartitions", page(0, 1, next_index=2), page(2))
        described = (await admin.describe_topics(["t", "a"]))["t"]
        assert sorted(described.partitions) == [0, 1, 2]
        assert (described.partitions[2].elr, described.partitions[2].last_known_elr) == ((2,), None)
        first, second = cluster.requests()
        assert ([one.name for one in first.topics], first.cursor) == (["a", "t"], None)
        assert [one.name for one in second.topics] == ["t"]
        assert (second.cursor.topic_name, second.cursor.partition_index) == ("t", 2)


async def test_an_illegal_name_is_refused_with_its_reason() -> None:
    async with cluster_and_admin() as (cluster, admin):
        topics = [{"name": "a b", "error_code": E.INVALID_TOPIC_EXCEPTION}]
        cluster.offer("DescribeTopicPartitions", {"topics": topics, "next_cursor": None})
        with refused("'a b' contains one or more characters other than ASCII"):
            await admin.describe_topics(["a b"])


async def test_a_cursor_that_does_not_move_ends_the_question() -> None:
    async with cluster_and_admin() as (cluster, admin):
        cluster.offer("DescribeTopicPartitions", page(0, next_index=1))
        with refused("does not get past"):
            await admin.describe_topics(["t"])
        assert len(cluster.seen) == 2


async def test_leaders_are_elected_and_each_outcome_is_told() -> None:
    async with cluster_and_admin() as (cluster, admin):
        results = [{"partition_id": 0}, {"partition_id": 1, "error_code": E.ELECTION_NOT_NEEDED}]
        answer = {"replica_election_results": [{"topic": "t", "partition_result": results}]}
        no = {"error_code": E.CLUSTER_AUTHORIZATION_FAILED, "replica_election_results": []}
        cluster.offer("ElectLeaders", answer, answer, no)
        outcomes = await admin.elect_leaders([T, U])
        assert (outcomes[T], str(outcomes[U])) == (None, "ELECTION_NOT_NEEDED: t-1")
        await admin.elect_leaders(election="unclean")
        with refused("CLUSTER_AUTHORIZATION_FAILED"):
            await admin.elect_leaders()
        first, second, _ = cluster.requests()
        assert [(one.topic, one.partitions) for one in first.topic_partitions] == [("t", [0, 1])]
        assert (first.election_type, second.election_type) == (0, 1)
        assert second.topic_partitions is None
        wrong: Any = "any"
        with pytest.raises(ValueError, match="election is 'preferred' or 'unclean', not 'any'"):
            await admin.elect_leaders(None, wrong)


# --- records, offsets and producers, by the leaders of partitions ---


def deleted(*results: tuple[int, int, ErrorCode]) -> dict[str, Any]:
    partitions = [
        {"partition_index": index, "low_watermark": low_watermark, "error_code": code}
        for index, low_watermark, code in results
    ]
    return {"topics": [{"name": "t", "partitions": partitions}]}


async def test_records_are_deleted_by_each_leader_until_all_have_answered() -> None:
    async with cluster_and_admin() as (cluster, admin):
        cluster.topics["t"] = 2
        cluster.elect(2, U)
        moved = deleted((0, 5, E.NONE), (1, -1, MOVED))
        cluster.offer("DeleteRecords", moved, moved, deleted((1, 7, E.NONE)))
        assert await admin.delete_records({T: 5, U: -1}) == {T: 5, U: 7}
        asked = [
            (broker, [(one.partition_index, one.offset) for one in request.topics[0].partitions])
            for broker, request in cluster.seen
        ]
        assert sorted(asked[:2]) == [(1, [(0, 5)]), (2, [(1, -1)])]
        assert asked[2:] == [(2, [(1, -1)])]  # what is done is not asked for again


@pytest.mark.parametrize(
    ("results", "complaint", "definite"),
    [
        ([(0, -1, E.OFFSET_OUT_OF_RANGE)], "OFFSET_OUT_OF_RANGE: t-0", True),
        ([(0, -1, E.UNKNOWN_SERVER_ERROR)], "UNKNOWN_SERVER_ERROR: t-0", False),
        ([], "t-0: left out of the answer", False),
    ],
)
async def test_a_deletion_that_fails_says_whether_anything_was_deleted(
    results: list[tuple[int, int, ErrorCode]], complaint: str, definite: bool
) -> None:
    async with cluster_and_admin() as (cluster, admin):
        cluster.offer("DeleteRecords", deleted(*results))
        with refused(complaint, definite=definite):
            await admin.delete_records({T: 5})
        with pytest.raises(ValueError, match="an offset is 0 to"):
            await admin.delete_records({T: -2})


async def test_offsets_are_asked_by_name_or_time() -> None:
    async with cluster_and_admin() as (cluster, admin):
        cluster.fill(4)
        assert await admin.list_offsets({T: "latest"}) == {T: OffsetAndTimestamp(4, -1)}
        assert (await admin.list_offsets({T: "earliest"}))[T].offset == 0
        assert (await admin.list_offsets({T: 17}, "read_committed"))[T].offset == 0
        wrong: Any = "newest"
        with pytest.raises(ValueError, match="t-0: 'newest' must be one of 'earliest', 'latest'"):
            await admin.list_offsets({T: wrong})


async def test_producers_are_told_by_the_leader() -> None:
    async with cluster_and_admin() as (cluster, admin):
        cluster.elect(2)
        state = {"producer_id": 4, "producer_epoch": 1, "last_sequence": 9, "last_timestamp": 17}
        partitions = [{"partition_index": 0, "active_producers": [state]}]
        cluster.offer("DescribeProducers", {"topics": [{"name": "t", "partitions": partitions}]})
        (told,) = (await admin.describe_producers([T]))[T]
        assert (told.producer_id, told.last_sequence, told.last_timestamp_ms) == (4, 9, 17)
        assert [broker for broker, _ in cluster.seen] == [2]


# --- groups and their offsets ---


async def test_a_groups_offsets_are_set_in_its_name() -> None:
    async with cluster_and_admin() as (cluster, admin):
        await admin.alter_consumer_group_offsets("g", {T: 5})
        assert cluster.commits == [5]
        assert await admin.list_consumer_group_offsets("g", [T]) == {T: OffsetAndMetadata(5)}
        cluster.refusals = [E.UNKNOWN_MEMBER_ID]
        with refused("UNKNOWN_MEMBER_ID: group g: the offset of t-0 is not comm", definite=True):
            await admin.alter_consumer_group_offsets("g", {T: 6})
        with pytest.raises(ValueError, match="an offset is 0 to"):
            await admin.alter_consumer_group_offsets("g", {T: -1})


def forgotten(code: ErrorCode, group_code: ErrorCode = E.NONE) -> dict[str, Any]:
    partitions = [{"partition_index": 0, "error_code": code}]
    return {"error_code": group_code, "topics": [{"name": "t", "partitions": partitions}]}


async def test_a_groups_offsets_are_deleted() -> None:
    async with cluster_and_admin() as (cluster, admin):
        cluster.offer(
            "OffsetDelete",
            forgotten(E.NONE, E.NOT_COORDINATOR),
            forgotten(E.NONE),
            forgotten(E.GROUP_SUBSCRIBED_TO_TOPIC),
            forgotten(E.NONE, E.GROUP_ID_NOT_FOUND),
            forgotten(E.NONE),
        )
        with refused("NOT_COORDINATOR"):  # may be done: not repeated
            await admin.delete_consumer_group_offsets("g", [T])
        await admin.delete_consumer_group_offsets("g", [T])
        with refused("the offset of t-0 is not deleted", definite=True):
            await admin.delete_consumer_group_offsets("g", [T])
        with refused("GROUP_ID_NOT_FOUND: group g"):
            await admin.delete_consumer_group_offsets("g", [T])
        with refused("group g: t-1: left out of the answer"):
            await admin.delete_consumer_group_offsets("g", [U])


async def test_a_group_is_deleted_where_it_is_coordinated_now() -> None:
    async with cluster_and_admin() as (cluster, admin):
        codes = [E.COORDINATOR_LOAD_IN_PROGRESS, E.NON_EMPTY_GROUP]
        answers = [{"results": [{"group_id": "g", "error_code": code}]} for code in codes]
        cluster.offer("DeleteGroups", *answers)
        with refused("COORDINATOR_LOAD_IN_PROGRESS: group g"):
            await admin.delete_consumer_groups(["g"])
        with refused("NON_EMPTY_GROUP: group g", definite=True):
            await admin.delete_consumer_groups(["g"])
