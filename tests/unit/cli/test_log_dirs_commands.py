"""`quorumlog log-dirs` against fake brokers."""

import pytest

from quorumlog.cli.output import EXIT_FAILED
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages import alter_replica_log_dirs as alter_
from quorumlog.wire.codec.messages import describe_log_dirs as describe_
from tests.unit.cli.test_admin_commands import Shell, shell

__all__ = ["shell"]  # the fixture


def described(*places: tuple[str, bool, int]) -> describe_.DescribeLogDirsResponse:
    """Answer with the directories /a and /b; `places`: (path, is a copy, lag) of t-0."""
    results = []
    for path in ("/a", "/b"):
        topics = [
            describe_.DescribeLogDirsTopic(
                name="t",
                partitions=[
                    describe_.DescribeLogDirsPartition(
                        partition_size=9, offset_lag=lag, is_future_key=is_future
                    )
                ],
            )
            for where, is_future, lag in places
            if where == path
        ]
        results.append(describe_.DescribeLogDirsResult(log_dir=path, topics=topics))
    return describe_.DescribeLogDirsResponse(results=results)


def offer_answer(shell: Shell, code: ErrorCode = ErrorCode.NONE) -> None:
    one = alter_.AlterReplicaLogDirPartitionResult(error_code=code)
    topic = alter_.AlterReplicaLogDirTopicResult(topic_name="t", partitions=[one])
    shell.cluster.offer(
        alter_.AlterReplicaLogDirsRequest, alter_.AlterReplicaLogDirsResponse(results=[topic])
    )


MOVE = ("log-dirs", "move", "--topic", "t", "--partition", "0", "--broker", "1", "--to", "/b")


def test_a_replica_is_sent_to_another_directory_without_waiting(shell: Shell) -> None:
    shell.cluster.offer(describe_.DescribeLogDirsRequest, described(("/a", False, 0)))
    offer_answer(shell)
    assert shell.json(*MOVE, "--detach") == {
        "topic": "t",
        "broker": 1,
        "log_dir": "/b",
        "completed": False,
        "partitions": [0],
    }
    (asked,) = shell.cluster.requests()[-1].dirs
    assert (asked.path, asked.topics[0].name, asked.topics[0].partitions) == ("/b", "t", [0])


def test_the_command_ends_when_the_replica_is_there(shell: Shell) -> None:
    shell.cluster.offer(describe_.DescribeLogDirsRequest, described(("/b", False, 0)))
    offer_answer(shell)
    assert shell(*MOVE) == "   0  now in /b\n"


def test_a_move_that_has_ended_elsewhere_is_an_error(shell: Shell) -> None:
    shell.cluster.offer(describe_.DescribeLogDirsRequest, described(("/a", False, 0)))
    offer_answer(shell)
    assert "t-0 stopped moving to /b: see the broker's log" in shell(*MOVE, status=EXIT_FAILED)


def test_an_unknown_directory_is_named_with_those_there_are(shell: Shell) -> None:
    shell.cluster.offer(describe_.DescribeLogDirsRequest, described())
    told = shell(*MOVE[:-1], "/c", status=EXIT_FAILED)
    assert "broker 1 has no log directory /c: /a, /b" in told


@pytest.mark.parametrize("code", [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REPLICA_NOT_AVAILABLE])
def test_a_refusal_is_told_at_once(shell: Shell, code: ErrorCode) -> None:
    shell.cluster.offer(describe_.DescribeLogDirsRequest, described(("/a", False, 0)))
    offer_answer(shell, code)
    assert code.name in shell(*MOVE, "--detach", status=EXIT_FAILED)


def test_directories_are_shown_with_what_moves(shell: Shell) -> None:
    moving = described(("/a", False, 0), ("/b", True, 5))
    shell.cluster.offer(describe_.DescribeLogDirsRequest, moving)
    assert shell("log-dirs", "describe", "--broker", "1").splitlines() == [
        "BROKER  LOG DIR  TOPIC  PARTITION  BYTES  LAG  STATE",
        "     1  /a       t              0      9    0  current",
        "     1  /b       t              0      9    5  moving",
    ]
