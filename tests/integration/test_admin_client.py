"""Our administrator, blocking and by command line, against a cluster of real processes."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from quorumlog.client import (
    Admin,
    Consumer,
    ErrorCode,
    KafkaError,
    NewTopic,
    Producer,
    TopicPartition,
)
from quorumlog.client.sync import SyncAdmin, SyncProducer
from quorumlog.cluster import LocalCluster
from quorumlog.settings.servers import ConfigSource
from tests.support.cli.in_process import CommandLine
from tests.support.cli.processes import Commands

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("admin_client")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("admin") / "cluster", nodes=3, port=0) as cluster:
        yield cluster


async def fill(cluster: LocalCluster, topic: str, count: int, *, partitions: int = 1) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topics([NewTopic(topic, partitions, 3)])
    async with Producer(cluster.bootstrap, linger_ms=0) as producer:
        for number in range(count):
            await producer.send_and_wait(topic, b"%d" % number, partition=number % partitions)


async def test_records_are_deleted_and_offsets_listed(cluster: LocalCluster) -> None:
    await fill(cluster, "deleted", 10)
    name = TopicPartition("deleted", 0)
    async with Admin(cluster.bootstrap) as admin:
        (producer,) = (await admin.describe_producers([name]))[name]
        assert producer.last_sequence == 9
        with pytest.raises(KafkaError) as caught:
            await admin.delete_records({name: 11})
        assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert caught.value.definite
        assert await admin.delete_records({name: 4}) == {name: 4}
        assert (await admin.list_offsets({name: "earliest"}))[name].offset == 4
        assert (await admin.list_offsets({name: "latest"}))[name].offset == 10
        assert await admin.delete_records({name: -1}) == {name: 10}
    async with Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([name])
        assert await consumer.position(name) == 10


async def test_a_groups_offsets_are_set_and_forgotten(cluster: LocalCluster) -> None:
    await fill(cluster, "read", 6, partitions=2)
    first, second = TopicPartition("read", 0), TopicPartition("read", 1)
    async with Admin(cluster.bootstrap) as admin:
        await admin.alter_consumer_group_offsets("readers", {first: 1, second: 2})
        with pytest.raises(KafkaError, match="the offset of read-7 is not committed"):
            await admin.alter_consumer_group_offsets("readers", {TopicPartition("read", 7): 1})
        await admin.delete_consumer_group_offsets("readers", [second])
        left = await admin.list_consumer_group_offsets("readers")
        assert {name: place.offset for name, place in left.items()} == {first: 1}
        async with Consumer(
            cluster.bootstrap, group_id="readers", auto_offset_reset="earliest"
        ) as consumer:
            consumer.subscribe(["read"])
            seen: dict[TopicPartition, int] = {}
            while len(seen) < 2:
                for name, records in (await consumer.poll(500)).items():
                    seen.setdefault(name, records[0].offset)
            assert seen == {first: 1, second: 0}
            with pytest.raises(KafkaError) as caught:
                await admin.alter_consumer_group_offsets("readers", {first: 0})
            assert caught.value.code == ErrorCode.UNKNOWN_MEMBER_ID
            with pytest.raises(KafkaError) as subscribed:
                await admin.delete_consumer_group_offsets("readers", [first])
            assert subscribed.value.code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        await admin.delete_consumer_groups(["readers"])


def test_the_quorum_and_the_logs_are_described(cluster: LocalCluster) -> None:
    with SyncProducer(cluster.bootstrap) as producer:
        producer.send("sized", b"v").result(30)
    with SyncAdmin(cluster.bootstrap) as admin:
        quorum = admin.describe_quorum()
        assert quorum.leader_id in {1, 2, 3}
        assert sorted(voter.replica_id for voter in quorum.voters) == [1, 2, 3]
        assert quorum.high_watermark > 0
        sizes = [
            size.size_bytes
            for directories in admin.describe_log_dirs().values()
            for directory in directories.values()
            for name, size in directory.replicas.items()
            if name.topic == "sized"
        ]
        assert max(sizes) > 0
        described = admin.describe_topics(["sized"])["sized"]
        assert all(one.elr is not None for one in described.partitions.values())
        with pytest.raises(KafkaError, match="broker 9 is not among the live ones"):
            admin.describe_configs("broker", "9")


async def test_min_insync_replicas_of_the_cluster_holds_at_once_for_acks_all(
    cluster: LocalCluster,
) -> None:
    name = "min.insync.replicas"
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topics([NewTopic("in_sync", assignments={0: (1, 2, 3)})])
        await admin.alter_configs("broker", "", {name: "3"})
        while (shown := (await admin.describe_configs("topic", "in_sync"))[name]).value != "3":
            await asyncio.sleep(0.01)  # the broker that was asked may learn of it last
        assert shown.source == ConfigSource.DYNAMIC_DEFAULT_BROKER
        cluster.kill(3)
        while (
            3 in (found := (await admin.describe_topics(["in_sync"]))["in_sync"].partitions[0]).isr
        ):
            await asyncio.sleep(0.01)
        assert found.elr == (3,)
        async with Producer(
            cluster.bootstrap, linger_ms=0, request_timeout_ms=500, delivery_timeout_ms=1_000
        ) as producer:
            with pytest.raises(KafkaError, match="NOT_ENOUGH_REPLICAS"):
                await producer.send_and_wait("in_sync", b"two of three")
        await admin.alter_configs("broker", "", {name: "2"})
        async with Producer(cluster.bootstrap) as producer:
            await producer.send_and_wait("in_sync", b"two of two")
        while (await admin.describe_topics(["in_sync"]))["in_sync"].partitions[0].elr != ():
            await asyncio.sleep(0.01)
        cluster.start_node(3)
        await admin.alter_configs("broker", "", {name: "1"})


def test_the_commands_of_an_administrator(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(fill(cluster, "orders", 9))
    command = CommandLine(cluster.bootstrap, monkeypatch, capsys)
    assert command("topics", "grow", "orders", "--partitions", "2") == "orders has 2 partitions\n"
    shown = command("topics", "delete-records", "orders", "--before", "2", "--partition", "0")
    assert shown == "   0  starts at 2\n"
    command("configs", "alter", "topic", "orders", "--set", "retention.ms=60000")
    settings = json.loads(command("configs", "describe", "topic", "orders", "--json"))["configs"]
    retention = next(one for one in settings if one["name"] == "retention.ms")
    assert (retention["value"], retention["source"]) == ("60000", "topic")
    command("consume", "orders", "--group", "g", "--from", "beginning", "--max", "5")
    lag = json.loads(command("groups", "lag", "g", "--json"))
    assert lag["lag"] == 2
    command("groups", "reset-offsets", "g", "--to-earliest", "--execute")
    assert json.loads(command("groups", "lag", "g", "--json"))["lag"] == 7
    assert "g" in {
        one["group"] for one in json.loads(command("groups", "list", "--json"))["groups"]
    }
    command("groups", "delete", "g")
    assert "group g does not exist" in command("groups", "lag", "g", status=1)
    assert "'typo'" in command("consume", "typo", status=1)
    assert "typo" not in command("topics", "list").split()


def unregister(cluster: LocalCluster, node_id: int) -> dict[str, object]:
    words = ("node", "unregister", str(node_id), "--json", "--bootstrap", cluster.bootstrap)
    document: dict[str, object] = json.loads(Commands().ended(*words).stdout)
    return document


async def test_a_stopped_node_is_unregistered_and_comes_back_as_a_new_one(
    cluster: LocalCluster,
) -> None:
    await fill(cluster, "kept", 3)
    assert "in service" in str(unregister(cluster, 3))
    await asyncio.to_thread(cluster.stop_node, 3)
    assert unregister(cluster, 3) == {"node": 3, "unregistered": True}
    async with Admin(cluster.bootstrap) as admin:
        with pytest.raises(KafkaError) as caught:
            await admin.unregister_broker(3)
        assert caught.value.code == ErrorCode.BROKER_ID_NOT_REGISTERED
        await asyncio.to_thread(cluster.start_node, 3)
        while len((await admin.describe_topics(["kept"]))["kept"].partitions[0].isr) < 3:
            await asyncio.sleep(0.05)  # it starts from nothing, as far as the controller knows
