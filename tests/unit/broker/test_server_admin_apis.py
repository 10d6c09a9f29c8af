"""The APIs that change topics and settings, asked over a connection; the controller is real."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quorumlog.broker.controller_requests.image_watch import ImageWatch
from quorumlog.broker.responses.config_alterations import HINTS_MAX
from quorumlog.broker.settings import BrokerSettings
from quorumlog.metadata_quorum.cluster_changes import ConfigChange, ConfigChanges
from quorumlog.metadata_quorum.controller_client import ControllerUnavailable, RequestTooLarge
from quorumlog.metadata_quorum.controller_requests import AlterConfigs, ConfigResults
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages import alter_configs, incremental_alter_configs
from quorumlog.wire.codec.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from quorumlog.wire.codec.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from quorumlog.wire.codec.messages.list_config_resources import ListConfigResourcesRequest
from quorumlog.wire.codec.records import Record, encode_batch
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.broker.requests import describe_configs, lose_controller, produce, topic_creation
from tests.support.groups.asking import asking, coordinator_is_ready, create, versions
from tests.unit.broker.test_server_configs import describe
from tests.unit.broker.test_server_group_apis import FEATURES, first_heartbeat

TOPIC, BROKER_RESOURCE, CLIENT_METRICS, GROUP = 2, 4, 16, 32
DONE = ("NONE", None)
Holds = Callable[[ClusterImage], bool]


async def grow(
    connection: KafkaConnection, *topics: CreatePartitionsTopic, version: int = 3, **more: bool
) -> list[tuple[str, str]]:
    request = CreatePartitionsRequest(topics=[*topics], timeout_ms=1000, **more)
    response = await connection.send(request, version=version)
    return [(result.name, ErrorCode(result.error_code).name) for result in response.results]


# --- CreatePartitions ---


async def test_topics_grow_and_take_records_or_are_refused_one_by_one(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        await create(connection, "t", 1)
        for version in versions(37):
            wanted = CreatePartitionsTopic(name="t", count=version + 2, assignments=None)
            assert await grow(connection, wanted, version=version) == [("t", "NONE")]
            assert len(broker.context.image.topics["t"].partitions) == version + 2
            batch = encode_batch([Record(0, 0, None, b"v")])
            answer = await produce(connection, batch, partition=version + 1)
            assert answer.error_code == ErrorCode.NONE
        await create(connection, "u", 1)
        bad = CreatePartitionsAssignment(broker_ids=[7])
        outcomes = await grow(
            connection,
            CreatePartitionsTopic(name="t", count=3, assignments=None),
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
    """Return the settings that the topic sets itself."""
    found = (await describe_configs(connection, TOPIC, topic)).configs
    return {config.name: config.value for config in found if config.config_source == 1}


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


async def test_a_configuration_is_replaced_as_a_whole_or_altered_in_parts(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t")
        for version in versions(33):
            number = str(version + 1)
            wanted: dict[str, str | None] = {"segment.ms": number, "flush.ms": "5"}
            assert await replace_configs(connection, "t", wanted, version=version) == DONE
            assert await configuration(connection, "t") == wanted
        assert await replace_configs(connection, "t", {}) == DONE
        assert await configuration(connection, "t") == {}
        for version in versions(44):
            changes = [("retention.ms", 0, "5"), ("cleanup.policy", 2, "compact")]
            assert await alter_some(connection, "t", *changes, version=version) == DONE
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
        assert refused == "UNKNOWN_TOPIC_OR_PARTITION"
        assert why == "The topic 'none' does not exist."
        refused, why = await replace_configs(connection, "t", {"flush.ms": None})
        assert (refused, why) == ("INVALID_REQUEST", "Null value not supported for : flush.ms")
        validated = await alter_some(connection, "t", ("flush.ms", 0, "5"), validate_only=True)
        assert validated == DONE
        assert await configuration(connection, "t") == {}
        for resource_type, message in ((8, "log levels"), (99, "Unknown resource type 99")):
            change = ("log.retention.ms", 0, "5")
            for refused, why in (
                await alter_some(connection, "1", change, resource_type=resource_type),
                await replace_configs(connection, "1", {}, resource_type=resource_type),
            ):
                assert (refused, message in (why or "")) == ("INVALID_REQUEST", True)


async def test_a_subscription_to_metrics_is_altered_beside_a_topic(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t")
        change = ("metrics", 0, "a.,b.")
        assert await alter_some(connection, "s", change, resource_type=CLIENT_METRICS) == DONE
        shown = (await describe_configs(connection, CLIENT_METRICS, "s")).configs
        assert {one.name: (one.value, one.config_source) for one in shown} == {
            "interval.ms": ("300000", 5),
            "match": ("", 5),
            "metrics": ("a.,b.", 7),
        }
        refused, why = await alter_some(connection, "", change, resource_type=CLIENT_METRICS)
        assert (refused, why) == (
            "INVALID_REQUEST",
            "Default client metrics resources are not allowed.",
        )
        unnamed = await describe_configs(connection, CLIENT_METRICS, "")
        assert unnamed.error_code == ErrorCode.INVALID_REQUEST
        assert await replace_configs(connection, "s", {}, resource_type=CLIENT_METRICS) == DONE
        listed = await connection.send(ListConfigResourcesRequest(), version=0)
        assert listed.config_resources == []


async def test_a_setting_is_in_force_once_its_alteration_is_answered(tmp_path: Path) -> None:
    large = encode_batch([Record(0, 0, None, b"v" * 100)])
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t")
        assert (await produce(connection, large)).error_code == ErrorCode.NONE
        await alter_some(connection, "t", ("max.message.bytes", 0, "100"))
        assert (await produce(connection, large)).error_code == ErrorCode.MESSAGE_TOO_LARGE
        await alter_some(connection, "t", ("max.message.bytes", 1, None))
        assert (await produce(connection, large)).error_code == ErrorCode.NONE


# --- DeleteTopics ---


async def test_a_topic_with_the_name_of_the_one_that_was_meant_stays(tmp_path: Path) -> None:
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
        assert (outcome.error_code, outcome.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, old_id)
        assert broker.controller.image.topic_names == {new_id: "t"}
        await other.close()


async def test_a_topic_that_is_named_twice_by_its_id_is_not_deleted(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        topic_id = await create(connection, "t")
        asked = [DeleteTopicState(name=None, topic_id=topic_id)] * 2
        response = await connection.send(DeleteTopicsRequest(topics=asked), version=6)
        codes = {outcome.error_code for outcome in response.responses}
        assert codes == {ErrorCode.INVALID_REQUEST}
        assert "t" in broker.context.image.topics


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
    async with asking(tmp_path) as (broker, connection):
        await create(connection, "t")
        lose_controller(monkeypatch, broker, error)
        wanted = CreatePartitionsTopic(name="t", count=9, assignments=None)
        assert await grow(connection, wanted) == [("t", expected)]
        error_code, message = await alter_some(connection, "t", ("flush.ms", 0, "5"))
        assert error_code == expected
        assert "too large" in (message or "") or "may have been altered" in (message or "")
        deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")])
        [deleted] = (await connection.send(deletion, version=6)).responses
        assert (deleted.name, deleted.error_code) == ("t", ErrorCode[expected])
        [created] = (await connection.send(topic_creation("u"))).topics
        assert (created.name, created.error_code) == ("u", ErrorCode[expected])


async def test_an_alteration_is_seen_though_the_next_one_has_replaced_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asking(tmp_path) as (broker, connection):
        await create(connection, "t")
        ask, wait, waits = broker.controller.ask, ImageWatch.wait_until, list[bool]()

        async def twice(request: AlterConfigs) -> ConfigResults:
            results = await ask(request)
            later = ConfigChange(name="flush.ms", value="6")
            await ask(AlterConfigs(topics=(ConfigChanges(name="t", changes=(later,)),)))
            return results

        async def shortly(watch: ImageWatch, holds: Holds, *, timeout_ms: int, **more: Any) -> bool:
            waits.append(await wait(watch, holds, timeout_ms=0 * timeout_ms, **more))
            return waits[-1]

        monkeypatch.setattr(broker.controller, "ask", twice)
        monkeypatch.setattr(ImageWatch, "wait_until", shortly)
        assert await alter_some(connection, "t", ("flush.ms", 0, "5")) == DONE
        assert waits == [True]
        assert await configuration(connection, "t") == {"flush.ms": "6"}


async def test_settings_of_this_broker_and_of_all_are_altered(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        change = ("log.retention.ms", 0, "5")
        for name in ("1", ""):
            altered = await alter_some(connection, name, change, resource_type=BROKER_RESOURCE)
            assert altered == DONE
            assert broker.controller.image.broker_configs[name] == {"log.retention.ms": "5"}
        replaced = await replace_configs(
            connection, "", {"log.retention.bytes": "6"}, resource_type=BROKER_RESOURCE
        )
        assert replaced == DONE
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
            more: Any = {"resource_type": BROKER_RESOURCE, "validate_only": validate_only}
            assert await alter_some(connection, name, *changes, **more) == DONE
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
        assert altered == DONE
    assert len(searched) == HINTS_MAX
    assert caplog.messages[0].endswith(", and 180 more")


async def test_what_a_broker_cannot_alter_is_refused(tmp_path: Path) -> None:
    refusals = (
        ("2", ("log.retention.ms", 0, "5"), "Unexpected broker id, expected 1"),
        ("x", ("log.retention.ms", 0, "5"), "Unexpected broker id, expected 1"),
        ("1", ("node.id", 0, "5"), "Cannot update these configs dynamically: [node.id]"),
        ("", ("replica.fetch.max.bytes", 0, "5"), "dynamically: [replica.fetch.max.bytes]"),
        ("", ("socket.send.buffer.bytes", 0, "5"), "dynamically: [socket.send.buffer.bytes]"),
        ("", ("log.retention.hours", 0, "5"), "dynamically: [log.retention.hours]"),
        ("1", ("transaction.partition.verification.enable", 0, "false"), "dynamically: ["),
        ("1", ("ssl.cipher.suites", 0, "x"), "ssl.cipher.suites: not supported"),
        ("1", ("num.io.threads", 0, "x"), "Invalid value x for configuration num.io.threads"),
        ("1", ("unclean.leader.election.enable", 0, "true"), "is for all brokers"),
        ("", ("remote.log.storage.system.enable", 0, "true"), "[remote.log.storage.system.enable]"),
    )
    async with asking(tmp_path) as (broker, connection):
        for name, change, message in refusals:
            refused, why = await alter_some(connection, name, change, resource_type=BROKER_RESOURCE)
            assert (refused, message in (why or "")) == ("INVALID_REQUEST", True), why
            assert not broker.controller.image.broker_configs


async def test_a_topic_with_tiered_storage_is_refused_as_without_that_system(
    tmp_path: Path,
) -> None:
    """The code is Kafka's, from brokers with remote.log.storage.system.enable=false."""
    tiered = "remote.storage.enable"
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t")
        code, why = await alter_some(connection, "t", (tiered, 0, "true"))
        assert (code, "Tiered storage is not supported" in (why or "")) == ("INVALID_CONFIG", True)
        allowed = (tiered, 0, "false"), ("remote.log.copy.disable", 0, "true")
        assert await alter_some(connection, "t", *allowed) == ("NONE", None)


