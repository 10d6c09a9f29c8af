"""The plan of a cluster, its file, its secret, and the settings that it may have."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quorumlog.cluster import ClusterError, ClusterShape, InvalidArgument, LocalCluster, layout
from quorumlog.cluster.defaults import SAFE_SETTINGS
from quorumlog.cluster.files import SECRET_FILE, make_secret, secret_file
from quorumlog.cluster.settings_check import OF_EACH_NODE
from quorumlog.settings.servers import IDENTITY

BOTH = ("broker", "controller")


def test_a_cluster_is_read_back_as_it_was_saved(tmp_path: Path) -> None:
    spec = layout.plan([BOTH, BOTH], host="127.0.0.1", port=9092, config={"num.partitions": "3"})
    layout.save(tmp_path, spec)
    assert layout.load(tmp_path) == spec
    assert spec.bootstrap == "127.0.0.1:9092,127.0.0.1:9093"
    text = layout.properties_file(tmp_path, 2).read_text()
    assert "controller.quorum.voters=1@127.0.0.1:19092,2@127.0.0.1:19093" in text
    assert "default.replication.factor=2" in text
    assert "transaction.state.log.min.isr=2" in text
    assert "num.partitions=3" in text
    one = layout.plan([BOTH], host="127.0.0.1", port=0, config={}).config
    assert {value for name, value in one.items() if "replica" in name or "isr" in name} == {"1"}
    free = layout.plan([BOTH] * 5, host="127.0.0.1", port=0, config={})
    assert len({address for node in free.nodes for address in (node.kafka, node.control)}) == 10


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": 0}, "at least one"),
        ({"controllers": 1}, "go together"),
        ({"defaults": "slow"}, "fast, kafka or safe"),
        ({"defaults": "safe", "nodes": 2}, "3 replicas need 3 brokers, and there are 2"),
        ({"racks": "a,b,c,d"}, "each rack needs a broker, and there are 3; leave out d"),
        ({"racks": "a,,b"}, "write names without spaces and colons"),
        ({"racks": ["a b"]}, "write names without spaces and colons"),
        ({"racks": ["a", "rack:b"]}, "write names without spaces and colons"),
        ({"racks": ""}, "write names without spaces and colons"),
        ({"racks": "a, b, a"}, "a is named twice; name each rack once"),
        ({"port": 60_000}, "choose one from 1 to"),
        ({"first_id": -1}, "first-id -1: choose one from 0 to"),
        ({"first_id": 2**31 - 3}, f"first-id {2**31 - 3}: choose one from 0 to"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ClusterError, match="holds no cluster"):
        LocalCluster.open(tmp_path)
    with pytest.raises(ClusterError, match=message):
        LocalCluster(tmp_path, **options)


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


def test_nodes_are_spread_over_the_racks_in_order_by_their_roles() -> None:
    assert ClusterShape(5, racks=("a", "b", "c")).node_racks == ["a", "b", "c", "a", "b"]
    apart = ClusterShape(controllers=3, brokers=3, racks=("a", "b"))
    assert apart.node_racks == ["a", "b", "a", "a", "b", "a"]
    assert ClusterShape(2).node_racks == [None, None]


def test_a_cluster_keeps_its_racks(tmp_path: Path) -> None:
    made = LocalCluster(tmp_path, racks="a, b")
    assert [made.spec.rack(node) for node in made.nodes] == ["a", "b", "a"]
    assert [made.describe_node(node)["rack"] for node in made.nodes] == ["a", "b", "a"]
    layout.save(tmp_path, replace(made.spec, was_ready=True))
    assert "broker.rack=b\n" in layout.properties_file(tmp_path, 2).read_text()
    assert LocalCluster(tmp_path).spec.nodes == made.nodes
    assert LocalCluster(tmp_path, racks=["a", "b"]).check() == []
    with pytest.raises(InvalidArgument, match="has the racks a,b; leave --racks out"):
        LocalCluster(tmp_path, racks="b,a")
    with pytest.raises(InvalidArgument, match=r"broker\.rack: the nodes have the racks of --racks"):
        LocalCluster(tmp_path, config={"broker.rack": "c"}).check()


def test_a_cluster_without_racks_gets_none_later(tmp_path: Path) -> None:
    made = LocalCluster(tmp_path, config={"broker.rack": "all"})
    assert {made.spec.rack(node) for node in made.nodes} == {"all"}
    assert made.check() == []
    layout.save(tmp_path, replace(made.spec, was_ready=True))
    with pytest.raises(InvalidArgument, match="has no racks; leave --racks out"):
        LocalCluster(tmp_path, racks="a,b,c")


def test_the_safe_defaults_are_in_the_files_of_the_nodes(tmp_path: Path) -> None:
    made = LocalCluster(tmp_path, nodes=4, defaults="safe", config={"min.insync.replicas": "3"})
    layout.save(tmp_path, made.spec)
    lines = layout.properties_file(tmp_path, 1).read_text().splitlines()
    given = {**SAFE_SETTINGS, "min.insync.replicas": "3"}
    assert {f"{name}={value}" for name, value in given.items()} <= {*lines}
    assert made.check() == []
    layout.save(tmp_path, replace(made.spec, was_ready=True))
    assert LocalCluster(tmp_path, defaults="safe").spec.config == made.spec.config


def test_a_cluster_that_exists_does_not_become_safe(tmp_path: Path) -> None:
    made = LocalCluster(tmp_path, config={"min.insync.replicas": "2"})
    layout.save(tmp_path, replace(made.spec, was_ready=True))
    with pytest.raises(InvalidArgument, match=r"--defaults safe: .* keeps its settings"):
        LocalCluster(tmp_path, defaults="safe")


def test_a_shape_says_the_options_that_ask_for_it() -> None:
    assert ClusterShape().options() == []
    assert ClusterShape(5).options() == ["--nodes", "5"]
    apart = ClusterShape(controllers=3, brokers=2)
    assert apart.options() == ["--controllers", "3", "--brokers", "2"]
    assert ClusterShape(racks=("a", "b")).options() == ["--racks", "a,b"]
    assert apart.broker_count == 2


# --- a new cluster has a secret and marks of its voters, and no other gets them ---


SPEC = layout.plan([("broker", "controller")], host="127.0.0.1", port=9092, config={})


def found_and_save(directory: Path, spec: layout.ClusterSpec = SPEC) -> None:
    layout.found(directory, spec)
    layout.save(directory, spec)


def test_a_new_cluster_has_a_secret_that_its_owner_alone_can_read(tmp_path: Path) -> None:
    for name in ("a", "b"):
        found_and_save(tmp_path / name)
    path = tmp_path / "a" / SECRET_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    secret = path.read_text().strip()
    assert len(secret) >= 43
    assert secret != (tmp_path / "b" / SECRET_FILE).read_text().strip()  # of another cluster
    properties = layout.properties_file(tmp_path / "a", 1).read_text()
    assert f"control.shared.secret.file={path}\n" in properties
    assert secret not in properties
    assert secret not in (tmp_path / "a" / layout.CLUSTER_FILE).read_text()
    found_and_save(tmp_path / "a")
    assert path.read_text().strip() == secret  # it stays when the cluster is started again


def test_the_voters_of_a_new_cluster_are_marked(tmp_path: Path) -> None:
    found_and_save(
        tmp_path, layout.plan([("controller",), ("broker",)], host="h", port=9092, config={})
    )
    assert (layout.data_directory(tmp_path, 1) / "new-cluster").exists()
    assert not layout.data_directory(tmp_path, 2).exists()


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ClusterError, match="choose another --dir"):
        layout.found(tmp_path / "file" / "c", SPEC)


def test_a_cluster_that_was_made_without_a_secret_goes_on_without(tmp_path: Path) -> None:
    layout.save(tmp_path / "old", SPEC)
    assert secret_file(tmp_path / "old") is None
    assert "secret" not in layout.properties_file(tmp_path / "old", 1).read_text()
    half = tmp_path / "half"
    half.mkdir()
    (half / f"{SECRET_FILE}.new").write_text("hal")  # one that was half written is made anew
    make_secret(half)
    assert len((half / SECRET_FILE).read_text()) > 40
    assert [path.name for path in half.iterdir()] == [SECRET_FILE]


# --- settings for all nodes: one that each node must have for itself is refused ---


COMMON = {
    "controller.quorum.bootstrap.servers": "127.0.0.1:23900",
    "broker.rack": "a",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT",
    "security.inter.broker.protocol": "PLAINTEXT",
    "control.oauth.key.file": "tokens.key",
}
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
    with pytest.raises(InvalidArgument, match="add --advertised HOST"):
        LocalCluster(tmp_path, nodes=1, host="0.0.0.0", port=23911).check()
