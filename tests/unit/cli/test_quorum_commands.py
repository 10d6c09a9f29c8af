"""`quorumlog quorum` and `quorumlog elect` against fake brokers: what is asked, shown, refused."""

from collections.abc import Iterator

import pytest

from quorumlog.cli.output import EXIT_FAILED, EXIT_USAGE
from quorumlog.client import ErrorCode
from quorumlog.wire.codec.messages import describe_quorum as quorum_
from quorumlog.wire.codec.messages import elect_leaders as elect_
from quorumlog.wire.codec.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from quorumlog.wire.codec.messages.remove_raft_voter import (
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
)
from quorumlog.wire.codec.topic_names import METADATA_TOPIC
from tests.support.client.fake_admin import only_cluster
from tests.unit.cli.test_admin_commands import Shell
from tests.unit.client.test_client_sync import in_a_thread


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    with in_a_thread(only_cluster()) as brokers:
        brokers.fill(9)
        yield Shell(brokers, monkeypatch, capsys)


def replica(replica_id: int, end: int, caught_up_ms: int) -> quorum_.ReplicaState:
    return quorum_.ReplicaState(
        replica_id=replica_id,
        replica_directory_id=bytes(15) + bytes([replica_id]),
        log_end_offset=end,
        last_fetch_timestamp=caught_up_ms,
        last_caught_up_timestamp=caught_up_ms,
    )


def node(node_id: int, host: str) -> quorum_.Node:
    listener = quorum_.Listener(name="CONTROLLER", host=host, port=9000 + node_id)
    return quorum_.Node(node_id=node_id, listeners=[listener])


def offer_quorum(shell: Shell) -> None:
    one = quorum_.ResponsePartitionData(
        leader_id=2,
        leader_epoch=7,
        high_watermark=40,
        current_voters=[replica(1, 35, 4_000), replica(2, 42, 5_000), replica(3, -1, -1)],
        observers=[replica(0, 42, 4_990)],
    )
    topic = quorum_.ResponseTopicData(topic_name=METADATA_TOPIC, partitions=[one])
    nodes = [node(0, "zero"), node(3, "::1"), quorum_.Node(node_id=4)]
    answer = quorum_.DescribeQuorumResponse(topics=[topic], nodes=nodes)
    shell.cluster.offer(quorum_.DescribeQuorumRequest, answer)


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


def test_the_document_of_the_quorum_has_kafkas_names(shell: Shell) -> None:
    offer_quorum(shell)
    described = shell.json("quorum", "describe")
    assert isinstance(described, dict)
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

ZERO, ONE = "AAAAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAAAAQ"
GIVEN = "AAECAwQFBgcICQoLDA0ODw"
Asked = AddRaftVoterRequest | RemoveRaftVoterRequest


def offer_changes(shell: Shell, code: ErrorCode = ErrorCode.NONE, message: str = "") -> None:
    offer_quorum(shell)
    error = {"error_code": code, "error_message": message or None}
    shell.cluster.offer(AddRaftVoterRequest, AddRaftVoterResponse(**error))  # type: ignore[arg-type]
    shell.cluster.offer(RemoveRaftVoterRequest, RemoveRaftVoterResponse(**error))  # type: ignore[arg-type]


def asked(shell: Shell) -> list[Asked]:
    return [one for one in shell.cluster.requests() if isinstance(one, Asked)]


def test_a_voter_is_added_with_the_directory_and_the_address_that_are_given(shell: Shell) -> None:
    offer_changes(shell)
    said = shell("quorum", "add-voter", "--node", "5", "--directory", GIVEN, "--address", "[::5]:7")
    assert said.splitlines() == ["node 5 is a voter"]
    [request] = asked(shell)
    assert isinstance(request, AddRaftVoterRequest)
    assert (request.voter_id, request.voter_directory_id) == (5, bytes(range(16)))
    [listener] = request.listeners
    assert (listener.name, listener.host, listener.port) == ("CONTROLLER", "::5", 7)


def test_a_voter_is_added_as_the_leader_knows_the_observer(shell: Shell) -> None:
    offer_changes(shell)
    document = shell.json("quorum", "add-voter", "--node", "0", "--directory", GIVEN)
    assert document == {
        "node": 0, "directory_id": GIVEN, "address": "zero:9000", "voter": True,
    }  # fmt: skip


