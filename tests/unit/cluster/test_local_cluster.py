"""What a cluster directory remembers of starts and stops: with nodes that do nothing."""

import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quorumlog.cluster import (
    ClusterError,
    InvalidArgument,
    LocalCluster,
    NodeFailed,
    cluster_nodes,
    layout,
    process_identity,
    registry,
)
from quorumlog.cluster.cluster_status import NodeState
from quorumlog.node.progress import note_end, progress_file

Make = Callable[..., LocalCluster]


def recorded(cluster: LocalCluster) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((cluster.directory / "cluster.json").read_text())
    return document


def stopped(cluster: LocalCluster) -> LocalCluster:
    """A cluster that was started and stopped."""
    cluster.start()
    cluster.stop()
    return cluster


@contextmanager
def listening() -> Iterator[int]:
    """A port that is in use."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


def pids(cluster: LocalCluster) -> list[int | None]:
    return [cluster.pid(node.id) for node in cluster.nodes]


def test_the_voters_of_a_new_cluster_are_marked_and_a_wiped_one_is_not(make: Make) -> None:
    cluster = stopped(make(nodes=3))
    marks = [layout.data_directory(cluster.directory, node) / "new-cluster" for node in (1, 2, 3)]
    assert all(mark.exists() for mark in marks)
    shutil.rmtree(marks[1].parent)
    make().start()
    assert [mark.exists() for mark in marks] == [True, False, True]


def test_a_first_start_that_fails_binds_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NODES", "2:fails")
    failed = make(nodes=3)
    with pytest.raises(NodeFailed, match=r"node 2 ended with status 1: .*as it was told"):
        failed.start()
    assert pids(failed) == [None, None, None]
    assert registry.running() == []
    assert recorded(failed)["was_ready"] is False
    opened = LocalCluster.open(failed.directory)  # it can be looked at, and started as it is
    assert (opened.spec, pids(opened)) == (failed.spec, [None, None, None])
    monkeypatch.delenv("FAKE_NODES")
    again = make(nodes=2)  # another shape, other ports, another cluster
    again.start()
    assert recorded(again)["was_ready"] is True
    assert recorded(again)["cluster_id"] != failed.spec.cluster_id
    assert not layout.node_directory(again.directory, 3).exists()


def test_a_cluster_that_was_used_is_never_planned_anew(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first start was killed between the nodes' readiness and the record of it."""
    monkeypatch.setenv("FAKE_NODES", "1:fails")
    first = make(nodes=1)
    with pytest.raises(NodeFailed):
        first.start()
    partition = layout.node_directory(first.directory, 1) / "data/orders-0"
    partition.mkdir(parents=True)
    monkeypatch.delenv("FAKE_NODES")
    again = make(nodes=1, port=9092)
    again.start()
    assert again.spec.cluster_id == first.spec.cluster_id
    assert again.spec.nodes == first.spec.nodes
    assert partition.exists()
    with pytest.raises(ClusterError, match="is not removed"):
        layout.clear(first.directory, first.spec)


@pytest.mark.skipif(
    not Path("/proc/net/tcp").exists(), reason="the system does not show who listens"
)
def test_a_port_of_another_cluster_is_told_with_the_way_to_stop_it(make: Make) -> None:
    with listening() as port:
        registry.add(
            registry.Entry(
                directory="/elsewhere",
                cluster_id="d",
                node_id=4,
                kafka=f"127.0.0.1:{port}",
                pid=os.getpid(),
                started=process_identity.started(os.getpid()) or "",
                owner_pid=os.getpid(),
                owner_started="",
                temporary=False,
            )
        )
        cluster = make(nodes=1)
        (node,) = cluster.nodes
        cluster.spec = replace(cluster.spec, nodes=(replace(node, kafka=f"127.0.0.1:{port}"),))
        with pytest.raises(ClusterError, match="node 4 of the cluster in /elsewhere; `quorumlog"):
            cluster.start()


@pytest.mark.parametrize("name", ["nodes", "controllers", "port", "first_id"])
def test_true_is_no_number(make: Make, name: str) -> None:
    more: dict[str, Any] = {"brokers": 1} if name == "controllers" else {}
    with pytest.raises(InvalidArgument, match=f"{name}=True: it is a whole number"):
        make(**{name: True}, **more)


def test_a_path_that_would_be_two_directories_is_refused_before_a_file_is_written(
    tmp_path: Path,
) -> None:
    for name in ("a,b", "a\nb"):
        directory = tmp_path / name
        with pytest.raises(InvalidArgument, match="a comma or a control character in its path"):
            LocalCluster(directory, nodes=1).start()
        assert not directory.exists()


def test_a_port_in_use_is_told_with_its_process_before_anything_is_written(make: Make) -> None:
    with listening() as port:
        first = port - layout.CONTROL_PORT_STEP if port > 20_000 else port
        cluster = make(nodes=1, port=first)
        with pytest.raises(ClusterError, match=rf"127.0.0.1:{port} \(node 1, .*\): in use") as told:
            cluster.start()
        apart = make(nodes=1, port=0, listeners=[f"A://127.0.0.1:{port}"])
        with pytest.raises(ClusterError, match="give its --listener another port"):
            apart.start()
        secured = make(nodes=1, port=0, sasl="plain", users={"a": "b"})
        (node,) = secured.nodes
        secured.spec = replace(secured.spec, nodes=(replace(node, internal=f"127.0.0.1:{port}"),))
        with pytest.raises(ClusterError, match=r"INTERNAL of the brokers\): .* another --port"):
            secured.start()
    assert "choose another --port" in str(told.value)
    if port > 20_000:
        assert "control port, its Kafka port + 10000" in str(told.value)
    assert not cluster.directory.exists()
    make(nodes=1).start()


