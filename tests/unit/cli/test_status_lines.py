"""What commands say of a cluster: its status, its partitions, nodes that do not stop."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer import Exit

from quorumlog.cli import cluster_commands
from quorumlog.cli.output import EXIT_FAILED, EXIT_NO_QUORUM
from quorumlog.cli.status_lines import partition_line, status_lines
from quorumlog.cluster import LocalCluster, cluster_nodes, cluster_status, running_clusters
from quorumlog.cluster.cluster_status import NodeState

RUNNING, PAUSED, KILLED = NodeState.RUNNING, NodeState.PAUSED, NodeState.KILLED


def partition(leader: int, isr: list[int]) -> dict[str, Any]:
    return {"leader": leader, "leader_epoch": 4, "isr": isr, "replicas": [1, 2, 3]}


TOPICS = {
    "o": {"partitions": [partition(2, [2, 3]), partition(3, [1, 2, 3]), partition(-1, [])]},
    "__consumer_offsets": {"partitions": [partition(1, [1, 2, 3])] * 8},
}


def view(node_id: int, *, active: int, offset: int = 9) -> dict[str, Any]:
    return {
        "metadata_offset": offset,
        "fenced": {"1": True, "2": False},
        "topics": TOPICS,
        "quorum": {
            "voters": [{"id": voter, "address": f"h:{voter}"} for voter in (1, 2, 3)],
            "leader_epoch": 5,
            "is_active_controller": node_id == active,
        },
    }


def described(*states: NodeState, active: int = -1) -> dict[str, Any]:
    of = dict(enumerate(states, 1))
    views = {number: view(number, active=active) for number, at in of.items() if at is RUNNING}
    best_id = cluster_status.best_view(views)
    best = None if best_id is None else views[best_id]
    quorum = cluster_status.describe_quorum(cluster_status.voters_of(best, of), views)
    topics = {} if best is None else TOPICS
    return {
        "cluster_id": "c",
        "controller_id": cluster_status.active_controller(quorum, views),
        "quorum": quorum,
        "nodes": [
            {
                "id": number,
                "roles": ["broker", "controller"],
                "kafka": f"h:{number}",
                "pid": None if state.is_dead else 70 + number,
                "state": state.value,
                "answers": number in views,
                "rack": None,
                "native_lane": {1: "on", 2: "QUORUMLOG_NATIVE=0"}.get(number * (number in views)),
                "fenced": None if best is None else best["fenced"].get(str(number)),
            }
            for number, state in of.items()
        ],
        "partitions": cluster_status.describe_partitions(topics, of),
        "topics": topics,
    }


def lines(*states: NodeState, active: int = -1, internal: bool = False) -> list[str]:
    of = described(*states, active=active)
    return [" ".join(line.split()) for line in status_lines(of, internal=internal)]


def test_a_cluster_without_a_majority_has_no_controller_and_dead_leaders() -> None:
    assert lines(PAUSED, KILLED, RUNNING, active=3) == [
        "NO QUORUM: 1 of 3 voters answers; below is the last state of node 3",
        "cluster c active controller none",
        "node 1 broker+controller h:1 pid 71, paused, fenced",
        "node 2 broker+controller h:2 killed",
        "node 3 broker+controller h:3 pid 73",
        "1 of 3 nodes, 2 partitions with fewer in-sync replicas, 1 partition without a leader,"
        " 9 partitions led by a node that does not answer",
        "topic o",
        "0 leader 2 (dead) epoch 4 isr [2, 3] replicas [1, 2, 3]",
        "1 leader 3 epoch 4 isr [1, 2, 3] replicas [1, 2, 3]",
        "2 leader -1 epoch 4 isr [] replicas [1, 2, 3]",
        "1 internal topic, 8 partitions: --internal shows them",
    ]


def test_dead_leaders_and_controllers_are_marked_and_a_stop_is_no_alarm() -> None:
    shown = lines(RUNNING, KILLED, RUNNING, active=3)
    assert shown[0] == "cluster c active controller node 3"
    assert "0 leader 2 (dead) epoch 4 isr [2, 3] replicas [1, 2, 3]" in shown
    assert lines(RUNNING, KILLED, RUNNING, active=2)[0] == "cluster c active controller none"
    assert lines(*[NodeState.STOPPED] * 3)[0] == "cluster c active controller none"
    assert lines(KILLED, PAUSED, KILLED)[0] == "NO QUORUM: 0 of 3 voters answer"


def test_a_node_with_another_directory_than_the_voters_name_is_no_voter_yet() -> None:
    views = {number: view(number, active=1) for number in (1, 2, 3)}
    for number, at in views.items():
        at["quorum"]["directory_id"] = f"d{number}"
        at["quorum"]["voters"] = [{"id": n, "address": "", "directory_id": f"d{n}"} for n in views]
    views[3]["quorum"]["directory_id"] = "emptied"
    quorum = cluster_status.describe_quorum([1, 2, 3], views)
    assert (quorum["answering"], quorum["replaced"], quorum["has_majority"]) == ([1, 2], [3], True)
    shown = [*status_lines(described(*[RUNNING] * 3, active=1) | {"quorum": quorum}, internal=True)]
    assert shown[3].endswith("pid 73, no voter yet: the voter set has its lost directory")
    assert ", 1 voter with another directory" in shown[4]
    del views[2]["quorum"]["directory_id"]  # of an older release
    assert cluster_status.describe_quorum([1, 2, 3], views)["replaced"] == [3]
    of_two = {number: views[number] for number in (1, 3)}
    assert not cluster_status.describe_quorum([1, 2, 3], of_two)["has_majority"]


def test_a_controller_that_was_removed_is_no_voter() -> None:
    views = {number: view(number, active=1) for number in (1, 2, 3)}
    quorum = cluster_status.describe_quorum([1, 2], views)
    shown = [*status_lines(described(*[RUNNING] * 3, active=1) | {"quorum": quorum}, internal=True)]
    assert shown[3].endswith("pid 73, no voter")


def test_a_node_says_whether_its_native_lane_is_on() -> None:
    shown = lines(RUNNING, RUNNING, RUNNING, active=1)
    ends = ["fenced, native lane", "pid 72, no native lane: QUORUMLOG_NATIVE=0", "pid 73"]
    assert [line[-len(end) :] for line, end in zip(shown[1:], ends, strict=False)] == ends


def test_internal_topics_are_shown_if_asked_for() -> None:
    shown = lines(RUNNING, RUNNING, RUNNING, active=1, internal=True)
    assert "topic __consumer_offsets" in shown
    assert not any("--internal" in line for line in shown)


def test_the_view_is_that_of_the_node_that_has_seen_most() -> None:
    views = {1: view(1, active=0, offset=3), 2: view(2, active=0, offset=8)}
    assert cluster_status.best_view(views) == 2
    assert cluster_status.best_view({}) is None


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ((RUNNING, KILLED, KILLED), EXIT_NO_QUORUM),
        ((NodeState.STOPPED, KILLED, KILLED), EXIT_FAILED),
    ],
)
def test_the_exit_status_says_that_there_is_no_majority(
    states: tuple[NodeState, ...], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(described(*states), monkeypatch)
    with pytest.raises(Exit) as ended:
        cluster_commands.status()
    assert ended.value.exit_code == expected


def test_the_exit_status_is_0_with_a_majority(monkeypatch: pytest.MonkeyPatch) -> None:
    opened(described(RUNNING, RUNNING, KILLED), monkeypatch)
    cluster_commands.status()


def opened(status: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    class Opened:
        has_lost_control = False

        def status(self) -> dict[str, Any]:
            return status

    monkeypatch.setattr(LocalCluster, "open", lambda *_: Opened())


@pytest.mark.parametrize(
    ("leader", "elr", "last_known", "expected"),
    [
        (3, [], [], ""),
        (3, [4], [2], "  may lack records: [2]"),
        (3, None, None, ""),
        (-1, [4, 2], [], "  waits for one of brokers [4, 2]"),
        (-1, [], [3, 4], "  may lack records: [3, 4]  waits for all of brokers [3, 4]"),
        (-1, None, None, ""),
    ],
)
def test_a_partition_without_a_leader_names_the_brokers_that_it_waits_for(
    leader: int, elr: list[int] | None, last_known: list[int] | None, expected: str
) -> None:
    partition = {
        "leader": leader,
        "leader_epoch": 7,
        "isr": [],
        "replicas": [2, 3, 4],
        "elr": elr,
        "last_known_elr": last_known,
    }
    start = f"   1  leader {leader}  epoch 7  isr []  replicas [2, 3, 4]"
    assert partition_line(1, partition) == start + expected


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """Start one node that ignores SIGTERM."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("FAKE_NODES", "1:deaf")
    module = "tests.support.cluster.fake_node"
    cluster = LocalCluster(tmp_path / "c", nodes=1, node_module=module)
    cluster.start()
    monkeypatch.setattr(cluster_nodes, "STOP_TIMEOUT_S", 0.2)
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


def test_a_cluster_with_racks_shows_them() -> None:
    cluster = described(RUNNING, RUNNING, KILLED, active=1)
    assert not any("rack" in line for line in status_lines(cluster, internal=False))
    for node, rack in zip(cluster["nodes"], ("a", "east", None), strict=True):
        node["rack"] = rack
    shown = [line.split()[:4] for line in status_lines(cluster, internal=False)]
    assert [words for words in shown if words[0] == "node"] == [
        ["node", "1", "rack", "a"],
        ["node", "2", "rack", "east"],
        ["node", "3", "rack", "-"],
    ]
    row = {**partition(2, [2, 3]), "racks": ["a", "east", None]}
    assert partition_line(0, row).endswith("replicas [1, 2, 3]  racks [a, east, -]")
    row["racks"] = [None, None, None]
    assert partition_line(0, row).endswith("replicas [1, 2, 3]")
