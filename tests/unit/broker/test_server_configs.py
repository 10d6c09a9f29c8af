"""DescribeConfigs: values in force, where they come from, their other names, types and texts."""

from pathlib import Path

import pytest

from quorumlog.broker.settings import BrokerSettings
from quorumlog.metadata_quorum.image import ClusterDelta
from quorumlog.settings.servers import DYNAMIC, StaticConfig
from quorumlog.settings.topics import TOPIC_SETTINGS
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from quorumlog.wire.codec.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.groups.asking import asking, versions
from tests.support.groups.single_broker import SingleBroker

TOPIC, BROKER, GROUP = 2, 4, 32
UNKNOWN, BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = 0, 1, 2, 3, 5, 6, 7


async def create(connection: KafkaConnection, **configs: str) -> dict[str, tuple[str | None, int]]:
    """Create the topic t; return its settings as the answer has them, with their sources."""
    given = [
        CreatableTopicConfig(name=name.replace("_", "."), value=value)
        for name, value in configs.items()
    ]
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=given)
    [made] = (await connection.send(CreateTopicsRequest(topics=[topic], timeout_ms=1000))).topics
    return {config.name: (config.value, config.config_source) for config in made.configs or []}


async def describe(
    connection: KafkaConnection,
    resource_type: int = TOPIC,
    name: str = "t",
    version: int = 4,
    **more: bool,
) -> dict[str, DescribeConfigsResourceResult]:
    resource = DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[resource], **more)
    [result] = (await connection.send(request, version=version)).results
    assert result.error_code == ErrorCode.NONE
    return {config.name: config for config in result.configs}


def tell(broker: SingleBroker, **given: str) -> None:
    """Let the broker's node have been told these settings at its start."""
    static = broker.context.static
    names = {name.replace("_", "."): value for name, value in given.items()}
    told = StaticConfig(static.table, names)
    static.texts.update(told.texts)
    static.given.update(told.given)


