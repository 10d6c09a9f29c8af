"""ElectLeaders, DescribeQuorum and reassignments over a connection; when they are answered."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quorumlog.broker.controller_requests import image_watch
from quorumlog.broker.handlers.elect_leaders import LOOKED_AT_AT_ONCE, _led_by_another
from quorumlog.metadata_quorum.controller_client import (
    ControllerUnavailable,
    QuorumDescription,
    QuorumReplica,
)
from quorumlog.metadata_quorum.controller_requests import (
    DescribeQuorum,
    ElectionResults,
    ElectLeaders,
)
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage, PartitionImage, TopicImage
from quorumlog.storage.io.checkpoints import uuid_to_text
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset, TopicId, TopicPartition
from quorumlog.wire.codec.message import Request
from quorumlog.wire.codec.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from quorumlog.wire.codec.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from quorumlog.wire.codec.messages.create_topics import CreateTopicsRequest
from quorumlog.wire.codec.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from quorumlog.wire.codec.messages.describe_quorum import (
    DescribeQuorumRequest,
    RequestPartitionData,
    RequestTopicData,
)
from quorumlog.wire.codec.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from quorumlog.wire.codec.messages.find_coordinator import FindCoordinatorRequest
from quorumlog.wire.codec.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from quorumlog.wire.codec.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from quorumlog.wire.codec.messages.metadata import MetadataRequest, MetadataRequestTopic
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.broker.replicas import broker as registered
from tests.support.broker.requests import list_offset, lose_controller, topic_creation
from tests.support.groups.asking import asking, create, versions
from tests.support.groups.single_broker import BROKER, SingleBroker
from tests.support.waiting import loop_turns, until

OTHER = BrokerId(2)
TOPIC, BROKER_RESOURCE = 2, 4


def register_other(broker: SingleBroker, *, fenced: bool = False) -> None:
    """Register a second broker, which nothing runs."""
    brokers = {**broker.controller.image.brokers, OTHER: registered(OTHER, 2, fenced=fenced)}
    broker.controller.publish(ClusterDelta(brokers=frozenset({OTHER})), brokers=brokers)


def led_by(leader: BrokerId, replicas: tuple[BrokerId, ...], partitions: int) -> TopicImage:
    partition = PartitionImage(
        leader_id=leader,
        leader_epoch=Epoch(4),
        partition_epoch=Epoch(4),
        replicas=replicas,
        isr=replicas,
    )
    return TopicImage(name="t", topic_id=TopicId(b"t" * 16), partitions=(partition,) * partitions)


def led_by_other(broker: SingleBroker, name: str, preferred: BrokerId, partitions: int) -> None:
    """Let the second broker lead partitions of which `preferred` is the first replica."""
    topic_id = TopicId(name.encode().ljust(16, b"."))
    made = led_by(OTHER, (preferred, *({BROKER, OTHER} - {preferred})), partitions)
    topic, image = replace(made, name=name, topic_id=topic_id), broker.controller.image
    places = frozenset(TopicPartition(name, index) for index in range(partitions))
    broker.controller.publish(
        ClusterDelta(partitions=places),
        topics={**image.topics, name: topic},
        topic_names={**image.topic_names, topic_id: name},
    )


async def elect(
    connection: KafkaConnection,
    asked: dict[str, list[int]] | None,
    *,
    election_type: int = 0,
    version: int = 2,
    timeout_ms: int = 10_000,
) -> tuple[ErrorCode, dict[tuple[str, int], str]]:
    topics = None
    if asked is not None:
        topics = [TopicPartitions(topic=name, partitions=parts) for name, parts in asked.items()]
    request = ElectLeadersRequest(
        election_type=election_type, topic_partitions=topics, timeout_ms=timeout_ms
    )
    response = await connection.send(request, version=version)
    outcomes = {
        (topic.topic, partition.partition_id): ErrorCode(partition.error_code).name
        for topic in response.replica_election_results
        for partition in topic.partition_result
    }
    return ErrorCode(response.error_code), outcomes


async def test_preferred_leaders_take_over_where_they_are_named_not_unclean_ones(
    tmp_path: Path,
) -> None:
    async with asking(tmp_path) as (broker, connection):
        register_other(broker)
        for version in versions(43):
            name = f"t{version}"
            led_by_other(broker, name, BROKER, 2)
            asked = {name: [1, 7], "none": [0]}
            error_code, outcomes = await elect(connection, asked, version=version)
            assert error_code is ErrorCode.NONE
            assert outcomes == {
                (name, 1): "NONE",
                (name, 7): "UNKNOWN_TOPIC_OR_PARTITION",
                ("none", 0): "UNKNOWN_TOPIC_OR_PARTITION",
            }
            first, second = broker.context.image.topics[name].partitions
            assert (first.leader_id, second.leader_id) == (OTHER, BROKER)
            assert second.leader_epoch == 5
        led_by_other(broker, "t", BROKER, 1)
        unclean = await elect(connection, {"t": [0]}, election_type=1)
        assert unclean == (ErrorCode.NONE, {("t", 0): "ELECTION_NOT_NEEDED"})
        unknown = await elect(connection, {"t": [0]}, election_type=2)
        assert unknown == (ErrorCode.INVALID_REQUEST, {("t", 0): "INVALID_REQUEST"})
        of_all = await elect(connection, None, election_type=2)
        assert of_all == (ErrorCode.INVALID_REQUEST, {})


async def test_without_topics_all_partitions_are_looked_at_and_only_news_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorumlog.broker.handlers.elect_leaders.ASKED_AT_ONCE", 2)
    async with asking(tmp_path) as (broker, connection):
        register_other(broker)
        await create(connection, "led")
        led_by_other(broker, "away", BROKER, 5)
        led_by_other(broker, "at_home", OTHER, 1)
        assert await elect(connection, None) == (
            ErrorCode.NONE,
            {("away", index): "NONE" for index in range(5)},
        )
        leaders = {one.leader_id for one in broker.context.image.topics["away"].partitions}
        assert leaders == {BROKER}
        assert await elect(connection, None) == (ErrorCode.NONE, {})
        needless = await elect(connection, {"away": [0]})
        assert needless == (ErrorCode.NONE, {("away", 0): "ELECTION_NOT_NEEDED"})


async def test_a_look_at_all_partitions_makes_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = led_by(OTHER, (BROKER, OTHER), 2 * LOOKED_AT_AT_ONCE + 1)
    pauses = []
    sleep = asyncio.sleep

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", pause)
    image = ClusterImage(topics={"t": topic})
    found = [at async for at in _led_by_another(image, unclean=False)]
    assert len(found) == len(topic.partitions)
    assert pauses == [0, 0]


async def test_what_is_not_decided_in_time_is_told_partition_by_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorumlog.broker.handlers.elect_leaders.ASKED_AT_ONCE", 1)
    async with asking(tmp_path) as (broker, connection):
        register_other(broker)
        led_by_other(broker, "t", BROKER, 3)
        ask = broker.controller.ask

        async def first_only(request: ElectLeaders) -> ElectionResults:
            if request.partitions != (("t", 0),):
                raise ControllerUnavailable
            return await ask(request)

        monkeypatch.setattr(broker.controller, "ask", first_only)
        _, outcomes = await elect(connection, {"t": [0, 1, 2]})
        assert [*outcomes.values()] == ["NONE", "REQUEST_TIMED_OUT", "REQUEST_TIMED_OUT"]


# --- DescribeQuorum ---


def quorum_of(*topics: tuple[str, list[int]]) -> DescribeQuorumRequest:
    return DescribeQuorumRequest(
        topics=[
            RequestTopicData(
                topic_name=name,
                partitions=[RequestPartitionData(partition_index=index) for index in indexes],
            )
            for name, indexes in topics
        ]
    )


async def test_the_quorum_is_described_by_its_leader(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        for version in versions(55):
            request = quorum_of(("__cluster_metadata", [0]))
            response = await connection.send(request, version=version)
            assert response.error_code == ErrorCode.NONE
            [partition] = response.topics[0].partitions
            assert (partition.leader_id, partition.leader_epoch) == (BROKER, 3)
            assert partition.high_watermark == 6
            [voter], [observer] = partition.current_voters, partition.observers
            assert (voter.replica_id, voter.log_end_offset) == (BROKER, 7)
            assert (observer.replica_id, observer.log_end_offset) == (9, 6)
            if version >= 1:
                assert (voter.last_fetch_timestamp, voter.last_caught_up_timestamp) == (5, 4)
                assert observer.last_fetch_timestamp == -1
            if version >= 2:
                [node] = response.nodes
                [listener] = node.listeners
                assert (node.node_id, listener.host, listener.port) == (BROKER, "::1", 9093)
        for asked in [("t", [0])], [("__cluster_metadata", [1])], []:  # no other has a quorum
            response = await connection.send(quorum_of(*asked), version=2)
            codes = [part.error_code for topic in response.topics for part in topic.partitions]
            assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * len(asked)


async def test_a_replica_of_the_quorum_has_the_directory_that_it_or_its_registration_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [bytes([number]) * 16 for number in (1, 2)]
    registered_in, fetches_from = map(uuid_to_text, ids)
    async with asking(tmp_path) as (broker, connection):
        ours = replace(broker.controller.image.brokers[BROKER], directory_id=registered_in)
        unreadable = replace(registered(BrokerId(3), 2), directory_id="no id")
        broker.controller.publish(ClusterDelta(), brokers={BROKER: ours, BrokerId(3): unreadable})
        described = await broker.controller.ask(DescribeQuorum())
        replicas = [
            QuorumReplica(replica_id=BROKER, log_end_offset=Offset(7)),
            QuorumReplica(replica_id=BROKER, log_end_offset=Offset(7), directory_id=fetches_from),
            QuorumReplica(replica_id=BrokerId(3), log_end_offset=Offset(7)),
            QuorumReplica(replica_id=BrokerId(4), log_end_offset=Offset(7)),
        ]

        async def describe(_: object) -> QuorumDescription:
            return replace(described, voters=tuple(replicas))

        monkeypatch.setattr(broker.controller, "ask", describe)
        asked = quorum_of(("__cluster_metadata", [0]))
        response = await connection.send(asked, version=2)
        voters = response.topics[0].partitions[0].current_voters
        assert [one.replica_directory_id for one in voters] == [*ids, bytes(16), bytes(16)]


async def test_without_a_controller_the_outcome_is_said_to_be_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asking(tmp_path) as (broker, connection):
        lose_controller(monkeypatch, broker)
        _, outcomes = await elect(connection, {"t": [0]})
        assert outcomes == {("t", 0): "REQUEST_TIMED_OUT"}
        described = await connection.send(quorum_of(("__cluster_metadata", [0])), version=2)
        assert described.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert await reassign(connection, [1]) == (ErrorCode.REQUEST_TIMED_OUT, {})


# --- An answer waits for this broker's own metadata ---


def growth() -> CreatePartitionsRequest:
    wanted = CreatePartitionsTopic(name="t", count=2, assignments=None)
    return CreatePartitionsRequest(topics=[wanted], timeout_ms=10_000)


def alteration() -> IncrementalAlterConfigsRequest:
    config = AlterableConfig(name="flush.ms", config_operation=0, value="5")
    resource = AlterConfigsResource(resource_type=2, resource_name="t", configs=[config])
    return IncrementalAlterConfigsRequest(resources=[resource])


def election() -> ElectLeadersRequest:
    return ElectLeadersRequest(
        topic_partitions=[TopicPartitions(topic="t", partitions=[0])], timeout_ms=10_000
    )


def deletion() -> DeleteTopicsRequest:
    return DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=10_000)


@pytest.mark.parametrize("request_of", [growth, alteration, election, deletion])
async def test_an_answer_waits_until_this_broker_knows_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_of: Callable[[], Request[Any]]
) -> None:
    async with asking(tmp_path) as (broker, connection):
        register_other(broker)
        led_by_other(broker, "t", BROKER, 1)
        order: list[str] = []
        publish = broker.controller.publish

        def publish_late(delta: ClusterDelta, **changes: object) -> None:
            def act() -> None:
                order.append("published")
                publish(delta, **changes)

            asyncio.get_running_loop().call_later(0.05, act)

        monkeypatch.setattr(broker.controller, "publish", publish_late)
        await connection.send(request_of())
        order.append("answered")
        assert order == ["published", "answered"]


# --- An answer waits until this broker serves the new partitions that it leads ---


def creation() -> CreateTopicsRequest:
    return topic_creation("new", 2)


def lookup() -> MetadataRequest:
    return MetadataRequest(
        topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=True
    )


def coordinator_lookup() -> FindCoordinatorRequest:
    return FindCoordinatorRequest(key="g", coordinator_keys=["g"])


async def first_offset(connection: KafkaConnection, topic: str, partition: int) -> ErrorCode:
    return ErrorCode(
        (await list_offset(connection, -2, topic=topic, partition=partition)).error_code
    )


@pytest.mark.parametrize(
    ("request_of", "topic", "partition"),
    [
        (creation, "new", 1),
        (lookup, "new", 0),
        (growth, "t", 1),
        (coordinator_lookup, "__consumer_offsets", 2),
    ],
)
async def test_an_answer_waits_until_this_broker_serves_the_partitions_that_it_made(
    tmp_path: Path, request_of: Callable[[], Request[Any]], topic: str, partition: int
) -> None:
    async with asking(tmp_path) as (broker, connection):
        await create(connection, "t", partitions=1)
        broker.disk_queue.is_held = True
        answer = asyncio.create_task(connection.send(request_of()))
        await until(lambda: broker.metadata.is_to_lead(TopicPartition(topic, partition)))
        await loop_turns()
        assert not answer.done()
        broker.disk_queue.release()
        await answer
        assert await first_offset(connection, topic, partition) is ErrorCode.NONE


async def test_metadata_of_a_topic_of_another_connection_waits_as_well(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        broker.disk_queue.is_held = True
        other = await KafkaConnection.open("127.0.0.1", broker.port, client_id="other")
        made = asyncio.create_task(other.send(creation()))
        await until(lambda: "new" in broker.metadata.image.topics)
        lookups = [asyncio.create_task(connection.send(lookup())), made]
        await loop_turns()
        assert not any(one.done() for one in lookups)
        broker.disk_queue.release()
        await asyncio.gather(*lookups)
        assert await first_offset(connection, "new", 0) is ErrorCode.NONE
        await other.close()


@pytest.mark.parametrize("timeout_ms", [0, 30_000])
async def test_an_answer_waits_for_a_log_that_is_not_opened_no_longer_than_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timeout_ms: int
) -> None:
    monkeypatch.setattr(image_watch, "SEEN_HERE_MS", 50)
    async with asking(tmp_path) as (broker, connection):
        broker.disk_queue.is_held = True
        request = creation()
        request.timeout_ms = timeout_ms
        async with asyncio.timeout(10):
            response = await connection.send(request)
        assert response.topics[0].error_code == ErrorCode.NONE
        assert await first_offset(connection, "new", 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        broker.disk_queue.release()


# --- A timeout of 0 bounds how long an answer waits, not what is done ---


async def test_a_request_with_a_timeout_of_0_is_carried_out_and_answered(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        requests = (creation(), growth(), election(), deletion())
        await create(connection, "t", partitions=1)
        for request in requests:
            request.timeout_ms = 0
        created, grown, elected, deleted = [await connection.send(one) for one in requests]
        assert [topic.error_code for topic in created.topics] == [ErrorCode.NONE]
        assert [topic.error_code for topic in grown.results] == [ErrorCode.NONE]
        [outcome] = elected.replica_election_results[0].partition_result
        assert outcome.error_code == ErrorCode.ELECTION_NOT_NEEDED
        assert [topic.error_code for topic in deleted.responses] == [ErrorCode.NONE]
        assert [*broker.controller.image.topics] == ["new"]


Outcomes = dict[tuple[str, int], str]


async def reassign(
    connection: KafkaConnection,
    replicas: list[int] | None,
    index: int = 0,
    *,
    version: int = 1,
    allow: bool = True,
) -> tuple[ErrorCode, Outcomes]:
    partition = ReassignablePartition(partition_index=index, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name="t", partitions=[partition])],
        allow_replication_factor_change=allow,
        timeout_ms=1_000,
    )
    response = await connection.send(request, version=version)
    outcomes = {
        (topic.name, one.partition_index): ErrorCode(one.error_code).name
        for topic in response.responses
        for one in topic.partitions
    }
    return ErrorCode(response.error_code), outcomes


async def ongoing(
    connection: KafkaConnection, topics: dict[str, list[int]] | None
) -> list[tuple[str, int, list[int], list[int], list[int]]]:
    asked = [
        ListPartitionReassignmentsTopics(name=name, partition_indexes=indexes)
        for name, indexes in (topics or {}).items()
    ]
    response = await connection.send(ListPartitionReassignmentsRequest(topics=asked or None))
    assert response.error_code == ErrorCode.NONE
    return [
        (t.name, p.partition_index, p.replicas, p.adding_replicas, p.removing_replicas)
        for t in response.topics
        for p in t.partitions
    ]


async def test_a_reassignment_begins_is_listed_and_is_cancelled_or_refused_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorumlog.broker.handlers.reassignments.LOOKED_AT_AT_ONCE", 2)
    async with asking(tmp_path) as (broker, connection):
        register_other(broker)
        await create(connection, "t", 2)
        none = ErrorCode.NONE
        for version in versions(45):
            assert await reassign(connection, [2], version=version) == (none, {("t", 0): "NONE"})
            moving = [("t", 0, [2, 1], [2], [1])]
            assert await ongoing(connection, None) == moving
            assert await ongoing(connection, {"t": [0, 1, 7], "none": [0]}) == moving
            assert await ongoing(connection, {"t": [1]}) == []
            assert await reassign(connection, None, version=version) == (none, {("t", 0): "NONE"})
            assert await ongoing(connection, None) == []
        for refused, why in (
            (await reassign(connection, None), {("t", 0): "NO_REASSIGNMENT_IN_PROGRESS"}),
            (await reassign(connection, [1, 9]), {("t", 0): "INVALID_REPLICA_ASSIGNMENT"}),
            (await reassign(connection, [1], 5), {("t", 5): "UNKNOWN_TOPIC_OR_PARTITION"}),
            (
                await reassign(connection, [1, 2], allow=False),
                {("t", 0): "INVALID_REPLICATION_FACTOR"},
            ),
        ):
            assert refused == (none, why)

        assert await ongoing(connection, None) == []