SET, DELETE = 0, 1
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


async def listed(connection: KafkaConnection) -> list[tuple[int, str]]:
    request = ListConfigResourcesRequest(resource_types=[GROUP])
    answer = await connection.send(request)
    return [(one.resource_type, one.resource_name) for one in answer.config_resources]


async def alter(
    connection: KafkaConnection, name: str, *changes: tuple[str, int, str | None]
) -> str:
    code, message = await alter_some(connection, name, *changes, resource_type=GROUP)
    return message or code


async def test_what_a_group_sets_is_described_with_its_sources_and_listed(tmp_path: Path) -> None:
    settings = BrokerSettings(group_consumer_heartbeat_interval_ms=6000)
    async with asking(tmp_path, settings) as (_, connection):
        unset = await describe(connection, GROUP, "g", include_synonyms=True)
        assert {name: (one.value, one.config_source) for name, one in unset.items()} == {
            SESSION: ("45000", 5),
            HEARTBEAT: ("6000", 4),
        }
        assert await listed(connection) == []
        assert await alter(connection, "g", (SESSION, SET, "50000")) == "NONE"
        found = await describe(connection, GROUP, "g", include_synonyms=True)
        own, of_broker = [(one.name, one.value, one.source) for one in found[SESSION].synonyms]
        assert own == (SESSION, "50000", 8)
        assert of_broker == ("group.consumer.session.timeout.ms", "45000", 5)
        assert (found[SESSION].value, found[SESSION].read_only) == ("50000", False)
        assert await listed(connection) == [(GROUP, "g")]
        assert await alter(connection, "g", (SESSION, DELETE, None)) == "NONE"
        assert await listed(connection) == []


