"""`quorumlog quorum`, `elect` and `log-dirs` against fake brokers: asked, shown, refused."""

from typing import Any

import pytest

from quorumlog.cli.output import EXIT_FAILED, EXIT_USAGE
from quorumlog.client import ErrorCode
from quorumlog.wire.codec.messages.add_raft_voter import AddRaftVoterRequest
from quorumlog.wire.codec.messages.remove_raft_voter import RemoveRaftVoterRequest
from quorumlog.wire.codec.topic_names import METADATA_TOPIC
from tests.support.cli.in_process import Shell


def replica(replica_id: int, end: int, caught_up_ms: int, directory: bytes = b"") -> dict[str, Any]:
    return {
        "replica_id": replica_id,
        "replica_directory_id": directory or bytes(15) + bytes([replica_id]),
        "log_end_offset": end,
        "last_fetch_timestamp": caught_up_ms,
        "last_caught_up_timestamp": caught_up_ms,
    }


def node(node_id: int, host: str) -> dict[str, Any]:
    listener = {"name": "CONTROLLER", "host": host, "port": 9000 + node_id}
    return {"node_id": node_id, "listeners": [listener]}


def offer_quorum(shell: Shell) -> None:
    one = {
        "leader_id": 2,
        "leader_epoch": 7,
        "high_watermark": 40,
        "current_voters": [replica(1, 35, 4_000), replica(2, 42, 5_000), replica(3, -1, -1)],
        "observers": [replica(0, 42, 4_990)],
    }
    topic = {"topic_name": METADATA_TOPIC, "partitions": [one]}
    nodes = [node(0, "zero"), node(3, "::1"), {"node_id": 4}]
    shell.offer("DescribeQuorum", {"topics": [topic], "nodes": nodes})


def test_the_quorum_is_shown_with_the_lag_of_each_node(shell: Shell) -> None:
    offer_quorum(shell)
    assert shell("quorum", "describe").splitlines() == [
        "leader 2, epoch 7, committed up to 40",
        "NODE  ROLE      LOG END  LAG  LAG MS",
        "   1  voter          35    7    1000",
        "   2  leader         42    0       0",
        "   3  voter           -    -       -",
        "   0  observer       42    0      10",
    ]
    described = shell.json("quorum", "describe")  # with Kafka's names
    voters = described.pop("voters")
    assert described.pop("observers") == [
        {
            "replica_id": 0,
            "directory_id": None,
            "log_end_offset": 42,
            "lag": 0,
            "lag_ms": 10,
            "last_fetch_timestamp_ms": 4_990,
            "last_caught_up_timestamp_ms": 4_990,
        }
    ]
    assert described == {
        "leader_id": 2,
        "leader_epoch": 7,
        "high_watermark": 40,
        "addresses": {"0": "zero:9000", "3": "[::1]:9003"},
    }
    assert voters[0]["directory_id"] == "AAAAAAAAAAAAAAAAAAAAAQ"
    assert [voter["lag"] for voter in voters] == [7, 0, None]


# --- voters ---

ONE, GIVEN = "AAAAAAAAAAAAAAAAAAAAAQ", "AAECAwQFBgcICQoLDA0ODw"
Asked = AddRaftVoterRequest | RemoveRaftVoterRequest


def offer_changes(shell: Shell, code: ErrorCode = ErrorCode.NONE, message: str = "") -> None:
    offer_quorum(shell)
    for api in ("AddRaftVoter", "RemoveRaftVoter"):
        shell.offer(api, {"error_code": code, "error_message": message or None})


def asked(shell: Shell) -> list[Asked]:
    return [one for one in shell.cluster.requests() if isinstance(one, Asked)]