@pytest.mark.parametrize(
    "config",
    [
        {"log.rol.ms": "5"},
        {"num.partitions": "many"},
        {"node.id": "4"},
        {"a": "b\nnode.id=4"},
        {"sasl.enabled.mechanisms": "PLAIN"},
        {"never.heard.of": ""},
    ],
)
def test_settings_that_make_no_sense_leave_no_trace(make: Make, config: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument):
        make(nodes=1, config=config).start()
    assert not (make(nodes=1).directory).exists()


def test_settings_are_recorded_once_the_nodes_are_ready_with_them(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = stopped(make(nodes=1, config={"num.partitions": "3"}))
    before = recorded(cluster)
    with pytest.raises(InvalidArgument):
        make(config={"log.rol.ms": "5"}).start()
    monkeypatch.setenv("FAKE_NODES", "1:fails")
    with pytest.raises(NodeFailed):
        make(config={"num.partitions": "5"}).start()
    assert recorded(cluster) == before
    monkeypatch.delenv("FAKE_NODES")
    reopened = make()
    reopened.start_node(1)  # with what is recorded, not with what failed
    assert "num.partitions=3\n" in layout.properties_file(cluster.directory, 1).read_text()
    reopened.stop()
    make(config={"num.partitions": "5"}).start()
    assert recorded(cluster)["config"]["num.partitions"] == "5"


def test_an_empty_value_takes_a_setting_back(make: Make) -> None:
    cluster = make(nodes=1, config={"num.partitions": "3", "broker.session.timeout.ms": ""})
    assert "broker.session.timeout.ms" not in cluster.spec.config  # of the fast defaults
    stopped(cluster)
    stopped(make(config={"num.partitions": ""}))
    assert "num.partitions" not in recorded(cluster)["config"]
    assert "\nnum.partitions=" not in layout.properties_file(cluster.directory, 1).read_text()
    file = cluster.directory / "cluster.json"
    before = file.stat()
    stopped(make())
    assert file.stat().st_ino == before.st_ino  # a start that changes nothing writes nothing
    document = recorded(cluster)
    document["config"]["log.rol.ms"] = "5"
    file.write_text(json.dumps(document))
    with pytest.raises(InvalidArgument, match="did you mean"):
        make().start()
    make(config={"log.rol.ms": ""}).start()  # a recorded name that is unknown
    assert "log.rol.ms" not in recorded(cluster)["config"]


def test_a_directory_that_cannot_be_written_is_told_with_the_option(
    make: Make, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ClusterError, match=r"file/c.*; choose another --dir"):
        make(tmp_path / "file/c", nodes=1).start()


def test_a_node_that_ends_by_itself_during_stop_is_no_error(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make(nodes=2)
    cluster.start()
    real = cluster._processes[1].signal_if_running
    child = cluster._processes[1]._child
    assert child is not None

    def ends_first(number: signal.Signals) -> bool:
        if child.poll() is None:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
        return real(number)

    monkeypatch.setattr(cluster._processes[1], "signal_if_running", ends_first)
    assert cluster.stop() == ()
    assert pids(cluster) == [None, None]


def test_a_node_that_had_to_be_killed_is_told(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NODES", "2:deaf")
    monkeypatch.setattr(cluster_nodes, "STOP_TIMEOUT_S", 0.5)
    cluster = make(nodes=2)
    cluster.start()
    assert 2 in cluster.stop()
    assert pids(cluster) == [None, None]


def test_the_state_of_a_node_is_that_of_its_process(make: Make) -> None:
    cluster = make(nodes=3)
    assert cluster.state(1) is NodeState.NOT_STARTED
    cluster.start()
    assert cluster.state(1) is NodeState.NO_ANSWER  # it runs; nobody has asked it
    cluster.pause(1)
    cluster.kill(2)
    cluster.stop_node(3)
    opened = LocalCluster.open(cluster.directory)
    states = [opened.state(node.id) for node in opened.nodes]
    assert states == [NodeState.PAUSED, NodeState.KILLED, NodeState.STOPPED]
    cluster.start_node(3)
    cluster.kill(3)
    assert opened.state(3) is NodeState.KILLED
    note_end(progress_file(layout.pid_file(cluster.directory, 3)), 70)
    assert opened.state(3) is NodeState.EXITED


def test_a_node_that_is_not_waited_for_costs_no_descriptor(make: Make) -> None:
    cluster = make(nodes=1)
    cluster.start()
    before = len(list(Path("/dev/fd").iterdir()))
    for _ in range(3):
        cluster.kill(1)
        cluster.start_node(1, wait=False)
        while cluster._processes[1]._is_locked() is False:
            assert cluster._processes[1]._child is not None
            assert cluster._processes[1]._child.poll() is None
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_a_temporary_directory_is_made_at_the_start_and_goes_at_the_end(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = make(None, nodes=1)
    assert not cluster.directory.exists()
    with cluster:
        assert cluster.directory.exists()
    assert not cluster.directory.exists()
    monkeypatch.setenv("FAKE_NODES", "1:fails")
    failing = make(None, nodes=1)
    with pytest.raises(NodeFailed), failing:
        pass
    assert not failing.directory.exists()


def test_a_start_keeps_the_advances_that_another_process_has_recorded(make: Make) -> None:
    cluster = stopped(make(nodes=2))
    other = LocalCluster.open(cluster.directory)
    made = ((1_796_000_000_000, 3_600_000),)
    layout.save(cluster.directory, replace(other.spec, advances=made))
    cluster.start()
    assert (cluster.spec.advances, layout.load(cluster.directory).advances) == (made, made)
    properties = layout.properties_file(cluster.directory, 2).read_text()
    assert "clock.advances=1796000000000:3600000" in properties.splitlines()