def test_an_observer_that_the_leader_does_not_know_is_not_added(shell: Shell) -> None:
    offer_changes(shell)
    for node_id, option in (("0", "--directory"), ("7", "--directory")):
        failed = shell("quorum", "add-voter", "--node", node_id, status=EXIT_FAILED)
        assert option in failed
    options = ("--node", "7", "--directory", GIVEN)
    assert "--address" in shell("quorum", "add-voter", *options, status=EXIT_FAILED)
    assert asked(shell) == []


def test_a_voter_is_not_added_again_but_replaced(shell: Shell) -> None:
    offer_changes(shell)
    failed = shell("quorum", "add-voter", "--node", "1", status=EXIT_FAILED)
    assert f"node 1 is a voter already, with directory {ONE}" in failed
    one = quorum_.ResponsePartitionData(
        current_voters=[replica(1, 35, 4_000)], observers=[replica(1, 35, 4_000)]
    )
    one.observers[0].replica_directory_id = bytes(range(16))
    topic = quorum_.ResponseTopicData(topic_name=METADATA_TOPIC, partitions=[one])
    shell.cluster.offer(
        quorum_.DescribeQuorumRequest, quorum_.DescribeQuorumResponse(topics=[topic])
    )
    failed = shell("quorum", "add-voter", "--node", "1", status=EXIT_FAILED)
    assert (
        "runs with another directory: run quorumlog quorum remove-voter --node 1, then add it"
    ) in failed
    assert "node 9 is no voter" in shell(
        "quorum", "remove-voter", "--node", "9", status=EXIT_FAILED
    )
    assert asked(shell) == []


def test_a_voter_is_removed_as_the_leader_knows_it(shell: Shell) -> None:
    offer_changes(shell)
    document = shell.json("quorum", "remove-voter", "--node", "1")
    assert document == {"node": 1, "directory_id": ONE, "voter": False}
    [request] = asked(shell)
    assert isinstance(request, RemoveRaftVoterRequest)
    assert (request.voter_id, request.voter_directory_id) == (1, bytes(15) + b"\1")


def test_a_refused_change_is_told_and_not_repeated(shell: Shell) -> None:
    offer_changes(shell, ErrorCode.REQUEST_TIMED_OUT, "node 3 has not caught up")
    failed = shell("quorum", "remove-voter", "--node", "3", status=EXIT_FAILED)
    assert "node 3 has not caught up" in failed
    assert len(asked(shell)) == 1


def test_what_is_no_directory_id_is_refused(shell: Shell) -> None:
    offer_changes(shell)
    options = ("--node", "3", "--directory", "x")
    assert "not a directory.id" in shell("quorum", "remove-voter", *options, status=EXIT_USAGE)


def offer_election(shell: Shell, *codes: ErrorCode) -> None:
    results = [
        elect_.PartitionResult(partition_id=index, error_code=code, error_message=code.name.lower())
        for index, code in enumerate(codes)
    ]
    topic = elect_.ReplicaElectionResult(topic="t", partition_result=results)
    answer = elect_.ElectLeadersResponse(replica_election_results=[topic])
    shell.cluster.offer(elect_.ElectLeadersRequest, answer)


def test_a_leader_that_need_not_change_is_no_failure(shell: Shell) -> None:
    offer_election(shell, ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
    assert shell("elect", "--preferred").splitlines() == [
        "t-0  has a new leader",
        "t-1  keeps its leader",
    ]
    (request,) = shell.cluster.requests()
    assert (request.election_type, request.topic_partitions) == (0, None)


def test_a_refused_election_says_why_and_ends_with_status_1(shell: Shell) -> None:
    offer_election(shell, ErrorCode.UNKNOWN_SERVER_ERROR)
    words = ("elect", "--unclean", "--topic", "t", "--partition", "0")
    assert shell(*words, status=EXIT_FAILED).endswith("0 elected, 0 not needed, 1 refused\n")
    (request,) = shell.cluster.requests()
    (wanted,) = request.topic_partitions
    assert (request.election_type, wanted.topic, wanted.partitions) == (1, "t", [0])


def test_the_elections_are_one_document(shell: Shell) -> None:
    offer_election(shell, ErrorCode.NONE)
    assert shell.json("elect", "--preferred", "--topic", "t") == {
        "election": "preferred",
        "partitions": [
            {"topic": "t", "partition": 0, "elected": True, "error": None, "message": None}
        ],
    }


@pytest.mark.parametrize(
    "words",
    [(), ("--preferred", "--unclean"), ("--preferred", "--partition", "1")],
    ids=["neither", "both", "no topic"],
)
def test_an_election_is_said_exactly(shell: Shell, words: tuple[str, ...]) -> None:
    assert "quorumlog: " in shell("elect", *words, status=EXIT_USAGE)
