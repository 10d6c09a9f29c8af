"""Descriptions: settings in force and where they come from, topics page by page, brokers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from quorumlog.broker.settings import BrokerSettings
from quorumlog.metadata_quorum.image import ClusterDelta
from quorumlog.settings.servers import DYNAMIC, StaticConfig
from quorumlog.settings.topics import TOPIC_SETTINGS
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import NO_LEADER, BrokerId
from quorumlog.wire.codec.messages.describe_cluster import DescribeClusterRequest
from quorumlog.wire.codec.messages.describe_configs import DescribeConfigsResourceResult
from quorumlog.wire.codec.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    RequestCursor,
    TopicRequest,
)
from quorumlog.wire.codec.messages.list_config_resources import ListConfigResourcesRequest
from quorumlog.wire.io.connection import KafkaConnection
from tests.support.broker.replicas import broker as registered
from tests.support.broker.requests import describe_configs, topic_creation
from tests.support.groups.asking import asking, coordinator_is_ready, create, versions
from tests.support.groups.single_broker import BROKER, SETTINGS, SingleBroker

TOPIC, BROKER_RESOURCE, GROUP = 2, 4, 32
UNKNOWN, BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = 0, 1, 2, 3, 5, 6, 7


async def created(connection: KafkaConnection, **configs: str) -> dict[str, tuple[str | None, int]]:
    """Create the topic t; return its settings as the answer has them, with their sources."""
    given = {name.replace("_", "."): value for name, value in configs.items()}
    [made] = (await connection.send(topic_creation("t", configs=given))).topics
    return {config.name: (config.value, config.config_source) for config in made.configs or []}


async def describe(
    connection: KafkaConnection, resource_type: int = TOPIC, name: str = "t", **more: Any
) -> dict[str, DescribeConfigsResourceResult]:
    result = await describe_configs(connection, resource_type, name, **more)
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
        made = await created(connection, flush_ms="7")
        assert expected.items() <= made.items()
        assert made.keys() == TOPIC_SETTINGS.keys()


async def test_a_topic_is_described_as_its_creation_was_answered_with_types_and_texts(
    tmp_path: Path,
) -> None:
    async with asking(tmp_path) as (_, connection):
        made = await created(connection, retention_ms="5")
        for version in versions(32):
            found = await describe(connection, version=version)
            assert made == {name: (one.value, one.config_source) for name, one in found.items()}
            assert not any(one.read_only or one.is_sensitive for one in found.values())
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


async def test_synonyms_name_the_settings_of_the_node_in_kafkas_order(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        tell(broker, log_segment_bytes="2000000", log_roll_ms="60000")
        await created(connection, cleanup_policy="compact")
        found = await describe(connection, include_synonyms=True)
        synonyms = {
            name: [(level.name, level.value, level.source) for level in one.synonyms]
            for name, one in found.items()
        }
        name, segment = "cleanup.policy", "log.segment.bytes"
        assert synonyms[name] == [(name, "compact", 1), (f"log.{name}", "delete", 5)]
        assert synonyms["segment.bytes"] == [(segment, "2000000", 4), (segment, "1073741824", 5)]
        rolls = [("log.roll.ms", "60000", 4), ("log.roll.hours", "168", 5)]
        assert synonyms["segment.ms"] == rolls
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


async def test_a_broker_shows_everything_that_it_was_told(tmp_path: Path) -> None:
    settings = BrokerSettings(message_max_bytes=2000, num_partitions=7)
    async with asking(tmp_path, settings) as (broker, connection):
        own = await describe(connection, BROKER_RESOURCE, "1")
        assert (own["message.max.bytes"].value, own["num.partitions"].value) == ("2000", "7")
        tell(broker, log_segment_bytes="2000000", log_roll_hours="1", num_partitions="1")
        found = await describe(connection, BROKER_RESOURCE, "1", include_synonyms=True)
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


async def test_what_else_can_be_asked_for_has_no_settings(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        for resource_type, name, error_code in (
            (
                BROKER_RESOURCE,
                "",
                ErrorCode.NONE,
            ),  # what all brokers were told while they ran: nothing
            (GROUP, "", ErrorCode.INVALID_REQUEST),
            (BROKER_RESOURCE, "77", ErrorCode.INVALID_REQUEST),
            (99, "x", ErrorCode.INVALID_REQUEST),
            (TOPIC, "a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
            (TOPIC, "nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ):
            for version in versions(32):
                result = await describe_configs(connection, resource_type, name, version=version)
                assert (result.error_code, result.configs) == (error_code, [])
                is_explained = error_code not in {
                    ErrorCode.NONE,
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                }
                assert bool(result.error_message) is is_explained
        chosen = ["num.partitions", "advertised.listeners"]
        for version in versions(32):
            some = await describe_configs(connection, BROKER_RESOURCE, "1", chosen, version)
            assert [one.name for one in some.configs] == sorted(chosen)
            assert all(one.read_only for one in some.configs)


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
        found = await describe(connection, BROKER_RESOURCE, "1", include_synonyms=True)
        levels = [(one.value, one.source) for one in found["log.retention.ms"].synonyms]
        assert levels == [("7", 2), ("6", 3), ("5", 4), ("168", 5)]
        assert not found["log.retention.ms"].read_only
        shown = {name: (one.value, one.config_source) for name, one in found.items()}
        assert shown["log.segment.bytes"] == ("2000000", 4)
        made = await created(connection)
        assert (made["retention.ms"], made["cleanup.policy"]) == (("7", 2), ("compact", 3))
        for_all = await describe(connection, BROKER_RESOURCE, "")
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
        found = await describe(connection, BROKER_RESOURCE, "1", **more)
        threads = found["num.io.threads"]
        assert (threads.value, threads.config_source, threads.read_only) == ("16", 3, False)
        assert [(one.value, one.source) for one in threads.synonyms] == [("16", 3), ("8", 5)]
        assert "No effect here" in (threads.documentation or "")
        assert (found["node.id"].value, found["node.id"].config_source) == (None, 5)
        for_all = await describe(connection, BROKER_RESOURCE, "", **more)
        assert {*for_all} == {"num.io.threads", "plug.in"}
        assert for_all["num.io.threads"].value == "16"
        for shown, sources in ((found["plug.in"], [2, 3]), (for_all["plug.in"], [3])):
            assert (shown.value, shown.is_sensitive, shown.read_only) == (None, True, True)
            assert (shown.config_type, shown.documentation) == (UNKNOWN, None)
            assert [(one.value, one.source) for one in shown.synonyms] == [
                (None, source) for source in sources
            ]
            assert shown.config_source == sources[0]


async def test_a_password_is_in_no_description(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        static = broker.context.static
        static.given["sasl.jaas.config"] = static.texts["sasl.jaas.config"] = "s3cret"
        more = {"include_synonyms": True, "include_documentation": True}
        found = await describe(connection, BROKER_RESOURCE, "1", **more)
        shown = found["sasl.jaas.config"]
        assert (shown.value, shown.is_sensitive, shown.config_type) == (None, True, 9)
        assert [one.value for one in shown.synonyms] == [None]


Place = tuple[str, int]
ALL = [(name, index) for name, count in (("a", 2), ("b", 1), ("c", 3)) for index in range(count)]


def page_of(
    *names: str, limit: int = 2000, cursor: Place | None = None
) -> DescribeTopicPartitionsRequest:
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names], response_partition_limit=limit
    )
    if cursor is not None:
        request.cursor = RequestCursor(topic_name=cursor[0], partition_index=cursor[1])
    return request


async def pages(connection: KafkaConnection, *names: str, limit: int) -> list[list[Place]]:
    """Return the partitions of each page, until there is no cursor any more."""
    found: list[list[Place]] = []
    cursor: Place | None = None
    while len(found) < 20:
        answer = await connection.send(page_of(*names, limit=limit, cursor=cursor))
        topics = answer.topics
        found.append(
            [(one.name or "", at.partition_index) for one in topics for at in one.partitions]
        )
        if answer.next_cursor is None:
            break
        following = (answer.next_cursor.topic_name, answer.next_cursor.partition_index)
        assert following != cursor
        cursor = following
    return found


async def create_abc(connection: KafkaConnection) -> None:
    for name, count in (("c", 3), ("a", 2), ("b", 1)):
        await create(connection, name, count)


async def test_pages_are_of_the_size_asked_for_and_leave_nothing_out(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        await create_abc(connection)
        for limit in (-5, *range(8)):
            for names in ((), ("c", "b", "a", "b")):
                found = await pages(connection, *names, limit=limit)
                assert [place for page in found for place in page] == ALL
                assert [len(page) for page in found[:-1]] == [max(limit, 1)] * (len(found) - 1)
        own = replace(SETTINGS, max_request_partition_size_limit=4)
        broker.context.settings = own  # the broker has a limit of its own
        other = await KafkaConnection.open("127.0.0.1", broker.port, client_id="test")
        assert [len(page) for page in await pages(other, limit=2000)] == [4, 2]
        await other.close()


async def test_a_cursor_goes_on_where_a_topic_ended_and_else_is_refused(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await create_abc(connection)
        for cursor, left in (
            (("aa", 7), ["b", "c"]),
            (("b", 9), ["b", "c"]),  # of b nothing is left
            (("d", 0), []),
        ):
            answer = await connection.send(page_of(cursor=cursor))
            assert [topic.name for topic in answer.topics] == left
            assert answer.next_cursor is None
        answer = await connection.send(page_of(limit=1, cursor=("b", 9)))
        assert [len(topic.partitions) for topic in answer.topics] == [0, 1]
        assert answer.next_cursor is not None
        assert answer.next_cursor.topic_name == "c"
        for cursor in (("b", 0), ("a", -1)):
            answer = await connection.send(page_of("a", "c", cursor=cursor))
            outcomes = [(topic.name, topic.error_code) for topic in answer.topics]
            refusal = ErrorCode.INVALID_REQUEST
            assert outcomes == [("a", refusal), ("c", refusal)]


async def test_a_partition_is_shown_with_its_elr(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        topic_id = await create(connection, "t", 1)
        topic = broker.controller.image.topics["t"]
        [partition] = topic.partitions
        shrunk = replace(
            partition,
            leader_id=NO_LEADER,
            replicas=(BROKER, BrokerId(2), BrokerId(3)),
            isr=(),
            elr=(BrokerId(2),),
        )
        brokers = {
            **broker.controller.image.brokers,
            BrokerId(2): registered(BrokerId(2)),
            BrokerId(3): registered(BrokerId(3), fenced=True),
        }
        topics = {"t": replace(topic, partitions=(shrunk,))}
        broker.controller.publish(ClusterDelta(), brokers=brokers, topics=topics)
        found, unknown, illegal = (await connection.send(page_of("t", "u", "x/y"))).topics
        assert (found.topic_id, found.topic_authorized_operations) == (topic_id, 3576)
        [shown] = found.partitions
        assert shown.eligible_leader_replicas == [2]
        assert (shown.last_known_elr, shown.offline_replicas) == ([], [3])
        assert (shown.leader_id, shown.isr_nodes, shown.replica_nodes) == (-1, [], [1, 2, 3])
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert illegal.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_internal_topics_are_marked(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection, "t", 1)
        await coordinator_is_ready(connection)
        answer = await connection.send(page_of())
        marks = {topic.name: topic.is_internal for topic in answer.topics}
        assert marks == {"__consumer_offsets": True, "t": False}


async def test_fenced_brokers_are_told_to_a_client_that_asks_for_them(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        brokers = {
            **broker.controller.image.brokers,
            BrokerId(0): registered(BrokerId(0), fenced=True),
            BrokerId(7): registered(BrokerId(7)),
        }
        broker.controller.publish(ClusterDelta(), brokers=brokers)
        for version in versions(60):
            request = DescribeClusterRequest(include_fenced_brokers=version >= 2)
            answer = await connection.send(request, version=version)
            shown = {one.broker_id: one.is_fenced for one in answer.brokers}
            fenced = {0: True} if version >= 2 else {}
            assert shown == {**fenced, BROKER: False, 7: False}
        answer = await connection.send(DescribeClusterRequest(), version=2)
        assert [one.broker_id for one in answer.brokers] == [BROKER, 7]


async def test_topics_and_brokers_have_configurations(tmp_path: Path) -> None:
    async with asking(tmp_path) as (broker, connection):
        await create(connection, "b")
        await create(connection, "a")
        fenced = registered(BrokerId(7), fenced=True)
        brokers = {**broker.controller.image.brokers, BrokerId(7): fenced}
        broker.controller.publish(ClusterDelta(), brokers=brokers)
        topics, here = [(2, "a"), (2, "b")], [(4, "1")]
        for types, expected in (
            ([], topics + here),
            ([2], topics),
            ([4, 2, 2], topics + here),
            ([8, 16, 32], []),
        ):
            request = ListConfigResourcesRequest(resource_types=types)
            answer = await connection.send(request)
            resources = answer.config_resources
            assert answer.error_code == ErrorCode.NONE
            assert [(one.resource_type, one.resource_name) for one in resources] == expected
        broker.controller.publish(ClusterDelta(), client_metrics={"s": {"metrics": "*"}})
        metrics = await connection.send(ListConfigResourcesRequest(), version=0)
        assert metrics.error_code == ErrorCode.NONE
        assert [(one.resource_type, one.resource_name) for one in metrics.config_resources] == [
            (16, "s")
        ]
        unknown = await connection.send(ListConfigResourcesRequest(resource_types=[2, 3]))
        assert unknown.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert unknown.config_resources == []
