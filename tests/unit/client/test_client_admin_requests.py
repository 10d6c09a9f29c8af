"""Each request of an administrator: what is asked of whom, and what comes of the answers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from quorumlog.client import (
    Admin,
    ErrorCode,
    KafkaError,
    NewPartitions,
    NewTopic,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)
from quorumlog.client import descriptions as about
from quorumlog.client.settings import AdminOptions
from quorumlog.wire.codec.messages import create_partitions as create_partitions_
from quorumlog.wire.codec.messages import create_topics as create_topics_
from quorumlog.wire.codec.messages import delete_groups as delete_groups_
from quorumlog.wire.codec.messages import delete_records as delete_records_
from quorumlog.wire.codec.messages import describe_configs as describe_configs_
from quorumlog.wire.codec.messages import describe_log_dirs as log_dirs_
from quorumlog.wire.codec.messages import describe_producers as producers_
from quorumlog.wire.codec.messages import describe_quorum as quorum_
from quorumlog.wire.codec.messages import describe_topic_partitions as describe_
from quorumlog.wire.codec.messages import elect_leaders as elect_
from quorumlog.wire.codec.messages import incremental_alter_configs as alter_
from quorumlog.wire.codec.messages import list_config_resources as resources_
from quorumlog.wire.codec.messages import offset_delete as offset_delete_
from tests.unit.client.fake_admin import AdminCluster, admin_cluster
from tests.unit.client.fake_cluster import T

Scenario = Callable[[AdminCluster, Admin], Awaitable[None]]
U = TopicPartition("t", 1)
MOVED = ErrorCode.NOT_LEADER_OR_FOLLOWER


def play(scenario: Scenario, options: AdminOptions | None = None) -> None:
    async def run() -> None:
        async with asyncio.timeout(20), admin_cluster(options) as (cluster, admin):
            await scenario(cluster, admin)

    asyncio.run(run())


# --- topics --------------------------------------------------------------------------------------


def created(code: ErrorCode = ErrorCode.NONE) -> create_topics_.CreateTopicsResponse:
    one = create_topics_.CreatableTopicResult(name="new", error_code=code)
    return create_topics_.CreateTopicsResponse(topics=[one])


def test_a_new_topic_takes_numbers_as_settings() -> None:
    async def scenario(cluster: AdminCluster, admin: Admin) -> None:
        cluster.offer(create_topics_.CreateTopicsRequest, created())
        configs: dict[str, str | int | float | bool]
        configs = {"retention.ms": 1000, "preallocate": False, "cleanup.policy": "delete"}
        await admin.create_topics([NewTopic("new", 3, 2, configs=configs)])
        (topic,) = cluster.requests()[0].topics
        assert (topic.name, topic.num_partitions, topic.replication_factor) == ("new", 3, 2)
        assert {one.name: one.value for one in topic.configs} == {
            "retention.ms": "1000",
            "preallocate": "false",
            "cleanup.policy": "delete",
        }

    play(scenario)


def test_what_is_no_topic_is_refused_before_it_is_sent() -> None:
    async def scenario(cluster: AdminCluster, admin: Admin) -> None:
        cluster.offer(create_topics_.CreateTopicsRequest, created())
        wrong: Any = ["x"]
        with pytest.raises(TypeError, match="a list of NewTopic is wanted, not 'x'"):
            await admin.create_topics(wrong)
        wrong = {"retention.ms": [1]}
        with pytest.raises(TypeError, match=r"setting 'retention\.ms': a str, int, float or bool"):
            await admin.create_topics([NewTopic("new", configs=wrong)])
        with pytest.raises(KafkaError, match="CreateTopics cannot be written") as caught:
            await admin.create_topics([NewTopic("new", 2**40)])
        assert caught.value.code == ErrorCode.INVALID_REQUEST
        assert caught.value.definite
        assert cluster.seen == []

    play(scenario)


def grown(code: ErrorCode = ErrorCode.NONE) -> create_partitions_.CreatePartitionsResponse:
    one = create_partitions_.CreatePartitionsTopicResult(
        name="t", error_code=code, error_message="said"
    )
    return create_partitions_.CreatePartitionsResponse(results=[one])


def test_a_topic_grows() -> None:
    async def scenario(cluster: AdminCluster, admin: Admin) -> None:
        refused = grown(ErrorCode.INVALID_PARTITIONS)
        cluster.offer(create_partitions_.CreatePartitionsRequest, grown(), grown(), refused)
        await admin.create_partitions({"t": 6})
        await admin.create_partitions({"t": NewPartitions(3, [[1, 2]])}, validate_only=True)
        with pytest.raises(KafkaError, match="INVALID_PARTITIONS: t: said") as caught:
            await admin.create_partitions({"t": 1})
        assert caught.value.definite
        first, second, _ = cluster.requests()
        assert (first.topics[0].name, first.topics[0].count) == ("t", 6)
        assert first.topics[0].assignments is None
        assert [one.broker_ids for one in second.topics[0].assignments] == [[1, 2]]
        assert (first.validate_only, second.validate_only) == (False, True)
        wrong: Any = {"t": "6"}
        with pytest.raises(TypeError, match="t: an int or NewPartitions is wanted, not '6'"):
            await admin.create_partitions(wrong)

    play(scenario)


def test_a_request_that_the_cluster_has_not_is_named() -> None:
    async def scenario(cluster: AdminCluster, admin: Admin) -> None:
        with pytest.raises(KafkaError, match="this cluster has no CreatePartitions") as caught:
            await admin.create_partitions({"t": 6})
        assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION
        assert caught.value.definite
        with pytest.raises(KafkaError, match="this cluster has no DescribeProducers"):
            await admin.describe_producers([T])
        with pytest.raises(KafkaError, match="this cluster has no OffsetDelete"):
            await admin.delete_consumer_group_offsets("g", [T])
        assert (await admin.describe_topics(["t"]))["t"].partitions[0].elr is None

    play(scenario)


def page(*indexes: int, next_index: int | None = None) -> describe_.DescribeTopicPartitionsResponse:
    partitions = [
        describe_.DescribeTopicPartitionsResponsePartition(
            partition_index=index,
            leader_id=1,
            leader_epoch=2,
            replica_nodes=[1, 2],
            isr_nodes=[1],
            eligible_leader_replicas=[2],
        )
        for index in indexes
    ]
    topic = describe_.DescribeTopicPartitionsResponseTopic(name="t", partitions=partitions)
    cursor = None
    if next_index is not None:
        cursor = describe_.ResponseCursor(topic_name="t", partition_index=next_index)
    return describe_.DescribeTopicPartitionsResponse(topics=[topic], next_cursor=cursor)


def test_topics_are_described_page_by_page_with_their_elr() -> None:
    async def scenario(cluster: AdminCluster, admin: Admin) -> None:
        cluster.offer(describe_.DescribeTopicPartitionsRequest, page(0, 1, next_index=2), page(2))
        described = (await admin.describe_topics(["t", "a"]))["t"]
        assert sorted(described.partitions) == [0, 1, 2]
        assert (described.partitions[2].elr, described.partitions[2].last_known_elr) == ((2,), None)
        first, second = cluster.requests()
        assert ([one.name for one in first.topics], first.cursor) == (["a", "t"], None)
        assert [one.name for one in second.topics] == ["t"]
        assert (second.cursor.topic_name, second.cursor.partition_index) == ("t", 2)

    play(scenario)


def test_a_cursor_that_does_not_move_ends_the_question() -> None:
    async def scenario(cluster: AdminCluster, admin: Admin) -> None:
        cluster.offer(describe_.DescribeTopicPartitionsRequest, page(0, next_index=1))
        with pytest.raises(KafkaError, match="does not get past"):
            await admin.describe_topics(["t"])
        assert len(cluster.seen) == 2

    play(scenario)


def test_leaders_are_elected_and_each_outcome_is_told() -> None:
    async def scenario(cluster: AdminCluster, admin: Admin) -> None:
        results = [
            elect_.PartitionResult(partition_id=0),
            elect_.PartitionResult(partition_id=1, error_code=ErrorCode.ELECTION_NOT_NEEDED),
        ]
        answer = elect_.ElectLeadersResponse(
            replica_election_results=[
                elect_.ReplicaElectionResult(topic="t", partition_result=results)
            ]
        )
        refused = elect_.ElectLeadersResponse(
            error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, replica_election_results=[]
        )
        cluster.offer(elect_.ElectLeadersRequest, answer, answer, refused)
        outcomes = await admin.elect_leaders([T, U])
        assert outcomes[T] is None
        error = outcomes[U]
        assert error is not None
        assert str(error) == "ELECTION_NOT_NEEDED: t-1"
        await admin.elect_leaders(election="unclean")
        with pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
            await admin.elect_leaders()
        first, second, _ = cluster.requests()
        assert [(one.topic, one.partitions) for one in first.topic_partitions] == [("t", [0, 1])]
        assert (first.election_type, second.election_type) == (0, 1)
        assert second.topic_partitions is None
        wrong: Any = "any"
        with pytest.raises(ValueError, match="election is 'preferred' or 'unclean', not 'any'"):
            await admin.elect_leaders(None, wrong)

    play(scenario)


# --- records -------------------------------------------------------------------------------------


def deleted(*results: tuple[int, int, ErrorCode]) -> delete_records_.DeleteRecordsResponse:
    partitions = [
        delete_records_.DeleteRecordsPartitionResult(
            partition_index=index, low_watermark=low_watermark, error_code=code
        )
        for index, low_watermark, code in results
    ]
    topic = delete_records_.DeleteRecordsTopicResult(name="t", partitions=partitions)
    return delete_records_.DeleteRecordsResponse(topics=[topic])


def test_records_are_deleted_by_each_leader_until_all_have_answered() -> None:
    async def scenario(cluster: AdminCluster, admin: Admin) -> None:
        cluster.topics["t"] = 2
        cluster.elect(2, U)
        cluster.offer(
            delete_records_.DeleteRecordsRequest,
            deleted((0, 5, ErrorCode.NONE), (1, -1, MOVED)),
            deleted((0, 5, ErrorCode.NONE), (1, -1, MOVED)),
            deleted((1, 7, ErrorCode.NONE)),
        )
        assert await admin.delete_records({T: 5, U: -1}) == {T: 5, U: 7}
        asked = [
            (broker, [(one.partition_index, one.offset) for one in request.topics[0].partitions])
            for broker, request in cluster.seen
        ]
        assert sorted(asked[:2]) == [(1, [(0, 5)]), (2, [(1, -1)])]
        assert asked[2:] == [(2, [(1, -1)])]  # what is done is not asked for again

    play(scenario)


@pytest.mark.parametrize(
    ("results", "complaint", "definite"),
    [
        ([(0, -1, ErrorCode.OFFSET_OUT_OF_RANGE)], "OFFSET_OUT_OF_RANGE: t-0", True),
        ([(0, -1, ErrorCode.KAFKA_STORAGE_ERROR)], "KAFKA_STORAGE_ERROR: t-0", False),
        ([], "t-0: left out of the answer", False),
    ],
)
def test_a_deletion_that_fails_says_whether_anything_was_deleted(
    results: list[tuple[int, int, ErrorCode]], complaint: str, definite: bool
) -> None:
    async def scenario(cluster: AdminCluster, admin: Admin) -> None:
        cluster.offer(delete_records_.DeleteRecordsRequest, deleted(*results))
        with pytest.raises(KafkaError, match=complaint) as caught:
            await admin.delete_records({T: 5})
        assert caught.value.definite is definite
        with pytest.raises(ValueError, match="an offset is 0 to"):
            await admin.delete_records({T: -2})

    play(scenario, {"default_api_timeout_ms": 200})


def test_offsets_are_asked_by_name_or_time() -> None:
    async def scenario(cluster: AdminCluster, admin: Admin) -> None:
        cluster.fill(4)
        assert await admin.list_offsets({T: "latest"}) == {T: OffsetAndTimestamp(4, -1)}
        assert (await admin.list_offsets({T: "earliest"}))[T].offset == 0
        assert (await admin.list_offsets({T: 17}, "read_committed"))[T].offset == 0
        wrong: Any = "newest"
        with pytest.raises(ValueError, match="t-0: 'newest' is none of 'earliest', 'latest'"):
            await admin.list_offsets({T: wrong})

    play(scenario)


def test_producers_are_told_by_the_leader() -> None:
    async def scenario(cluster: AdminCluster, admin: Admin) -> None:
        cluster.elect(2)
        state = producers_.ProducerState(
            producer_id=4, producer_epoch=1, last_sequence=9, last_timestamp=17
        )
        one = producers_.PartitionResponse(partition_index=0, active_producers=[state])
        topic = producers_.TopicResponse(name="t", partitions=[one])
        cluster.offer(
            producers_.DescribeProducersRequest,
            producers_.DescribeProducersResponse(topics=[topic]),
        )
        (told,) = (await admin.describe_producers([T]))[T]
        assert (told.producer_id, told.last_sequence, told.last_timestamp_ms) == (4, 9, 17)
        assert [broker for broker, _ in cluster.seen] == [2]

    play(scenario)


# --- configuration -------------------------------------------------------------------------------


def altered(code: ErrorCode = ErrorCode.NONE) -> alter_.IncrementalAlterConfigsResponse:
    one = alter_.AlterConfigsResourceResponse(
        error_code=code, error_message="said", resource_type=2, resource_name="t"
    )
    return alter_.IncrementalAlterConfigsResponse(responses=[one])


def test_settings_are_changed_one_by_one() -> None:
    async def scenario(cluster: AdminCluster, admin: Admin) -> None:
        refused = altered(ErrorCode.INVALID_CONFIG)
        empty = alter_.IncrementalAlterConfigsResponse(responses=[])
        cluster.offer(alter_.IncrementalAlterConfigsRequest, altered(), altered(), refused, empty)
        await admin.alter_configs(
            "topic",
            "t",
            {"retention.ms": 5},
            delete=["segment.ms"],
            append={"cleanup.policy": "compact"},
            subtract={"cleanup.policy": "delete"},
            validate_only=True,
        )
        (request,) = cluster.requests()
        assert request.validate_only
        (resource,) = request.resources
        assert (resource.resource_type, resource.resource_name) == (2, "t")
        changes = [(one.name, one.config_operation, one.value) for one in resource.configs]
        assert changes == [
            ("retention.ms", 0, "5"),
            ("cleanup.policy", 2, "compact"),
            ("cleanup.policy", 3, "delete"),
            ("segment.ms", 1, None),
        ]
        await admin.alter_configs("broker", "2", {"log.retention.ms": 1})
        assert cluster.seen[-1][0] == 2  # the broker itself
        with pytest.raises(KafkaError, match="INVALID_CONFIG: t: said") as caught:
            await admin.alter_configs("topic", "t", {"retention.ms": "x"})
        assert caught.value.definite
        with pytest.raises(KafkaError, match="left out") as caught:
            await admin.alter_configs("topic", "t", {"retention.ms": "x"})
        assert not caught.value.definite
        with pytest.raises(ValueError, match="no setting is given"):
            await admin.alter_configs("topic", "t")

    play(scenario)


def test_a_resource_that_cannot_be_is_refused_at_once() -> None:
    async def scenario(cluster: AdminCluster, admin: Admin) -> None:
        cluster.offer(
            describe_configs_.DescribeConfigsRequest,
            describe_configs_.DescribeConfigsResponse(results=[]),
        )
        wrong: Any = "topicc"
        with pytest.raises(ValueError, match="a resource is 'topic' or 'broker', not 'topicc'"):
            await admin.describe_configs(wrong, "t")
        with pytest.raises(ValueError, match="a broker is named by its id, not 'first'"):
            await admin.describe_configs("broker", "first")
        with pytest.raises(KafkaError, match="broker 9 is not among the live ones: 1, 2") as caught:
            await admin.describe_configs("broker", "9")
        assert caught.value.code == ErrorCode.BROKER_ID_NOT_REGISTERED
        assert caught.value.definite
        assert cluster.seen == []

    play(scenario)


def test_what_has_settings_is_listed() -> None:
    async def scenario(cluster: AdminCluster, admin: Admin) -> None:
        found = [
            resources_.ConfigResource(resource_name="t", resource_type=2),
            resources_.ConfigResource(resource_name="1", resource_type=4),
            resources_.ConfigResource(resource_name="?", resource_type=99),
        ]
        cluster.offer(
            resources_.ListConfigResourcesRequest,
            resources_.ListConfigResourcesResponse(config_resources=found),
        )
        assert await admin.list_config_resources(["topic", "broker"]) == [
            about.ConfigResource("99", "?"),
            about.ConfigResource("broker", "1"),
            about.ConfigResource("topic", "t"),
        ]
        assert cluster.requests()[0].resource_types == [2, 4]
        with pytest.raises(ValueError, match="'disk' is none of 'topic', 'broker'"):
            await admin.list_config_resources(["disk"])

    play(scenario)


# --- the cluster ---------------------------------------------------------------------------------


def quorum(code: ErrorCode, leader_id: int = -1) -> quorum_.DescribeQuorumResponse:
    voter = quorum_.ReplicaState(replica_id=1, log_end_offset=7, last_fetch_timestamp=3)
    one = quorum_.ResponsePartitionData(
        error_code=code,
        leader_id=leader_id,
        leader_epoch=4,
        high_watermark=6,
        current_voters=[voter],
        observers=[],
    )
    topic = quorum_.ResponseTopicData(topic_name="__cluster_metadata", partitions=[one])
    return quorum_.DescribeQuorumResponse(topics=[topic])


def test_the_quorum_is_asked_until_it_has_a_leader() -> None:
    async def scenario(cluster: AdminCluster, admin: Admin) -> None:
        empty = quorum_.DescribeQuorumResponse(topics=[])
        answers = quorum(MOVED), quorum(ErrorCode.NONE, 2), empty
        cluster.offer(quorum_.DescribeQuorumRequest, *answers)
        told = await admin.describe_quorum()
        assert (told.leader_id, told.leader_epoch, told.high_watermark) == (2, 4, 6)
        assert [(one.replica_id, one.log_end_offset) for one in told.voters] == [(1, 7)]
        assert told.observers == ()
        with pytest.raises(KafkaError, match="the answer is empty"):
            await admin.describe_quorum()

    play(scenario)


def test_every_broker_tells_its_log_directories() -> None:
    async def scenario(cluster: AdminCluster, admin: Admin) -> None:
        log = log_dirs_.DescribeLogDirsPartition(partition_index=0, partition_size=9, offset_lag=1)
        one = log_dirs_.DescribeLogDirsResult(
            log_dir="/d",
            total_bytes=100,
            usable_bytes=50,
            topics=[log_dirs_.DescribeLogDirsTopic(name="t", partitions=[log])],
        )
        cluster.offer(
            log_dirs_.DescribeLogDirsRequest, log_dirs_.DescribeLogDirsResponse(results=[one])
        )
        told = await admin.describe_log_dirs()
        assert sorted(told) == [1, 2]
        assert told[1]["/d"].replicas == {
            T: about.ReplicaSize(size_bytes=9, offset_lag=1, is_future=False)
        }
        assert (told[2]["/d"].total_bytes, told[2]["/d"].usable_bytes) == (100, 50)
        assert cluster.requests()[0].topics is None
        assert list(await admin.describe_log_dirs([2])) == [2]

    play(scenario)


# --- groups --------------------------------------------------------------------------------------


def test_a_groups_offsets_are_set_in_its_name() -> None:
    async def scenario(cluster: AdminCluster, admin: Admin) -> None:
        await admin.alter_consumer_group_offsets("g", {T: 5})
        assert cluster.commits == [5]
        assert await admin.list_consumer_group_offsets("g", [T]) == {T: OffsetAndMetadata(5)}
        cluster.refusals = [ErrorCode.UNKNOWN_MEMBER_ID]
        text = "UNKNOWN_MEMBER_ID: group g: the offset of t-0 is not committed"
        with pytest.raises(KafkaError, match=text) as caught:
            await admin.alter_consumer_group_offsets("g", {T: 6})
        assert caught.value.definite
        with pytest.raises(ValueError, match="an offset is 0 to"):
            await admin.alter_consumer_group_offsets("g", {T: -1})

    play(scenario)


def forgotten(
    code: ErrorCode, group_code: ErrorCode = ErrorCode.NONE
) -> offset_delete_.OffsetDeleteResponse:
    one = offset_delete_.OffsetDeleteResponsePartition(partition_index=0, error_code=code)
    topic = offset_delete_.OffsetDeleteResponseTopic(name="t", partitions=[one])
    return offset_delete_.OffsetDeleteResponse(error_code=group_code, topics=[topic])


def test_a_groups_offsets_are_deleted() -> None:
    async def scenario(cluster: AdminCluster, admin: Admin) -> None:
        cluster.offer(
            offset_delete_.OffsetDeleteRequest,
            forgotten(ErrorCode.NONE, ErrorCode.NOT_COORDINATOR),
            forgotten(ErrorCode.NONE),
            forgotten(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC),
            forgotten(ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND),
            forgotten(ErrorCode.NONE),
        )
        with pytest.raises(KafkaError, match="NOT_COORDINATOR"):  # may be done: not repeated
            await admin.delete_consumer_group_offsets("g", [T])
        await admin.delete_consumer_group_offsets("g", [T])
        with pytest.raises(KafkaError, match="the offset of t-0 is not deleted") as caught:
            await admin.delete_consumer_group_offsets("g", [T])
        assert caught.value.definite
        with pytest.raises(KafkaError, match="GROUP_ID_NOT_FOUND: group g"):
            await admin.delete_consumer_group_offsets("g", [T])
        with pytest.raises(KafkaError, match="group g: t-1: left out of the answer"):
            await admin.delete_consumer_group_offsets("g", [U])

    play(scenario)


def test_a_group_is_deleted_where_it_is_coordinated_now() -> None:
    async def scenario(cluster: AdminCluster, admin: Admin) -> None:
        codes = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NON_EMPTY_GROUP]
        answers = [
            delete_groups_.DeleteGroupsResponse(
                results=[delete_groups_.DeletableGroupResult(group_id="g", error_code=code)]
            )
            for code in codes
        ]
        cluster.offer(delete_groups_.DeleteGroupsRequest, *answers)
        with pytest.raises(KafkaError, match="COORDINATOR_LOAD_IN_PROGRESS: group g"):
            await admin.delete_consumer_groups(["g"])
        with pytest.raises(KafkaError, match="NON_EMPTY_GROUP: group g") as caught:
            await admin.delete_consumer_groups(["g"])
        assert caught.value.definite

    play(scenario)