def test_a_voter_is_added_as_given_or_as_the_leader_knows_the_observer(shell: Shell) -> None:
    offer_changes(shell)
    words = ("quorum", "add-voter", "--node", "5", "--directory", GIVEN, "--address", "[::5]:7")
    assert shell(*words) == "node 5 is a voter\n"
    [request] = asked(shell)
    assert isinstance(request, AddRaftVoterRequest)
    assert (request.voter_id, request.voter_directory_id) == (5, bytes(range(16)))
    [listener] = request.listeners
    assert (listener.name, listener.host, listener.port) == ("CONTROLLER", "::5", 7)
    offer_changes(shell)
    document = shell.json("quorum", "add-voter", "--node", "0", "--directory", GIVEN)
    told = {"node": 0, "directory_id": GIVEN, "address": "zero:9000", "voter": True}
    assert document == told


def test_an_observer_that_the_leader_does_not_know_is_not_added(shell: Shell) -> None:
    offer_changes(shell)
    for node_id in ("0", "7"):
        failed = shell("quorum", "add-voter", "--node", node_id, status=EXIT_FAILED)
        assert "--directory" in failed
    options = ("--node", "7", "--directory", GIVEN)
    assert "--address" in shell("quorum", "add-voter", *options, status=EXIT_FAILED)
    assert asked(shell) == []


def test_a_voter_is_not_added_again_but_replaced(shell: Shell) -> None:
    offer_changes(shell)
    failed = shell("quorum", "add-voter", "--node", "1", status=EXIT_FAILED)
    assert f"node 1 is a voter already, with directory {ONE}" in failed
    observer = replica(1, 35, 4_000, bytes(range(16)))
    one = {"current_voters": [replica(1, 35, 4_000)], "observers": [observer]}
    topic = {"topic_name": METADATA_TOPIC, "partitions": [one]}
    shell.offer("DescribeQuorum", {"topics": [topic]})
    failed = shell("quorum", "add-voter", "--node", "1", status=EXIT_FAILED)
    text = "runs with another directory: run quorumlog quorum remove-voter --node 1, then add it"
    assert text in failed
    failed = shell("quorum", "remove-voter", "--node", "9", status=EXIT_FAILED)
    assert "node 9 is no voter" in failed
    assert asked(shell) == []


def test_a_voter_is_removed_as_the_leader_knows_it(shell: Shell) -> None:
    offer_changes(shell)
    document = shell.json("quorum", "remove-voter", "--node", "1")
    assert document == {"node": 1, "directory_id": ONE, "voter": False}
    [request] = asked(shell)
    assert isinstance(request, RemoveRaftVoterRequest)
    assert (request.voter_id, request.voter_directory_id) == (1, bytes(15) + b"\1")


def test_a_refused_change_is_not_repeated_and_a_wrong_directory_refused(shell: Shell) -> None:
    offer_changes(shell, ErrorCode.REQUEST_TIMED_OUT, "node 3 has not caught up")
    failed = shell("quorum", "remove-voter", "--node", "3", status=EXIT_FAILED)
    assert "node 3 has not caught up" in failed
    assert len(asked(shell)) == 1
    offer_changes(shell)
    options = ("--node", "3", "--directory", "x")
    assert "not a directory.id" in shell("quorum", "remove-voter", *options, status=EXIT_USAGE)


# --- elections ---


def offer_election(shell: Shell, *codes: ErrorCode) -> None:
    results = [
        {"partition_id": index, "error_code": code, "error_message": code.name.lower()}
        for index, code in enumerate(codes)
    ]
    topic = {"topic": "t", "partition_result": results}
    shell.offer("ElectLeaders", {"replica_election_results": [topic]})


