"""A cluster of real processes: it survives what it promises to survive."""

import asyncio
import contextlib
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from quorumlog import LocalCluster, Producer
from quorumlog.cluster import ClusterError, NodeFailed, layout
from tests.support.cluster.kept_topic import create, produce, read_all

pytestmark = pytest.mark.integration


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
def test_a_cluster_on_an_address_of_ipv6_replicates_and_fails_over() -> None:
    with LocalCluster(nodes=3, host="::1") as cluster:
        asyncio.run(create(cluster.bootstrap, num_partitions=3, replication_factor=3))
        asyncio.run(produce(cluster.bootstrap, range(10)))
        cluster.kill(cluster.status()["controller_id"])
        asyncio.run(produce(cluster.bootstrap, range(10, 20)))
        assert sorted(asyncio.run(read_all(cluster.bootstrap))) == [*range(20)]


def test_garbage_and_unknown_requests_leave_the_node_unharmed() -> None:
    with LocalCluster(nodes=1) as cluster:
        host, _, port = cluster.bootstrap.rpartition(":")
        frames = [
            b"GET / HTTP/1.1\r\n\r\n",  # a length of over a gigabyte
            struct.pack(">i", -5),
            struct.pack(">i", 3) + b"abc",
            struct.pack(">ihhih", 10, 999, 0, 7, -1),  # an API that nobody knows
            struct.pack(">ihhih", 12, 0, 9, 7, -1) + b"\xff\xff",  # a truncated produce
        ]
        for frame in frames:
            with socket.create_connection((host, int(port)), timeout=10) as connection:
                connection.sendall(frame)
                connection.settimeout(10)
                with contextlib.suppress(ConnectionResetError):
                    assert connection.recv(100) == b"", frame
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(struct.pack(">ihhih", 10, 18, 99, 7, -1))  # ApiVersions v99
            answer = connection.recv(4096)
        assert struct.unpack(">ih", answer[4:10]) == (7, 35)
        asyncio.run(produce_to_single(cluster.bootstrap))
        assert cluster.pid(1) is not None


async def produce_to_single(bootstrap: str) -> None:
    async with Producer(bootstrap) as producer:
        assert (await producer.send_and_wait("auto-created", b"x")).offset == 0


def run_node(properties: Path, *settings: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "quorumlog.node", str(properties)]
    for setting in settings:
        command += ["--config", setting]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr.strip().splitlines()[-1]


def test_a_node_that_cannot_run_says_why_in_one_line(tmp_path: Path) -> None:
    spec = layout.plan([("broker", "controller")], host="127.0.0.1", port=0, config={})
    layout.save(tmp_path, spec)
    properties = layout.properties_file(tmp_path, 1)
    assert run_node(properties, "num.partition=1") == (
        64,
        "quorumlog: configuration: unknown setting num.partition; did you mean num.partitions?",
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        status, line = run_node(properties, f"listeners=PLAINTEXT://{address}")
        assert (status, line) == (1, f"quorumlog: listeners={address}: Address already in use")
    data = layout.node_directory(tmp_path, 1) / "data"
    status, line = run_node(properties, "cluster.id=another")
    assert status == 1
    assert f"{data} belongs to cluster {spec.cluster_id}, not another" in line
    (data / "meta.properties").write_text("version=1\nnonsense\n")
    status, line = run_node(properties)
    assert status == 1
    assert "meta.properties" in line


def test_two_nodes_never_share_a_directory(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, nodes=1) as cluster:
        with pytest.raises(ClusterError, match="runs already"):
            cluster.start_node(1)
        with pytest.raises(ClusterError, match=r"node 1 still runs, .*it has no last words"):
            cluster.last_words(1)
        status, line = run_node(layout.properties_file(tmp_path, 1))
        assert status == 1
        assert "is in use by another process" in line


def test_a_node_that_fails_at_the_start_is_reported_with_its_last_words(tmp_path: Path) -> None:
    identity = tmp_path / "node-1/data/meta.properties"
    identity.parent.mkdir(parents=True)
    identity.write_text("version=1\nnonsense\n")
    cluster = LocalCluster(tmp_path, nodes=1)
    with pytest.raises(NodeFailed, match=r"status 1: .*meta\.properties"):
        cluster.start()


def test_a_start_that_is_interrupted_at_its_last_step_leaves_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(directory: Path, spec: layout.ClusterSpec) -> None:
        if spec.was_ready:
            raise KeyboardInterrupt
        saved(directory, spec)

    saved = layout.save
    monkeypatch.setattr(layout, "save", save)
    cluster = LocalCluster(tmp_path / "c", nodes=1)
    with pytest.raises(KeyboardInterrupt):
        cluster.start()
    assert cluster.running() == []


def test_a_port_that_another_bound_first_is_named_even_when_it_shows_late(tmp_path: Path) -> None:
    spec = layout.plan([("broker", "controller")], host="127.0.0.1", port=0, config={})
    layout.save(tmp_path, spec)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        host, _, port = spec.nodes[0].kafka.rpartition(":")
        taken.bind((host, int(port)))  # two may bind; the second to listen is refused
        process = subprocess.Popen(
            [sys.executable, "-m", "quorumlog.node", str(layout.properties_file(tmp_path, 1))],
            stderr=subprocess.PIPE,
            text=True,
        )
        taken.listen()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    last = f"quorumlog: listeners={spec.nodes[0].kafka}: Address already in use"
    assert errors.strip().splitlines()[-1] == last
