"""States of a real cluster: waited for, reset, kept as snapshots and files."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quorumlog import LocalCluster
from quorumlog.client import KafkaError, NewTopic, TopicPartition
from quorumlog.client.descriptions import Acl, NewScramCredential
from quorumlog.client.sync import SyncAdmin, SyncConsumer, SyncProducer
from quorumlog.cluster import ClusterError
from quorumlog.cluster.resets import StillUsed
from quorumlog.cluster.waits import TookTooLong
from tests.support.cli.processes import Commands

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(120),
    pytest.mark.xdist_group("cluster_states"),
]


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalCluster]:
    with LocalCluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: LocalCluster) -> LocalCluster:
    shared.start()
    shared.settled(timeout_s=60)
    shared.marked = None
    shared.reset()
    return shared


def create(cluster: LocalCluster, name: str, partitions: int = 3) -> None:
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(name, partitions, 3)])
    cluster.wait(topic=name, isr=3)


def send(cluster: LocalCluster, topic: str, count: int, partitions: int = 3) -> None:
    with SyncProducer(cluster.bootstrap) as producer:
        for number in range(count):
            producer.send_and_wait(topic, b"%d" % number, partition=number % partitions)


def read(consumer: SyncConsumer, count: int) -> None:
    while count > 0:
        count -= sum(map(len, consumer.poll(1000).values()))


def ends(cluster: LocalCluster, topic: str, partitions: int = 3) -> list[int]:
    places = [TopicPartition(topic, index) for index in range(partitions)]
    with SyncConsumer(cluster.bootstrap) as consumer:
        found = consumer.end_offsets(places)
    return [found[place] for place in places]


def leader(cluster: LocalCluster, topic: str) -> int:
    return int(cluster.wait(topic=topic, partition=0)["partitions"][0]["leader"])


def test_a_leader_that_is_killed_and_comes_back(cluster: LocalCluster) -> None:
    create(cluster, "orders")
    dead = leader(cluster, "orders")
    cluster.kill(dead)
    seen = cluster.wait(topic="orders", leader_moved_from=dead, isr=2)
    assert all(dead not in {one["leader"], *one["isr"]} for one in seen["partitions"])
    assert cluster.settled()["nodes"][str(dead)] == "killed"
    with pytest.raises(TookTooLong, match=r"orders-\d has leader .* after 0.2 s"):
        cluster.wait(topic="orders", isr=3, timeout_s=0.2)
    cluster.start_node(dead)
    cluster.wait(topic="orders", isr=3)
    assert cluster.settled()["nodes"][str(dead)] == "running"


def test_a_group_with_its_members_and_offsets(cluster: LocalCluster) -> None:
    create(cluster, "orders")
    send(cluster, "orders", 6)
    options: dict[str, Any] = {"group_id": "billing", "auto_offset_reset": "earliest"}
    with SyncConsumer(cluster.bootstrap, enable_auto_commit=False, **options) as consumer:
        consumer.subscribe(["orders"])
        read(consumer, 6)
        assert cluster.wait(group="billing", state="Stable", members=1)["members"] == 1
        with pytest.raises(TookTooLong, match="group billing has committed nothing"):
            cluster.wait(group="billing", committed="end", topic="orders", timeout_s=0.1)
        consumer.commit()
        seen = cluster.wait(group="billing", committed="end", topic="orders", isr=3)
        assert seen["lag"] == {"orders-0": 0, "orders-1": 0, "orders-2": 0}
        cluster.wait(group="billing", committed=6)
        cluster.settled()
        with pytest.raises(StillUsed, match="group billing has members"):
            cluster.reset()
    cluster.wait(group="billing", state="Empty", members=0)
    with pytest.raises(TookTooLong, match=r"no group biling; did you mean billing\?"):
        cluster.wait(group="biling", state="Empty", timeout_s=0.3)


async def test_a_coroutine_awaits_both(cluster: LocalCluster) -> None:
    await asyncio.to_thread(create, cluster, "orders")
    assert (await cluster.wait(topic="orders", isr=3))["topic"] == "orders"
    assert (await cluster.settled())["partitions"] >= 3


def test_without_a_node_a_wait_ends_at_once(cluster: LocalCluster) -> None:
    cluster.stop()
    with pytest.raises(ClusterError, match=r"no node of the cluster runs; start\(\)"):
        cluster.settled()


def test_a_reset_leaves_nothing_of_a_test(cluster: LocalCluster) -> None:
    create(cluster, "orders")
    acl = Acl(resource_type="topic", resource_name="t", principal="User:a", operation="read")
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_acls([acl])
        admin.alter_client_quotas({"user": "a"}, {"producer_byte_rate": 5.0})
        admin.alter_user_scram_credentials([NewScramCredential(user="a", password="secret")])
        admin.alter_configs("broker", "", {"log.retention.ms": "1000000"})
        admin.alter_consumer_group_offsets("g", {TopicPartition("orders", 0): 0})
        writer = SyncProducer(cluster.bootstrap, transactional_id="billing")
        with writer:
            writer.init_transactions()
            writer.begin_transaction()
            writer.send_and_wait("orders", b"open", partition=0)
            cluster.reset()
            with pytest.raises(KafkaError) as error:
                writer.commit_transaction()
            assert error.value.fatal
        assert admin.list_topics() == []
        assert admin.list_consumer_groups() == []
        assert admin.describe_acls() == []
        assert admin.describe_client_quotas() == []
        assert admin.describe_user_scram_credentials() == {}
        assert admin.transactions.list(states=["Ongoing"]) == []
        value = admin.describe_configs("broker", "1")["log.retention.ms"]
        assert value.source == 5  # the default
    create(cluster, "orders")  # the name is free
    assert ends(cluster, "orders") == [0, 0, 0]


def test_a_reset_returns_to_the_mark(cluster: LocalCluster) -> None:
    create(cluster, "seeded")
    create(cluster, "empty")
    send(cluster, "seeded", 3)
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.alter_configs("topic", "empty", {"retention.ms": "100000"})
        admin.alter_consumer_group_offsets("g", {TopicPartition("seeded", 0): 1})
        cluster.mark()
        create(cluster, "more")
        send(cluster, "empty", 3)
        admin.alter_configs("topic", "seeded", {"retention.ms": "5000000"})
        admin.alter_consumer_group_offsets("g", {TopicPartition("seeded", 0): 0})
        cluster.reset()
        assert admin.list_topics() == ["empty", "seeded"]
        assert ends(cluster, "empty") == [0, 0, 0]
        assert ends(cluster, "seeded") == [1, 1, 1]
        assert admin.describe_configs("topic", "empty")["retention.ms"].value == "100000"
        assert admin.describe_configs("topic", "seeded")["retention.ms"].source == 5
        offsets = admin.list_consumer_group_offsets("g")
        assert offsets[TopicPartition("seeded", 0)].offset == 1
        create(cluster, "more")
        send(cluster, "seeded", 1)
        with pytest.raises(ClusterError, match=r"topic seeded had the records .* restore\(name\)"):
            cluster.reset()
        assert "more" in admin.list_topics()  # it refuses before its first change


def test_a_restore_brings_back_all_records_and_is_trusted(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "c", config={"min.insync.replicas": "2"}) as cluster:
        create(cluster, "orders")
        send(cluster, "orders", 30)
        with SyncAdmin(cluster.bootstrap) as admin:
            admin.alter_consumer_group_offsets("g", {TopicPartition("orders", 0): 7})
        cluster.snapshot("seeded")
        send(cluster, "orders", 9)
        create(cluster, "other")
        parents = set()
        for _ in range(2):
            cluster.restore("seeded")
            cluster.settled(timeout_s=60)
            assert ends(cluster, "orders") == [10, 10, 10]
            with SyncAdmin(cluster.bootstrap) as admin:
                assert admin.list_topics() == ["orders"]
                offsets = admin.list_consumer_group_offsets("g")
            assert offsets[TopicPartition("orders", 0)].offset == 7
            send(cluster, "orders", 3)
            cluster.kill(1, 2, 3)  # its new registrations are trusted, too
            cluster.start()
            cluster.wait(topic="orders", isr=3, timeout_s=60)
            assert ends(cluster, "orders") == [11, 11, 11]
            parents |= {parent_of(cluster, node.id) for node in cluster.nodes}
        assert len(parents) == 1  # all restores fork the nodes of one process, with its imports
    logs = "".join(path.read_text() for path in (tmp_path / "c").glob("node-*/node.log"))
    assert "may lack" not in logs
    assert "UNCLEAN" not in logs


def parent_of(cluster: LocalCluster, node_id: int) -> int:
    if sys.platform != "linux":
        return 0
    fields = Path(f"/proc/{cluster.pid(node_id)}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1])


done = Commands()
command = done.ended


RECORDS: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
    (0, None, b"v", [("a", b"1"), ("a", None), ("b", b"\xff")]),
    (1, b"k\xff", None, []),
    (1, b"", b"", []),
    (0, "ö".encode(), "\u2028\n".encode(), []),
]


def test_dump_and_load_are_exact(cluster: LocalCluster) -> None:
    create(cluster, "orders", 2)
    create(cluster, "copy", 2)
    with SyncProducer(cluster.bootstrap) as producer:
        for time_ms, (partition, key, value, headers) in enumerate(RECORDS):
            producer.send_and_wait(
                "orders", value, key, partition=partition, headers=headers, timestamp_ms=time_ms
            )
    at = ("--bootstrap", cluster.bootstrap)
    dumped = done("dump", "orders", *at)
    assert len(dumped.splitlines()) == len(RECORDS)
    done("load", "--topic", "copy", *at, lines=dumped)
    again = done("dump", "copy", *at).replace('"copy"', '"orders"')
    assert sorted(again.splitlines()) == sorted(dumped.splitlines())
    one = dumped.splitlines()[0]
    wrong = command("load", "--topic", "copy", *at, lines=f"{one}\n{one}\n{{}}\n{one}\n")
    assert wrong.returncode == 1
    assert wrong.stderr.splitlines() == [
        "2 records acknowledged",
        "quorumlog: line 3: topic: a name is expected",
    ] or wrong.stderr.splitlines() == [
        "quorumlog: line 3: topic: a name is expected",
        "2 records acknowledged",
    ]
    assert sum(ends(cluster, "copy", 2)) == len(RECORDS) + 2
    far = json.dumps({**json.loads(one), "partition": 7})
    refused = command("load", "--topic", "copy", *at, lines=far)
    assert "line 1: topic copy has 2 partitions, the record is of partition 7" in refused.stderr
    assert sum(ends(cluster, "copy", 2)) == len(RECORDS) + 2


def killed_once_it_has_sent(cluster: LocalCluster, topic: str, process: Any) -> None:
    """SIGKILL a process once its first records are there; fail if it has ended before."""
    with SyncAdmin(cluster.bootstrap) as admin:
        while topic not in admin.list_topics() or not any(ends(cluster, topic)):
            assert process.poll() is None
    process.kill()
    assert process.wait() == -9
    appended = -1
    while appended != (appended := sum(ends(cluster, topic))):  # brokers read its last requests
        time.sleep(0.2)


def test_a_load_that_is_killed_leaves_the_first_records_of_each_partition(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    create(cluster, "orders")
    lines, count = tmp_path / "records.jsonl", 60_000
    record = {"topic": "orders", "timestamp_ms": 1}
    with lines.open("w") as file:
        for number in range(count):
            one = {**record, "partition": number % 3, "value": str(number)}
            file.write(json.dumps(one) + "\n")
    words = [sys.executable, "-m", "quorumlog", "load", str(lines)]
    with subprocess.Popen([*words, "--bootstrap", cluster.bootstrap]) as load:
        killed_once_it_has_sent(cluster, "orders", load)
    dumped = done("dump", "orders", "--bootstrap", cluster.bootstrap).splitlines()
    assert 0 < len(dumped) < count
    for partition in range(3):
        found = [json.loads(line) for line in dumped if f'"partition": {partition},' in line]
        values = [int(one["value"]) for one in found]
        assert values == [*range(partition, 3 * len(found), 3)]


SEEDER = """
import sys
from quorumlog.cluster.seed_file import SeedSource
from quorumlog.cluster.seeding import apply
apply(SeedSource(sys.argv[1]), {"bootstrap_servers": sys.argv[2]})
"""


def test_a_seed_whose_start_was_killed_is_refused_or_complete(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    count, seed = 20_000, tmp_path / "seed.json"
    records = [{"partition": number % 3, "value": number} for number in range(count)]
    seed.write_text(
        json.dumps({"topics": [{"name": "orders", "partitions": 3, "records": records}]})
    )
    command = [sys.executable, "-c", SEEDER, str(seed), cluster.bootstrap]
    with subprocess.Popen(command) as seeder:
        killed_once_it_has_sent(cluster, "orders", seeder)
    sent = sum(ends(cluster, "orders"))
    again = LocalCluster(cluster.directory, seed=seed)
    if sent == count:
        again.start()
    else:
        refusal = rf"orders has {sent} records, the seed has {count}; delete it, or change the seed"
        with pytest.raises(ClusterError, match=refusal):
            again.start()
        with SyncAdmin(cluster.bootstrap) as admin:
            admin.delete_topics(["orders"])
        again.start()
    assert sum(ends(cluster, "orders")) == count


def test_records_above_a_megabyte_are_loaded_if_their_topic_takes_them(
    cluster: LocalCluster,
) -> None:
    create(cluster, "large", 1)
    done(
        "configs",
        "alter",
        "topic",
        "large",
        "--set",
        "max.message.bytes=4000000",
        "--bootstrap",
        cluster.bootstrap,
    )
    record = {"topic": "large", "partition": 0, "timestamp_ms": 1, "value": "x" * 3_000_000}
    done("load", "--bootstrap", cluster.bootstrap, lines=json.dumps(record))
    dumped = json.loads(done("dump", "large", "--bootstrap", cluster.bootstrap))
    assert dumped["value"] == record["value"]


def test_a_saved_cluster_lives_beside_its_original(tmp_path: Path) -> None:
    file, copied = tmp_path / "saved.tar.gz", tmp_path / "copied"
    with LocalCluster(tmp_path / "original") as original:
        create(original, "orders")
        send(original, "orders", 9)
        done("save", str(file), "--dir", str(original.directory))
        assert original.running() == [1, 2, 3]
        described = json.loads(
            done(
                "up", "--from", str(file), "--dir", str(copied), "--port", "0", "--detach", "--json"
            )
        )
        try:
            copy = LocalCluster.open(copied)
            assert described["cluster_id"] == original.spec.cluster_id
            assert not {*copy.bootstrap.split(",")} & {*original.bootstrap.split(",")}
            copy.settled(timeout_s=60)
            assert ends(copy, "orders") == [3, 3, 3]
            send(copy, "orders", 3)
            send(original, "orders", 6)
            copy.settled()
            original.settled(timeout_s=60)
            assert ends(copy, "orders") == [4, 4, 4]
            assert ends(original, "orders") == [5, 5, 5]
            running = done("status", "--all")
            assert str(copied) in running
            assert str(original.directory) in running
            again = command("up", "--from", str(file), "--dir", str(copied), "--detach")
            assert "is not empty: choose another --dir" in again.stderr
        finally:
            done("down", "--dir", str(copied))
        assert original.running() == [1, 2, 3]
    bad = tmp_path / "bad.tar.gz"
    bad.write_bytes(file.read_bytes()[:500])
    refused = command("up", "--from", str(bad), "--dir", str(tmp_path / "new"))
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1
    assert "is no archive of `quorumlog save`" in refused.stderr
    assert not (tmp_path / "new").exists()
