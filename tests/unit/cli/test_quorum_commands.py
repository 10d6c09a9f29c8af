"""`quorumlog quorum` and `quorumlog elect` against fake brokers: what is asked, shown, refused."""

from collections.abc import Iterator

import pytest

from quorumlog.cli.output import EXIT_FAILED, EXIT_USAGE
from quorumlog.client import ErrorCode
from quorumlog.wire.codec.messages import describe_quorum as quorum_
from quorumlog.wire.codec.messages import elect_leaders as elect_
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


def offer_quorum(shell: Shell) -> None:
    one = quorum_.ResponsePartitionData(
        leader_id=2,
        leader_epoch=7,
        high_watermark=40,
        current_voters=[replica(1, 35, 4_000), replica(2, 42, 5_000), replica(3, -1, -1)],
        observers=[replica(0, 42, 4_990)],
    )
    topic = quorum_.ResponseTopicData(topic_name=METADATA_TOPIC, partitions=[one])
    answer = quorum_.DescribeQuorumResponse(topics=[topic])
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
    assert described == {"leader_id": 2, "leader_epoch": 7, "high_watermark": 40}
    assert voters[0]["directory_id"] == "AAAAAAAAAAAAAAAAAAAAAQ"
    assert [voter["lag"] for voter in voters] == [7, 0, None]


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
