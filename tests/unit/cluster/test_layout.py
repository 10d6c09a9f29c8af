"""The plan of a cluster and the file that keeps it."""

from dataclasses import replace
from pathlib import Path

import pytest

from quorumlog.cluster import ClusterError, ClusterShape, InvalidArgument, LocalCluster, layout

BOTH = ("broker", "controller")


def test_a_cluster_is_read_back_as_it_was_saved(tmp_path: Path) -> None:
    spec = layout.plan([BOTH, BOTH], host="127.0.0.1", port=9092, config={"num.partitions": "3"})
    layout.save(tmp_path, spec)
    assert layout.load(tmp_path) == spec
    assert spec.bootstrap == "127.0.0.1:9092,127.0.0.1:9093"
    text = layout.properties_file(tmp_path, 2).read_text()
    assert "controller.quorum.voters=1@127.0.0.1:19092,2@127.0.0.1:19093" in text
    assert "default.replication.factor=2" in text
    assert "num.partitions=3" in text


def test_free_ports_are_all_different() -> None:
    spec = layout.plan([BOTH] * 5, host="127.0.0.1", port=0, config={})
    addresses = [address for node in spec.nodes for address in (node.kafka, node.control)]
    assert len(set(addresses)) == 10


def test_node_ids_count_up_from_the_first_and_are_kept(tmp_path: Path) -> None:
    spec = layout.plan([BOTH, BOTH], host="127.0.0.1", port=9092, config={}, first_id=0)
    assert [node.id for node in spec.nodes] == [0, 1]
    layout.save(tmp_path, spec)
    layout.save(tmp_path, replace(spec, was_ready=True))
    assert LocalCluster(tmp_path).spec.nodes == spec.nodes  # whatever the default is
    text = layout.properties_file(tmp_path, 0).read_text()
    assert "node.id=0\n" in text
    assert "controller.quorum.voters=0@127.0.0.1:19092,1@127.0.0.1:19093" in text


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_the_addresses_of_ipv6_have_brackets(tmp_path: Path, host: str) -> None:
    spec = layout.plan([BOTH, BOTH], host=host, port=9092, config={})
    assert spec.bootstrap == "[::1]:9092,[::1]:9093"
    layout.save(tmp_path, spec)
    text = layout.properties_file(tmp_path, 2).read_text()
    assert "listeners=PLAINTEXT://[::1]:9093\n" in text
    assert "controller.quorum.voters=1@[::1]:19092,2@[::1]:19093\n" in text
    old = tmp_path / "cluster.json"
    old.write_text(old.read_text().replace("[::1]", "::1"))  # as an earlier release wrote it
    assert layout.load(tmp_path) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is damaged"),
        ("[]", "is damaged"),
        ('{"format": 9}', "format 9 is not 1"),
        ('{"format": 1, "nodes": [{}], "config": {}, "cluster_id": "x"}', "is damaged"),
    ],
)
def test_a_damaged_cluster_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(ClusterError, match=message):
        LocalCluster.open(tmp_path)


def test_what_cannot_be_planned_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="holds no cluster"):
        LocalCluster.open(tmp_path)
    with pytest.raises(ClusterError, match="at least one"):
        LocalCluster(tmp_path, nodes=0)
    with pytest.raises(ClusterError, match="go together"):
        LocalCluster(tmp_path, controllers=1)
    with pytest.raises(ClusterError, match="fast or kafka"):
        LocalCluster(tmp_path, defaults="slow")
    with pytest.raises(ClusterError, match="choose one from 1 to"):
        LocalCluster(tmp_path, port=60_000)
    for first_id in (-1, 2**31 - 3):
        with pytest.raises(ClusterError, match=f"first-id {first_id}: choose one from 0 to"):
            LocalCluster(tmp_path, first_id=first_id)


def test_a_node_that_does_not_run_cannot_be_signalled(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, nodes=1)
    with pytest.raises(ClusterError, match="node 1 does not run"):
        cluster.kill(1)
    with pytest.raises(ClusterError, match="there is no node 7; this cluster has 1"):
        cluster.pause(7)


def test_a_node_without_the_role_of_a_broker_has_no_place_in_the_bootstrap() -> None:
    roles = ClusterShape(controllers=1, brokers=2).roles
    spec = layout.plan(roles, host="127.0.0.1", port=9092, config={})
    assert [node.roles for node in spec.nodes] == [("controller",), ("broker",), ("broker",)]
    assert spec.bootstrap == "127.0.0.1:9093,127.0.0.1:9094"
    assert spec.config["default.replication.factor"] == "2"


@pytest.mark.parametrize(
    ("nodes", "controllers", "brokers"), [(0, None, None), (3, 1, None), (3, None, 1), (3, 0, 2)]
)
def test_a_shape_that_cannot_be(nodes: int, controllers: int | None, brokers: int | None) -> None:
    with pytest.raises(InvalidArgument):
        ClusterShape(nodes, controllers, brokers)


def test_a_shape_says_the_options_that_ask_for_it() -> None:
    assert ClusterShape().options() == []
    assert ClusterShape(5).options() == ["--nodes", "5"]
    apart = ClusterShape(controllers=3, brokers=2)
    assert apart.options() == ["--controllers", "3", "--brokers", "2"]
    assert apart.broker_count == 2