async def test_values_of_the_node_are_those_of_a_topic_that_sets_none(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        tell(
            broker,
            log_segment_bytes="2000000",
            log_cleanup_policy="compact",
            log_roll_ms="60000",
            message_max_bytes="2000",
            log_retention_ms="5",
        )
        expected = {
            "segment.bytes": ("2000000", 4),
            "cleanup.policy": ("compact", 4),
            "segment.ms": ("60000", 4),
            "max.message.bytes": ("2000", 4),
            "retention.ms": ("5", 4),
            "flush.ms": ("7", 1),
            "min.insync.replicas": ("1", 5),
            "segment.jitter.ms": ("0", 5),
        }
        made = await create(connection, flush_ms="7")
        assert expected.items() <= made.items()
        assert made.keys() == TOPIC_SETTINGS.keys()


async def test_a_topic_is_described_as_its_creation_was_answered(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        made = await create(connection, retention_ms="5")
        for version in versions(32):
            found = await describe(connection, version=version)
            assert made == {name: (one.value, one.config_source) for name, one in found.items()}
            assert not any(one.read_only or one.is_sensitive for one in found.values())


async def test_synonyms_name_the_settings_of_the_node_in_kafkas_order(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        tell(broker, log_segment_bytes="2000000", log_roll_ms="60000")
        await create(connection, cleanup_policy="compact")
        found = await describe(connection, include_synonyms=True)
        synonyms = {
            name: [(level.name, level.value, level.source) for level in one.synonyms]
            for name, one in found.items()
        }
        assert synonyms["cleanup.policy"] == [
            ("cleanup.policy", "compact", 1),
            ("log.cleanup.policy", "delete", 5),
        ]
        assert synonyms["segment.bytes"] == [
            ("log.segment.bytes", "2000000", 4),
            ("log.segment.bytes", "1073741824", 5),
        ]
        assert synonyms["segment.ms"] == [
            ("log.roll.ms", "60000", 4),
            ("log.roll.hours", "168", 5),
        ]
        assert synonyms["max.message.bytes"] == [("message.max.bytes", "1048588", 5)]
        without = [name for name, levels in synonyms.items() if not levels]
        assert without == [
            "flush.ms",
            "follower.replication.throttled.replicas",
            "leader.replication.throttled.replicas",
            "remote.log.copy.disable",
            "remote.log.delete.on.disable",
            "remote.storage.enable",
            "retention.ms",
            "segment.jitter.ms",
        ]
        assert not any(one.synonyms for one in (await describe(connection)).values())


async def test_types_and_documentation_are_told(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection, compression_gzip_level="5")
        found = await describe(connection, include_documentation=True)
        types = {
            "compression.gzip.level": INT,
            "cleanup.policy": LIST,
            "retention.ms": LONG,
            "min.cleanable.dirty.ratio": DOUBLE,
            "preallocate": BOOLEAN,
            "compression.type": STRING,
        }
        assert types.items() <= {name: one.config_type for name, one in found.items()}.items()
        texts = {name: one.documentation or "" for name, one in found.items()}
        assert texts["segment.bytes"].startswith("Maximum bytes of a segment")
        assert "No effect here: a file grows" in texts["preallocate"]
        assert "No effect" not in texts["segment.bytes"]
        assert not any(one.documentation for one in (await describe(connection)).values())


async def test_a_broker_shows_everything_that_it_was_told(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        tell(broker, log_segment_bytes="2000000", log_roll_hours="1", num_partitions="1")
        found = await describe(connection, BROKER, "1", include_synonyms=True)
        values = {name: (one.value, one.config_source) for name, one in found.items()}
        expected = {
            "log.segment.bytes": ("2000000", 4),
            "log.roll.ms": ("3600000", 4),
            "log.retention.ms": ("604800000", 5),
            "num.partitions": ("1", 4),  # the default, but the node was told it
            "node.id": (None, 5),
        }
        assert expected.items() <= values.items()
        assert {name for name, one in found.items() if not one.read_only} == {*DYNAMIC}
        [first, *_] = found["log.roll.ms"].synonyms
        assert (first.name, first.value, first.source) == ("log.roll.hours", "1", 4)
        assert found["advertised.listeners"].value == f"PLAINTEXT://{broker.bootstrap}"


async def test_the_settings_of_the_broker_are_those_it_goes_by(tmp_path: Path) -> None:
    settings = BrokerSettings(message_max_bytes=2000, num_partitions=7)
    async with asking(tmp_path, settings) as (_, connection):
        found = await describe(connection, BROKER, "1")
        assert (found["message.max.bytes"].value, found["num.partitions"].value) == ("2000", "7")


@pytest.mark.parametrize(
    ("resource_type", "name", "error_code"),
    [
        (BROKER, "", ErrorCode.NONE),  # what all brokers were told while they ran: nothing
        (GROUP, "", ErrorCode.INVALID_REQUEST),
        (BROKER, "77", ErrorCode.INVALID_REQUEST),
        (99, "x", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_what_else_can_be_asked_for_has_no_settings(
    tmp_path: Path, resource_type: int, name: str, error_code: ErrorCode
) -> None:
    async with asking(tmp_path) as (_, connection):
        resource = DescribeConfigsResource(resource_type=resource_type, resource_name=name)
        request = DescribeConfigsRequest(resources=[resource])
        for version in versions(32):
            [result] = (await connection.send(request, version=version)).results
            assert (result.error_code, result.configs) == (error_code, [])
            assert bool(result.error_message) is (error_code is not ErrorCode.NONE)


async def test_what_was_altered_is_in_force_and_names_its_sources(tmp_path: Path) -> None:
    """This broker's own value goes before that of all brokers, and both before its start's."""
    async with asking(tmp_path) as (broker, connection):
        tell(broker, log_retention_ms="5", log_segment_bytes="2000000")
        cluster = {"log.retention.ms": "6", "log.cleanup.policy": "compact"}
        configs = {
            "": cluster,
            "1": {"log.retention.ms": "7"},
            "2": {"log.segment.bytes": "3000000"},
        }
        broker.controller.publish(ClusterDelta(), broker_configs=configs)
        found = await describe(connection, BROKER, "1", include_synonyms=True)
        levels = [(one.value, one.source) for one in found["log.retention.ms"].synonyms]
        assert levels == [("7", 2), ("6", 3), ("5", 4), ("168", 5)]
        assert not found["log.retention.ms"].read_only
        shown = {name: (one.value, one.config_source) for name, one in found.items()}
        assert shown["log.segment.bytes"] == ("2000000", 4)
        made = await create(connection)
        assert (made["retention.ms"], made["cleanup.policy"]) == (("7", 2), ("compact", 3))
        for_all = await describe(connection, BROKER, "")
        assert {name: one.value for name, one in for_all.items()} == cluster
        assert {one.config_source for one in for_all.values()} == {3}


async def test_altered_names_without_effect_and_unknown_ones_are_described(tmp_path: Path) -> None:
    """The value of an unknown name may be a secret: Kafka describes none."""
    async with asking(tmp_path) as (broker, connection):
        configs = {
            "": {"num.io.threads": "16", "plug.in": "secret"},
            "1": {"plug.in": "own secret", "node.id": "7"},
        }
        broker.controller.publish(ClusterDelta(), broker_configs=configs)
        more = {"include_synonyms": True, "include_documentation": True}
        found = await describe(connection, BROKER, "1", **more)
        threads = found["num.io.threads"]
        assert (threads.value, threads.config_source, threads.read_only) == ("16", 3, False)
        assert [(one.value, one.source) for one in threads.synonyms] == [("16", 3), ("8", 5)]
        assert "No effect here" in (threads.documentation or "")
        assert (found["node.id"].value, found["node.id"].config_source) == (None, 5)
        for_all = await describe(connection, BROKER, "", **more)
        assert (for_all["num.io.threads"].value, {*for_all}) == (
            "16",
            {"num.io.threads", "plug.in"},
        )
        for shown, sources in ((found["plug.in"], [2, 3]), (for_all["plug.in"], [3])):
            assert (shown.value, shown.is_sensitive, shown.read_only) == (None, True, True)
            assert (shown.config_type, shown.documentation) == (UNKNOWN, None)
            assert [(one.value, one.source) for one in shown.synonyms] == [
                (None, source) for source in sources
            ]
            assert shown.config_source == sources[0]
