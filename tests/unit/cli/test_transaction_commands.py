"""`quorumlog transactions` against fake brokers: tables, documents, refusals."""

from typing import Any

from quorumlog.cli.output import EXIT_FAILED
from quorumlog.clock import wall_clock_ms
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages import describe_producers as producers_
from quorumlog.wire.codec.messages.list_transactions import ListTransactionsRequest
from tests.support.cli.in_process import Shell
from tests.support.client.fake_admin import KEYS, built

ONGOING = {"transactional_id": "x", "producer_id": 7, "transaction_state": "Ongoing"}


def listing(shell: Shell, *states: dict[str, Any], unknown: tuple[str, ...] = ()) -> None:
    answer = {"transaction_states": [*states], "unknown_state_filters": [*unknown]}
    shell.offer("ListTransactions", answer)


def listings(shell: Shell) -> list[ListTransactionsRequest]:
    return [one for one in shell.cluster.requests() if isinstance(one, ListTransactionsRequest)]


def described(shell: Shell, **changes: object) -> None:
    times = {"transaction_timeout_ms": 60_000, "transaction_start_time_ms": 5}
    state = {**ONGOING, **times, "producer_epoch": 2, "topics": [{"topic": "t", "partitions": [0]}]}
    shell.offer("DescribeTransactions", {"transaction_states": [{**state, **changes}]})


def producers(shell: Shell, *states: dict[str, Any]) -> None:
    """Of t-0; the other partitions have none."""

    def answer(request: producers_.DescribeProducersRequest) -> Any:
        topics = [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": index, "active_producers": [] if index else [*states]}
                    for index in topic.partition_indexes
                ],
            }
            for topic in request.topics
        ]
        return built(producers_.DescribeProducersResponse, {"topics": topics})

    shell.cluster.offers[KEYS["DescribeProducers"]] = (0, answer)


def producer(idle_ms: int = 3_600_000, *, start_offset: int = 40) -> dict[str, Any]:
    return {
        "producer_id": 7,
        "producer_epoch": 2,
        "last_timestamp": wall_clock_ms() - idle_ms,
        "coordinator_epoch": 3,
        "current_txn_start_offset": start_offset,
    }


def test_a_pattern_goes_to_every_broker_and_a_bad_one_is_shown(shell: Shell) -> None:
    listing(shell)
    shell("transactions", "list", "--pattern", "copy-[0-9]+")
    assert {one.transactional_id_pattern for one in listings(shell)} == {"copy-[0-9]+"}
    shell.offer("ListTransactions", {"error_code": ErrorCode.INVALID_REGULAR_EXPRESSION})
    said = shell("transactions", "list", "--pattern", "(", status=EXIT_FAILED)
    assert "INVALID_REGULAR_EXPRESSION" in said
    assert "ids that match '('" in said
    assert "its extra re2" in said


def test_a_broker_that_takes_no_pattern_is_not_asked_for_all(shell: Shell) -> None:
    shell.offer("ListTransactions", {}, version=1)
    said = shell("transactions", "list", "--pattern", "x", status=EXIT_FAILED)
    assert "version 2 of ListTransactions is needed" in said
    assert listings(shell) == []


def test_transactional_ids_are_listed(shell: Shell) -> None:
    listing(shell, ONGOING)
    assert shell("transactions", "list").splitlines() == [
        "TRANSACTIONAL ID  STATE    PRODUCER ID  COORDINATOR",
        "x                 Ongoing            7            2",
    ]
    found = shell.json("transactions", "list", "--state", "Ongoing")
    expected = {"transactional_id": "x", "state": "Ongoing", "producer_id": 7, "coordinator_id": 2}
    assert found == {"transactions": [expected]}
    assert shell.cluster.requests()[-1].state_filters == ["Ongoing"]
    listing(shell, unknown=("Odd",))
    said = shell("transactions", "list", "--state", "Odd", status=EXIT_FAILED)
    assert "no transaction has a state of this name: Odd" in said


def test_a_transaction_is_described_by_its_coordinator(shell: Shell) -> None:
    described(shell)
    found = shell.json("transactions", "describe", "x")
    assert found.pop("coordinator_id") in {1, 2}
    assert found == {
        "transactional_id": "x",
        "state": "Ongoing",
        "producer_id": 7,
        "producer_epoch": 2,
        "timeout_ms": 60_000,
        "start_ms": 5,
        "partitions": ["t-0"],
    }
    assert "partitions: t-0" in shell("transactions", "describe", "x")
    described(shell, error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    said = shell("transactions", "describe", "x", status=EXIT_FAILED)
    assert "TRANSACTIONAL_ID_NOT_FOUND" in said


def test_what_no_coordinator_will_end_hangs(shell: Shell) -> None:
    words = ("transactions", "find-hanging", "--topic", "t")
    listing(shell)
    producers(shell, producer(start_offset=-1), producer(idle_ms=1_000))
    assert (shell(*words), shell.said) == ("", "no transaction hangs\n")
    producers(shell, producer())
    [one] = shell.json(*words, "--older-than", "1m")["hanging"]
    assert one.pop("idle_ms") >= 3_600_000
    at = {"topic": "t", "partition": 0, "producer_id": 7, "producer_epoch": 2}
    assert one == {**at, "start_offset": 40}
    listing(shell, ONGOING)
    described(shell)  # its coordinator will end it
    assert (shell(*words), shell.said) == ("", "no transaction hangs\n")
    described(shell, topics=[])
    assert "40" in shell(*words)


def test_a_transaction_that_hangs_is_aborted_by_its_leader(shell: Shell) -> None:
    def offer_marker(code: ErrorCode) -> None:
        topic = {"name": "t", "partitions": [{"partition_index": 0, "error_code": code}]}
        shell.offer("WriteTxnMarkers", {"markers": [{"producer_id": 7, "topics": [topic]}]})

    words = ("transactions", "abort", "--topic", "t", "--partition", "0", "--start-offset")
    producers(shell, producer())
    offer_marker(ErrorCode.NONE)
    assert shell(*words, "40") == "t-0: aborted the transaction of producer 7\n"
    [marker] = shell.cluster.requests()[-1].markers
    said = (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch)
    assert (said, marker.transaction_result) == ((7, 2, 3), False)
    assert "has no open transaction with first offset 41" in shell(*words, "41", status=EXIT_FAILED)
    offer_marker(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
    assert "TRANSACTION_COORDINATOR_FENCED" in shell(*words, "40", status=EXIT_FAILED)
