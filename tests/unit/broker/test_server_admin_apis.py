"""The APIs that change topics, asked over a connection in every version; the controller is real."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from quorumlog.broker.controller_requests.image_watch import ImageWatch
from quorumlog.broker.responses.config_alterations import HINTS_MAX
from quorumlog.metadata_quorum.config_changes import ConfigChange, ConfigChanges, ConfigResult
from quorumlog.metadata_quorum.controller_client import ControllerUnavailable, RequestTooLarge
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId
from quorumlog.wire.codec.messages import alter_configs, incremental_alter_configs
from quorumlog.wire.codec.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from quorumlog.wire.codec.messages.create_topics import CreatableTopic, CreateTopicsRequest
from quorumlog.wire.codec.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from quorumlog.wire.codec.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from quorumlog.wire.codec.records import Record, encode_batch
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.groups.asking import asking, create, versions

OTHER = BrokerId(2)
TOPIC, BROKER_RESOURCE = 2, 4
Holds = Callable[[ClusterImage], bool]


async def grow(
    connection: KafkaConnection, *topics: CreatePartitionsTopic, version: int = 3, **more: bool
) -> list[tuple[str, str]]:
    request = CreatePartitionsRequest(topics=[*topics], timeout_ms=1000, **more)
    response = await connection.send(request, version=version)
    return [(result.name, ErrorCode(result.error_code).name) for result in response.results]


# --- CreatePartitions ---


async def test_a_topic_grows_and_takes_records_in_its_new_partitions(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        await create(connection, "t", 1)
        for version in versions(37):
            wanted = CreatePartitionsTopic(name="t", count=version + 2, assignments=None)
            assert await grow(connection, wanted, version=version) == [("t", "NONE")]
            assert len(broker.context.image.topics["t"].partitions) == version + 2
            batch = encode_batch([Record(0, 0, None, b"v")])
            data = PartitionProduceData(index=version + 1, records=batch)
            produce = ProduceRequest(
                acks=-1,
                timeout_ms=1000,
                topic_data=[TopicProduceData(name="t", partition_data=[data])],
            )
            [answer] = (await connection.send(produce, version=9)).responses
            assert answer.partition_responses[0].error_code == ErrorCode.NONE


async def test_growth_is_refused_topic_by_topic(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        await create(connection, "t", 2)
        await create(connection, "u", 1)
        bad = CreatePartitionsAssignment(broker_ids=[7])
        outcomes = await grow(
            connection,
            CreatePartitionsTopic(name="t", count=2, assignments=None),
            CreatePartitionsTopic(name="u", count=2, assignments=[bad]),
            CreatePartitionsTopic(name="none", count=2, assignments=None),
            CreatePartitionsTopic(name="__consumer_offsets", count=99, assignments=None),
        )
        assert outcomes == [
            ("t", "INVALID_PARTITIONS"),
            ("u", "INVALID_REPLICA_ASSIGNMENT"),
            ("none", "UNKNOWN_TOPIC_OR_PARTITION"),
            ("__consumer_offsets", "INVALID_PARTITIONS"),
        ]
        wanted = CreatePartitionsTopic(name="u", count=9, assignments=None)
        assert await grow(connection, wanted, validate_only=True) == [("u", "NONE")]
        assert len(broker.context.image.topics["u"].partitions) == 1


# --- Configurations ---


async def configuration(connection: KafkaConnection, topic: str) -> dict[str, str | None]:
    """Return what DescribeConfigs says that the topic sets itself."""
    resource = DescribeConfigsResource(resource_type=TOPIC, resource_name=topic)
    [result] = (await connection.send(DescribeConfigsRequest(resources=[resource]))).results
    return {config.name: config.value for config in result.configs if config.config_source == 1}


async def replace_configs(
    connection: KafkaConnection,
    name: str,
    configs: dict[str, str | None],
    *,
    resource_type: int = TOPIC,
    version: int = 2,
) -> tuple[str, str | None]:
    resource = alter_configs.AlterConfigsResource(
        resource_type=resource_type,
        resource_name=name,
        configs=[alter_configs.AlterableConfig(name=n, value=v) for n, v in configs.items()],
    )
    request = alter_configs.AlterConfigsRequest(resources=[resource])
    [outcome] = (await connection.send(request, version=version)).responses
    assert (outcome.resource_type, outcome.resource_name) == (resource_type, name)
    return ErrorCode(outcome.error_code).name, outcome.error_message


async def alter_some(
    connection: KafkaConnection,
    name: str,
    *configs: tuple[str, int, str | None],
    resource_type: int = TOPIC,
    version: int = 1,
    validate_only: bool = False,
) -> tuple[str, str | None]:
    resource = incremental_alter_configs.AlterConfigsResource(
        resource_type=resource_type,
        resource_name=name,
        configs=[
            incremental_alter_configs.AlterableConfig(name=n, config_operation=op, value=v)
            for n, op, v in configs
        ],
    )
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(
        resources=[resource], validate_only=validate_only
    )
    [outcome] = (await connection.send(request, version=version)).responses
    return ErrorCode(outcome.error_code).name, outcome.error_message


async def test_a_configuration_is_replaced_as_a_whole(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t")
        for version in versions(33):
            number = str(version + 1)
            wanted: dict[str, str | None] = {"segment.ms": number, "flush.ms": "5"}
            assert await replace_configs(connection, "t", wanted, version=version) == (
                "NONE",
                None,
            )
            assert await configuration(connection, "t") == wanted
        assert await replace_configs(connection, "t", {}) == ("NONE", None)
        assert await configuration(connection, "t") == {}


async def test_single_settings_are_altered_beside_the_others(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t")
        for version in versions(44):
            changes = [("retention.ms", 0, "5"), ("cleanup.policy", 2, "compact")]
            assert await alter_some(connection, "t", *changes, version=version) == (
                "NONE",
                None,
            )
            assert await configuration(connection, "t") == {
                "retention.ms": "5",
                "cleanup.policy": "delete,compact",
            }
            back = [("retention.ms", 1, None), ("cleanup.policy", 3, "delete")]
            await alter_some(connection, "t", *back, version=version)
            assert await configuration(connection, "t") == {"cleanup.policy": "compact"}
            await alter_some(connection, "t", ("cleanup.policy", 1, None), version=version)


async def test_what_is_wrong_with_a_change_is_said_and_nothing_is_changed(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t")
        for changes, error_code, message in (
            ([("retenton.ms", 0, "5")], "INVALID_CONFIG", "did you mean retention.ms"),
            ([("retention.ms", 0, "x")], "INVALID_CONFIG", "Not a number"),
            ([("retention.ms", 0, None)], "INVALID_REQUEST", "Null value"),
            ([("retention.ms", 2, "5")], "INVALID_CONFIG", "not LIST"),
            ([("retention.ms", 9, "5")], "UNKNOWN_SERVER_ERROR", "Unknown operation type 9"),
            ([("flush.ms", 0, "5")] * 2, "INVALID_REQUEST", "duplicate config keys"),
        ):
            refused, why = await alter_some(connection, "t", *changes)
            assert (refused, message in (why or "")) == (error_code, True), (changes, why)
        unknown = ("log.retention.ms", 9, "5")
        refused, why = await alter_some(connection, "1", unknown, resource_type=BROKER_RESOURCE)
        assert (refused, why) == ("INVALID_REQUEST", "Unknown operation type 9")
        refused, why = await alter_some(connection, "none", ("flush.ms", 0, "5"))
        assert (refused, why) == (
            "UNKNOWN_TOPIC_OR_PARTITION",
            "The topic 'none' does not exist.",
        )
        refused, why = await replace_configs(connection, "t", {"flush.ms": None})
        assert (refused, why) == ("INVALID_REQUEST", "Null value not supported for : flush.ms")
        validated = await alter_some(connection, "t", ("flush.ms", 0, "5"), validate_only=True)
        assert validated == ("NONE", None)
        assert await configuration(connection, "t") == {}


@pytest.mark.parametrize(
    ("resource_type", "message"),
    [
        (8, "log levels"),
        (16, "client metrics"),
        (99, "Unknown resource type 99"),
    ],
)
async def test_other_resources_are_refused_and_say_why(
    tmp_path: Path, resource_type: int, message: str
) -> None:
    async with asking(tmp_path) as (_, connection):
        change = ("log.retention.ms", 0, "5")
        outcomes = [
            await alter_some(connection, "1", change, resource_type=resource_type),
            await replace_configs(connection, "1", {}, resource_type=resource_type),
        ]
        for refused, why in outcomes:
            assert refused == "INVALID_REQUEST"
            assert message in (why or "")


async def test_a_setting_is_in_force_once_its_alteration_is_answered(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t")

        async def produce() -> str:
            data = PartitionProduceData(
                index=0, records=encode_batch([Record(0, 0, None, b"v" * 100)])
            )
            topic = TopicProduceData(name="t", partition_data=[data])
            request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])
            [answer] = (await connection.send(request, version=9)).responses
            return ErrorCode(answer.partition_responses[0].error_code).name

        assert await produce() == "NONE"
        await alter_some(connection, "t", ("max.message.bytes", 0, "100"))
        assert await produce() == "MESSAGE_TOO_LARGE"
        await alter_some(connection, "t", ("max.message.bytes", 1, None))
        assert await produce() == "NONE"


# --- DeleteTopics ---


async def test_a_topic_that_has_the_name_of_the_one_that_was_meant_is_not_deleted(
    tmp_path: Path,
) -> None:
    """KIP-516: the client named an id, and this broker knows less than the controller does."""

    async with asking(tmp_path) as (broker, connection):
        old_id = await create(connection, "t")
        image = broker.context.image
        other = await KafkaConnection.open("127.0.0.1", broker.port, client_id="other")
        by_id = DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=old_id)])
        await other.send(by_id, version=6)
        new_id = await create(other, "t")
        broker.metadata.image = image  # as if this broker had heard of none of it
        [outcome] = (await connection.send(by_id, version=6)).responses
        assert outcome.error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert broker.controller.image.topic_names == {new_id: "t"}
        await other.close()


async def test_a_topic_that_is_named_by_name_and_by_id_is_not_deleted(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        topic_id = await create(connection, "t")
        asked = [DeleteTopicState(name="t"), DeleteTopicState(name=None, topic_id=topic_id)]
        response = await connection.send(DeleteTopicsRequest(topics=asked), version=6)
        codes = [outcome.error_code for outcome in response.responses]
        assert codes == [ErrorCode.INVALID_REQUEST] * 2
        assert "t" in broker.context.image.topics


# --- No controller ---


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ControllerUnavailable("silent"), "REQUEST_TIMED_OUT"),
        (RequestTooLarge("too large"), "POLICY_VIOLATION"),
    ],
)
async def test_without_an_answer_of_the_controller_each_topic_is_told_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, expected: str
) -> None:
    async def unavailable(*_: object, **__: object) -> None:
        raise error

    async with asking(tmp_path) as (broker, connection):
        await create(connection, "t")
        methods = "create_topics find_topics delete_topics create_partitions alter_configs"
        for name in methods.split():
            monkeypatch.setattr(broker.controller, name, unavailable)
        wanted = CreatePartitionsTopic(name="t", count=9, assignments=None)
        assert await grow(connection, wanted) == [("t", expected)]
        error_code, message = await alter_some(connection, "t", ("flush.ms", 0, "5"))
        assert error_code == expected
        assert "too large" in (message or "") or "may have been altered" in (message or "")
        deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")])
        [deleted] = (await connection.send(deletion, version=6)).responses
        assert (deleted.name, deleted.error_code) == ("t", ErrorCode[expected])
        creation = CreateTopicsRequest(topics=[CreatableTopic(name="u")])
        [created] = (await connection.send(creation)).topics
        assert (created.name, created.error_code) == ("u", ErrorCode[expected])


async def test_an_alteration_is_seen_though_the_next_one_has_replaced_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asking(tmp_path) as (broker, connection):
        await create(connection, "t")
        alter, wait, waits = broker.controller.alter_configs, ImageWatch.wait_until, list[bool]()

        async def twice(wanted: Sequence[ConfigChanges], **more: bool) -> list[ConfigResult]:
            results = await alter(wanted, **more)
            later = ConfigChange(name="flush.ms", value="6")
            await alter([ConfigChanges(name="t", changes=(later,))])
            return results

        async def shortly(watch: ImageWatch, holds: Holds, *, timeout_ms: int, **more: Any) -> bool:
            waits.append(await wait(watch, holds, timeout_ms=0 * timeout_ms, **more))
            return waits[-1]

        monkeypatch.setattr(broker.controller, "alter_configs", twice)
        monkeypatch.setattr(ImageWatch, "wait_until", shortly)
        assert await alter_some(connection, "t", ("flush.ms", 0, "5")) == ("NONE", None)
        assert waits == [True]
        assert await configuration(connection, "t") == {"flush.ms": "6"}


async def test_settings_of_this_broker_and_of_all_are_altered(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        change = ("log.retention.ms", 0, "5")
        for name in ("1", ""):
            assert await alter_some(connection, name, change, resource_type=BROKER_RESOURCE) == (
                "NONE",
                None,
            )
            assert broker.controller.image.broker_configs[name] == {"log.retention.ms": "5"}
        replaced = await replace_configs(
            connection, "", {"log.retention.bytes": "6"}, resource_type=BROKER_RESOURCE
        )
        assert replaced == ("NONE", None)
        assert broker.controller.image.broker_configs[""] == {"log.retention.bytes": "6"}


@pytest.mark.parametrize("name", ["1", ""])
async def test_names_of_a_broker_that_nothing_goes_by_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """Without their values: an unknown name may be a password of a plug-in."""
    async with asking(tmp_path) as (broker, connection):
        changes = [
            ("num.io.threads", 0, "16"),
            ("num.io.thread", 0, "secret"),
            ("plug\nin", 0, "secret"),
            ("log.retention.ms", 0, "5"),
        ]
        for validate_only in (True, False):
            assert not caplog.messages
            altered = await alter_some(
                connection,
                name,
                *changes,
                resource_type=BROKER_RESOURCE,
                validate_only=validate_only,
            )
            assert altered == ("NONE", None)
        whose = "broker 1" if name else "all brokers"
        assert caplog.messages == [
            f"these settings of Apache Kafka were altered for {whose} and have no effect "
            "here: num.io.threads",
            f"unknown settings altered for {whose}, without effect: "
            "'num.io.thread' (did you mean num.io.threads?), 'plug\\nin'",
        ]
        assert broker.controller.image.broker_configs[name]["plug\nin"] == "secret"


async def test_many_unknown_names_cost_few_comparisons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    searched: list[int] = []

    def search(name: str, known: list[str], n: int) -> list[str]:
        searched.append(len(known))
        return known[:n]

    monkeypatch.setattr("difflib.get_close_matches", search)
    async with asking(tmp_path) as (_, connection):
        changes = [(f"num.io.thread{i:03}", 0, "1") for i in range(200)]
        altered = await alter_some(connection, "", *changes, resource_type=BROKER_RESOURCE)
        assert altered == ("NONE", None)
    assert len(searched) == HINTS_MAX
    assert caplog.messages[0].endswith(", and 180 more")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("2", ("log.retention.ms", 0, "5"), "Unexpected broker id, expected 1"),
        ("x", ("log.retention.ms", 0, "5"), "Unexpected broker id, expected 1"),
        ("1", ("node.id", 0, "5"), "Cannot update these configs dynamically: Set(node.id)"),
        ("", ("replica.fetch.max.bytes", 0, "5"), "dynamically: Set(replica.fetch.max.bytes)"),
        ("", ("socket.send.buffer.bytes", 0, "5"), "dynamically: Set(socket.send.buffer.bytes)"),
        ("", ("log.retention.hours", 0, "5"), "dynamically: Set(log.retention.hours)"),
        ("1", ("transaction.partition.verification.enable", 0, "false"), "dynamically: Set("),
        ("1", ("ssl.keystore.location", 0, "/k"), "ssl.keystore.location: not supported"),
        ("1", ("num.io.threads", 0, "x"), "Invalid value x for configuration num.io.threads"),
        ("1", ("unclean.leader.election.enable", 0, "true"), "is for all brokers"),
    ],
)
async def test_what_a_broker_cannot_alter_is_refused(
    tmp_path: Path, name: str, change: tuple[str, int, str], message: str
) -> None:
    async with asking(tmp_path) as (broker, connection):
        refused, why = await alter_some(connection, name, change, resource_type=BROKER_RESOURCE)
        assert (refused, message in (why or "")) == ("INVALID_REQUEST", True), why
        assert not broker.controller.image.broker_configs