async def test_every_version_alters_groups_and_says_what_is_wrong(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        for version in versions(44):
            change = (SESSION, SET, str(50_000 + version))
            more: Any = {"resource_type": GROUP, "version": version}
            assert await alter_some(connection, "g", change, **more) == DONE
        for version in versions(33):
            configs: dict[str, str | None] = {HEARTBEAT: str(6000 + version)}
            more = {"resource_type": GROUP, "version": version}
            assert await replace_configs(connection, "g", configs, **more) == DONE
            found = await describe(connection, GROUP, "g")
            assert (found[SESSION].value, found[HEARTBEAT].value) == ("45000", configs[HEARTBEAT])
        refused = await alter_some(connection, "g", (SESSION, SET, "1"), resource_type=GROUP)
        assert refused == (
            ErrorCode.INVALID_CONFIG.name,
            f"{SESSION} must be greater than or equal to group.consumer.min.session.timeout.ms",
        )
        unnamed = await alter_some(connection, "", (SESSION, SET, "50000"), resource_type=GROUP)
        assert unnamed == ("INVALID_REQUEST", "Default group resources are not allowed.")


async def test_a_running_group_goes_by_what_is_altered(tmp_path: Path) -> None:
    """The next answer has the new interval."""
    async with asking(tmp_path, features=FEATURES) as (_, connection):
        await create(connection, "t")
        await coordinator_is_ready(connection)
        joined = await connection.send(first_heartbeat())
        assert joined.heartbeat_interval_ms == 5000
        assert await alter(connection, "g", (HEARTBEAT, SET, "7000")) == "NONE"
        again = await connection.send(first_heartbeat(member_epoch=joined.member_epoch))
        other = await connection.send(first_heartbeat(group_id="h"))
        assert (again.heartbeat_interval_ms, other.heartbeat_interval_ms) == (7000, 5000)
        assert await alter(connection, "g", (HEARTBEAT, DELETE, None)) == "NONE"
        again = await connection.send(first_heartbeat(member_epoch=joined.member_epoch))
        assert again.heartbeat_interval_ms == 5000


async def test_other_types_of_groups_are_refused_with_a_sentence(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        for name, subject in (
            ("share.auto.offset.reset", "share groups (KIP-932)"),
            ("streams.num.standby.replicas", "streams groups (KIP-1071)"),
            ("consumer.assignment.interval.ms", "delayed and offloaded assignments (KIP-1263)"),
        ):
            said = await alter(connection, "g", (name, SET, "1"))
            assert said == f"{name} is a setting of {subject}, which this cluster does not have"
        said = await alter(connection, "g", ("share.nonsense", SET, "1"))
        assert said == "Unknown group config name: share.nonsense"
