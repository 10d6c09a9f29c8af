"""A cluster that begins with a seed: all of it, once, and nothing of it beside other contents."""

import re
from pathlib import Path
from typing import Any

import pytest

from quorumlog import LocalCluster
from quorumlog.client import AclFilter, TopicPartition
from quorumlog.client.sync import SyncAdmin, SyncConsumer
from quorumlog.cluster import ClusterError

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("seeds")]
PAGE = Path(__file__).parents[2] / "docs/seeds.md"


def example(tmp_path: Path) -> Path:
    [text] = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    path = tmp_path / "seed.yaml"
    path.write_text(text)
    return path


def records_of(bootstrap: str, topic: str, partitions: int) -> list[tuple[Any, ...]]:
    with (
        SyncConsumer(bootstrap, auto_offset_reset="earliest") as consumer,
        SyncAdmin(bootstrap) as admin,
    ):
        places = [TopicPartition(topic, index) for index in range(partitions)]
        ends = admin.list_offsets(dict.fromkeys(places, "latest"))
        consumer.assign(places)
        found: list[tuple[Any, ...]] = []
        while len(found) < sum(end.offset for end in ends.values()):
            for records in consumer.poll(1_000).values():
                found += [(one.key, one.value, one) for one in records]
    return found


def test_the_example_of_the_page_is_created_once(tmp_path: Path) -> None:
    seed = example(tmp_path)
    directory = tmp_path / "cluster"
    with LocalCluster(directory, nodes=1, seed=seed) as cluster:
        assert cluster.seeded is not None
        assert cluster.seeded.kept == []
        assert cluster.seeded.created[:3] == [
            "topic orders (3 records)",
            "topic payments",
            "group billing",
        ]
        records = records_of(cluster.bootstrap, "orders", 3)
        assert {(key, value) for key, value, _ in records} == {
            (b"order-1", b'{"id": 1, "total": 9.5}'),
            (b"order-2", b"plain text"),
            (b"order-1", None),
        }
        [placed] = [one for key, _, one in records if key == b"order-2"]
        assert (placed.partition, placed.timestamp_ms) == (2, 1769860800000)
        assert dict(placed.headers) == {"source": b"import", "trace": None}
        with SyncAdmin(cluster.bootstrap) as admin:
            configs = admin.describe_configs("topic", "orders")
            assert configs["cleanup.policy"].value == "compact,delete"
            committed = admin.list_consumer_group_offsets("billing")
            assert committed[TopicPartition("orders", 2)][::2] == (1, "imported")
            [credential] = admin.describe_user_scram_credentials()["alice"]
            assert (credential.mechanism, credential.iterations) == ("SCRAM-SHA-512", 8192)
            [acl] = admin.describe_acls(AclFilter())
            assert (acl.principal, acl.operation, acl.resource_name) == (
                "User:alice",
                "read",
                "orders",
            )
            [quota] = admin.describe_client_quotas()
            assert quota.values == {"producer_byte_rate": 1048576}
    said: list[str] = []
    again = LocalCluster(directory, seed=seed)
    again.start(say=said.append)
    try:
        assert again.seeded is not None
        assert again.seeded.created == []
        assert len(again.seeded.kept) == 6
        assert said == [f"seed: unchanged {', '.join(again.seeded.kept)}"]
        assert len(records_of(again.bootstrap, "orders", 3)) == 3
    finally:
        again.stop()


@pytest.mark.parametrize(
    ("other", "error"),
    [
        (
            {"topics": [{"name": "new"}, {"name": "orders", "partitions": 4}]},
            r"topics\.1\.partitions: the topic orders exists, with 3 instead of 4; delete it",
        ),
        (
            {"topics": [{"name": "new"}, {"name": "orders", "partitions": 3, "replication": 2}]},
            r"topics\.1\.replication: the topic orders exists, with 1 instead of 2",
        ),
        (
            {
                "topics": [
                    {"name": "new"},
                    {"name": "orders", "partitions": 3, "configs": {"retention.ms": 7}},
                ]
            },
            r"topics\.1\.configs\.retention\.ms: the topic orders exists, with 604800000 instead",
        ),
        (
            {
                "topics": [
                    {"name": "new"},
                    {"name": "orders", "partitions": 3, "records": [{"value": "x"}] * 4},
                ]
            },
            r"topics\.1\.records: the topic orders has 3 records, the seed has 4",
        ),
        (
            {"topics": [{"name": "new", "replication": 3}]},
            r"topics\.0: .*INVALID_REPLICATION_FACTOR",
        ),
        (
            {
                "topics": [{"name": "new"}],
                "groups": [{"name": "g", "offsets": [{"topic": "elsewhere", "offset": 0}]}],
            },
            r"groups\.0\.offsets\.0\.topic: there is no partition elsewhere-0",
        ),
        (
            {
                "topics": [{"name": "new"}],
                "users": [{"name": "alice", "password": "x", "mechanism": "SCRAM-SHA-512"}],
            },
            r"users\.0\.iterations: alice has 8192 iterations instead of 4096",
        ),
        (
            {
                "topics": [{"name": "new"}],
                "quotas": [{"entity": {"user": "alice"}, "values": {"producer_byte_rate": 1}}],
            },
            r"quotas\.0\.values\.producer_byte_rate: the quota of user alice is 1\.04858e\+06",
        ),
        (
            {
                "topics": [{"name": "new"}],
                "quotas": [{"entity": {"user": "bob"}, "values": {"no_such_rate": 1}}],
            },
            r"quotas\.0: .*no_such_rate",
        ),
    ],
)
def test_another_shape_is_refused_and_nothing_is_created(
    seeded: LocalCluster, other: dict[str, Any], error: str
) -> None:
    beside = LocalCluster(seeded.directory, seed=other)
    with pytest.raises(ClusterError, match=error):
        beside.start()
    with SyncAdmin(seeded.bootstrap) as admin:
        assert admin.list_topics() == ["orders", "payments"]
    assert seeded.running() == [1]


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("seeded")
    with LocalCluster(directory / "c", nodes=1, seed=example(directory)) as cluster:
        yield cluster


def test_three_nodes_have_the_seed_with_their_default_replication() -> None:
    topic = {"name": "t", "partitions": 6, "records": [{"value": n} for n in range(300)]}
    with LocalCluster(nodes=3, seed={"topics": [topic]}) as cluster:
        assert len(records_of(cluster.bootstrap, "t", 6)) == 300
        with SyncAdmin(cluster.bootstrap) as admin:
            [described] = admin.describe_topics(["t"]).values()
        assert {len(one.replicas) for one in described.partitions.values()} == {3}
