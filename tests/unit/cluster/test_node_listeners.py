"""The listeners of a cluster's nodes: planned, recorded, kept, and refused."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog import LocalCluster
from quorumlog.addresses import address_text
from quorumlog.cluster import layout
from quorumlog.cluster.errors import ClusterError, InvalidArgument
from quorumlog.cluster.node_listeners import control_host, read_host, read_option
from quorumlog.node import config

DOCKER = "docker://0.0.0.0:23960,advertised=host.docker.internal"


def properties(cluster: LocalCluster, node_id: int) -> dict[str, str]:
    node = cluster.spec.node(node_id)
    return dict(layout.node_properties(cluster.directory, cluster.spec, node))


def test_ports_count_up_at_each_listener(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, nodes=3, port=23950, listeners=[DOCKER])
    assert cluster.check() == []
    assert properties(cluster, 3)["listeners"] == (
        "PLAINTEXT://127.0.0.1:23952,DOCKER://0.0.0.0:23962"
    )
    assert properties(cluster, 3)["advertised.listeners"] == (
        "PLAINTEXT://127.0.0.1:23952,DOCKER://host.docker.internal:23962"
    )
    built = config.build(properties(cluster, 3))
    assert built.listeners.inter_broker.name == "PLAINTEXT"
    assert cluster.bootstrap == "127.0.0.1:23950,127.0.0.1:23951,127.0.0.1:23952"
    [shown] = cluster.describe_node(cluster.nodes[0])["listeners"]
    assert shown["advertised"] == "host.docker.internal:23960"


def test_one_advertised_host_has_the_port_of_each_node_or_ports_that_count_up(
    tmp_path: Path,
) -> None:
    own = LocalCluster(tmp_path, nodes=2, host="0.0.0.0", port=23950, advertised="h.test")
    assert own.bootstrap == "h.test:23950,h.test:23951"
    assert own.check() == []
    mapped = LocalCluster(tmp_path, nodes=2, host="::", port=23950, advertised="[fd00::1]:80")
    assert mapped.bootstrap == "[fd00::1]:80,[fd00::1]:81"
    assert [node.control for node in mapped.nodes] == ["[::1]:33950", "[::1]:33951"]


def test_brokers_here_reach_each_other_where_they_are_bound(tmp_path: Path) -> None:
    cluster = LocalCluster(
        tmp_path, controllers=1, brokers=2, host="0.0.0.0", port=23950, advertised="h"
    )
    assert properties(cluster, 2)["peer.kafka.addresses"] == "3@127.0.0.1:23952"
    assert properties(cluster, 1)["peer.kafka.addresses"] == "2@127.0.0.1:23951,3@127.0.0.1:23952"


def test_a_cluster_without_options_has_the_properties_of_before(tmp_path: Path) -> None:
    own = properties(LocalCluster(tmp_path, nodes=3, port=23950), 1)
    assert own["listeners"] == "PLAINTEXT://127.0.0.1:23950"
    assert not {"advertised.listeners", "listener.security.protocol.map"} & own.keys()
    assert not {"inter.broker.listener.name", "peer.kafka.addresses"} & own.keys()


def test_an_existing_cluster_keeps_its_listeners_and_refuses_others(tmp_path: Path) -> None:
    made = LocalCluster(tmp_path, nodes=2, port=23950, listeners=[DOCKER], advertised="localhost")
    layout.save(tmp_path, replace(made.spec, was_ready=True))
    assert LocalCluster(tmp_path).spec.nodes == made.spec.nodes
    same = "DOCKER://0.0.0.0,advertised=host.docker.internal"
    kept = LocalCluster(tmp_path, listeners=[same], advertised="localhost:23950")
    assert kept.spec.nodes == made.spec.nodes
    for options, message in (
        ({"listeners": ["DOCKER://0.0.0.0,advertised=other"]}, "it has DOCKER://0.0.0.0:23960"),
        ({"listeners": ["DOCKER://127.0.0.1"]}, "it has DOCKER://0.0.0.0:23960"),
        ({"listeners": [DOCKER, "LAN://10.0.0.1"]}, "it has no listener LAN"),
        ({"advertised": "other"}, "advertises localhost:23950"),
    ):
        with pytest.raises(InvalidArgument) as refused:
            LocalCluster(tmp_path, **options)
        assert message in str(refused.value)
        assert "choose another --dir" in str(refused.value)


@pytest.mark.parametrize(
    ("listener", "message"),
    [
        ("DOCKER", "write it as NAME://BIND"),
        ("DOCKER://h,advertise=x", "write it as NAME://BIND"),
        ("DOCKER://0.0.0.0", "add ,advertised=HOST"),
        ("DOCKER://h,advertised=0.0.0.0", "name one host"),
        ("DOCKER://h:0", "choose a port from 1 to 65535"),
        ("DOCKER://h:x", "write it as HOST or HOST:PORT"),
        ("DOCKER://h:65535", "2 nodes have no ports above 65535"),
        ("PLAINTEXT://h:23960", "choose another name"),
        ("DOCKER://h:23949", "port 23950 would be bound twice"),
    ],
)
def test_a_listener_that_cannot_be_is_refused(tmp_path: Path, listener: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        LocalCluster(tmp_path, nodes=2, port=23950, listeners=[listener])
    assert message in str(refused.value)
    assert str(refused.value).startswith("--listener")


def test_a_name_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="must have a different name"):
        LocalCluster(tmp_path, listeners=["A://h:1", "a://h:100"])


@pytest.mark.parametrize("text", ["h:x", ":1", "", "a b", "http://h", "h:65536"])
def test_an_advertised_address_that_cannot_be_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^--advertised"):
        LocalCluster(tmp_path, advertised=text)


@pytest.mark.parametrize(
    ("host", "control"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.9", "127.0.0.9"),
        ("localhost", "localhost"),
        ("0.0.0.0", "127.0.0.1"),
        ("10.1.2.3", "127.0.0.1"),
        ("my-host", "127.0.0.1"),
        ("::1", "::1"),
        ("::", "::1"),
        ("fd00::1", "::1"),
    ],
)
def test_the_control_listeners_stay_on_loopback(host: str, control: str) -> None:
    assert control_host(host) == control


HOSTS = st.one_of(
    st.ip_addresses().map(str), st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True)
)


@given(host=HOSTS, port=st.one_of(st.none(), st.integers(1, 65_535)))
def test_every_address_is_read_as_it_was_written(host: str, port: int | None) -> None:
    text = host if port is None else address_text(host, port)
    assert read_host("--advertised", text) == (host, port)
    option = read_option(f"lan://h,advertised={text}") if host not in {"0.0.0.0", "::"} else None
    assert option is None or (option.advertised_host, option.advertised_port) == (host, port)


@pytest.mark.parametrize("text", ["a:b:c", "[a:b]:9092", "::1:x", "1:2:3:4:5:6:7:8:9"])
def test_colons_outside_of_an_ipv6_address_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"write it as HOST or HOST:PORT"):
        read_host("--advertised", text)


@pytest.mark.parametrize("host", ["203.0.113.9", "a:b"])
def test_a_host_that_is_not_here_is_named(tmp_path: Path, host: str) -> None:
    with pytest.raises(ClusterError, match=f"no listener of this machine can be bound to {host}:"):
        LocalCluster(tmp_path / "new", host=host)
    assert not (tmp_path / "new").exists()
