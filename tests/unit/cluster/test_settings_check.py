"""Settings for all nodes of a cluster: what each node must have for itself is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from quorumlog.cluster import InvalidArgument, LocalCluster, layout
from quorumlog.cluster.settings_check import OF_EACH_NODE
from quorumlog.settings.servers import IDENTITY

COMMON = {"controller.quorum.bootstrap.servers": "127.0.0.1:23900", "broker.rack": "a"}
LISTENER = "PLAINTEXT://127.0.0.1:23901"


def test_each_setting_of_an_identity_is_common_or_of_each_node() -> None:
    assert {row.name for row in IDENTITY} == OF_EACH_NODE.keys() | COMMON.keys()


@pytest.mark.parametrize("name", OF_EACH_NODE)
def test_what_each_node_has_for_itself_is_refused_for_three(tmp_path: Path, name: str) -> None:
    """`advertised.listeners` for all was taken: then no replica found another broker."""
    cluster = LocalCluster(tmp_path / "c", nodes=3, config={name: LISTENER})
    with pytest.raises(InvalidArgument) as refused:
        cluster.start()
    said = str(refused.value)
    assert said.startswith(f"setting {name}: each node has its own; it cannot be set for all")
    assert OF_EACH_NODE[name] in said
    assert "python -m quorumlog.node FILE" in said
    assert not cluster.directory.exists()


def test_the_environment_is_no_way_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORUMLOG_CONFIG_ADVERTISED_LISTENERS", LISTENER)
    with pytest.raises(InvalidArgument, match=r"\.listeners \(in the environment\): each"):
        LocalCluster(tmp_path, nodes=3).check()
    assert LocalCluster(tmp_path, nodes=1).check() == []


@pytest.mark.parametrize("name", COMMON)
def test_the_others_may_be_the_same_on_all_nodes(tmp_path: Path, name: str) -> None:
    assert LocalCluster(tmp_path, nodes=3, config={name: COMMON[name]}).check() == []


@pytest.mark.parametrize("value", ["2", ""])
def test_a_cluster_that_exists_keeps_its_min_insync_replicas(tmp_path: Path, value: str) -> None:
    """It is in the metadata: a node that starts with another one would not go by it."""
    name = "min.insync.replicas"
    new = LocalCluster(tmp_path, nodes=3, config={name: "3"})
    layout.save(tmp_path, replace(new.spec, was_ready=True))
    assert LocalCluster(tmp_path, config={name: "3"}).spec.config[name] == "3"
    with pytest.raises(InvalidArgument, match=rf"--set {name}={value or 1}"):
        LocalCluster(tmp_path, config={name: value})


def test_one_node_listens_and_advertises_as_it_is_told(tmp_path: Path) -> None:
    config = {
        "listeners": "PLAINTEXT://0.0.0.0:23902",
        "advertised.listeners": "PLAINTEXT://host.docker.internal:23903",
    }
    cluster = LocalCluster(tmp_path, nodes=1, port=23910, config=config)
    assert cluster.check() == []
    [node] = cluster.nodes
    assert cluster.bootstrap == "host.docker.internal:23903"
    assert cluster.spec.kafka_address(node) == "0.0.0.0:23902"
    assert cluster.describe_node(node)["kafka"] == "host.docker.internal:23903"
    layout.save(tmp_path, replace(cluster.spec, was_ready=True))
    lines = layout.properties_file(tmp_path, 1).read_text().splitlines()
    assert [line for line in lines if line.startswith("listeners=")] == [
        "listeners=PLAINTEXT://0.0.0.0:23902"
    ]
    taken_back = LocalCluster(tmp_path, config=dict.fromkeys(config, ""))
    assert taken_back.bootstrap == "127.0.0.1:23910"


def test_a_node_on_all_addresses_has_its_control_listener_on_the_loopback_one(
    tmp_path: Path,
) -> None:
    config = {"advertised.listeners": "PLAINTEXT://localhost:23911"}
    cluster = LocalCluster(tmp_path, nodes=1, host="0.0.0.0", port=23911, config=config)
    assert cluster.check() == []
    [node] = cluster.nodes
    assert (node.kafka, node.control) == ("0.0.0.0:23911", "127.0.0.1:33911")
    assert cluster.bootstrap == "localhost:23911"
    with pytest.raises(InvalidArgument, match=r"set advertised\.listeners"):
        LocalCluster(tmp_path, nodes=1, host="0.0.0.0", port=23911).check()