def test_a_leader_that_need_not_change_is_no_failure(shell: Shell) -> None:
    offer_election(shell, ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
    shown = shell("elect", "--preferred").splitlines()
    assert shown == ["t-0  has a new leader", "t-1  keeps its leader"]
    (request,) = shell.cluster.requests()
    assert (request.election_type, request.topic_partitions) == (0, None)
    offer_election(shell, ErrorCode.NONE)
    one = {"topic": "t", "partition": 0, "elected": True, "error": None, "message": None}
    elected = shell.json("elect", "--preferred", "--topic", "t")
    assert elected == {"election": "preferred", "partitions": [one]}


def test_a_refused_election_says_why_and_ends_with_status_1(shell: Shell) -> None:
    offer_election(shell, ErrorCode.UNKNOWN_SERVER_ERROR)
    words = ("elect", "--unclean", "--topic", "t", "--partition", "0")
    assert shell(*words, status=EXIT_FAILED).endswith("0 elected, 0 not needed, 1 refused\n")
    (request,) = shell.cluster.requests()
    (wanted,) = request.topic_partitions
    assert (request.election_type, wanted.topic, wanted.partitions) == (1, "t", [0])


@pytest.mark.parametrize(
    "words",
    [(), ("--preferred", "--unclean"), ("--preferred", "--partition", "1")],
    ids=["neither", "both", "no topic"],
)
def test_an_election_is_said_exactly(shell: Shell, words: tuple[str, ...]) -> None:
    assert "quorumlog: " in shell("elect", *words, status=EXIT_USAGE)


# --- log directories ---


def offer_directories(shell: Shell, *places: tuple[str, bool, int]) -> None:
    """Answer with the directories /a and /b; `places`: (path, is a copy, lag) of t-0."""
    results = []
    for path in ("/a", "/b"):
        logs = [
            {"partition_size": 9, "offset_lag": lag, "is_future_key": is_future}
            for where, is_future, lag in places
            if where == path
        ]
        topics = [{"name": "t", "partitions": [log]} for log in logs]
        results.append({"log_dir": path, "topics": topics})
    shell.offer("DescribeLogDirs", {"results": results})


def offer_move(shell: Shell, code: ErrorCode = ErrorCode.NONE) -> None:
    topic = {"topic_name": "t", "partitions": [{"error_code": code}]}
    shell.offer("AlterReplicaLogDirs", {"results": [topic]})


MOVE = ("log-dirs", "move", "--topic", "t", "--partition", "0", "--broker", "1", "--to", "/b")


def test_a_replica_is_sent_to_another_directory_without_waiting(shell: Shell) -> None:
    offer_directories(shell, ("/a", False, 0))
    offer_move(shell)
    told = {"topic": "t", "broker": 1, "log_dir": "/b", "completed": False, "partitions": [0]}
    assert shell.json(*MOVE, "--detach") == told
    (wanted,) = shell.cluster.requests()[-1].dirs
    assert (wanted.path, wanted.topics[0].name, wanted.topics[0].partitions) == ("/b", "t", [0])


def test_a_move_ends_when_the_replica_is_there_and_fails_if_it_is_elsewhere(shell: Shell) -> None:
    offer_directories(shell, ("/b", False, 0))
    offer_move(shell)
    assert shell(*MOVE) == "   0  now in /b\n"
    offer_directories(shell, ("/a", False, 0))
    assert "t-0 stopped moving to /b: see the broker's log" in shell(*MOVE, status=EXIT_FAILED)


@pytest.mark.parametrize("code", [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REPLICA_NOT_AVAILABLE])
def test_a_refusal_is_told_at_once(shell: Shell, code: ErrorCode) -> None:
    offer_directories(shell, ("/a", False, 0))
    offer_move(shell, code)
    assert code.name in shell(*MOVE, "--detach", status=EXIT_FAILED)


def test_directories_are_shown_with_what_moves_and_named_if_one_is_unknown(shell: Shell) -> None:
    offer_directories(shell, ("/a", False, 0), ("/b", True, 5))
    assert shell("log-dirs", "describe", "--broker", "1").splitlines() == [
        "BROKER  LOG DIR  TOPIC  PARTITION  BYTES  LAG  STATE",
        "     1  /a       t              0      9    0  current",
        "     1  /b       t              0      9    5  moving",
    ]
    offer_directories(shell)
    told = shell(*MOVE[:-1], "/c", status=EXIT_FAILED)
    assert "broker 1 has no log directory /c: /a, /b" in told
