"""What `down` says of nodes that do not stop."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorumlog.cli import cluster_commands
from quorumlog.cluster import LocalCluster, local_cluster, running_clusters


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """Start one node that ignores SIGTERM."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("FAKE_NODES", "1:deaf")
    module = "tests.support.cluster.fake_node"
    cluster = LocalCluster(tmp_path / "c", nodes=1, node_module=module)
    cluster.start()
    monkeypatch.setattr(local_cluster, "STOP_TIMEOUT_S", 0.2)
    monkeypatch.setattr(running_clusters, "STOP_TIMEOUT_S", 0.2)
    yield cluster
    cluster.stop()


@pytest.mark.parametrize("everything", [False, True])
def test_a_killed_node_is_not_said_to_be_stopped(
    cluster: LocalCluster, everything: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster_commands.down(cluster.directory, everything)
    told = capsys.readouterr()
    of = f"0 nodes of {cluster.directory}" if everything else "0 of 1 nodes"
    assert told.out == f"stopped {of}, killed 1\n"
    said = "node 1 made no progress for 0.2 s, and was killed: its logs will be checked"
    assert said in told.err


@pytest.mark.parametrize("everything", [False, True])
def test_the_document_tells_stopped_and_killed_nodes_apart(
    cluster: LocalCluster, everything: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster_commands.down(cluster.directory, everything, json=True)
    document = json.loads(capsys.readouterr().out)
    if everything:
        (document,) = document["clusters"]
    assert (document["stopped"], document["killed"]) == ([], [1])
