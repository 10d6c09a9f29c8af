"""`quorumlog transactions` against fake brokers: tables, documents, refusals."""

from quorumlog.cli.output import EXIT_FAILED
from quorumlog.clock import wall_clock_ms
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages import describe_producers as producers_
from quorumlog.wire.codec.messages import describe_transactions as describe_
from quorumlog.wire.codec.messages import list_transactions as list_
from quorumlog.wire.codec.messages import write_txn_markers as markers_
from tests.unit.cli.test_admin_commands import Shell, shell

__all__ = ["shell"]  # the fixture


def listing(shell: Shell, *states: list_.TransactionState, unknown: tuple[str, ...] = ()) -> None:
    answer = list_.ListTransactionsResponse(
        transaction_states=[*states], unknown_state_filters=[*unknown]
    )
    shell.cluster.offer(list_.ListTransactionsRequest, answer)


def described(shell: Shell, **changes: object) -> None:
    values = {
        "transactional_id": "x",
        "transaction_state": "Ongoing",
        "transaction_timeout_ms": 60_000,
        "transaction_start_time_ms": 5,
        "producer_id": 7,
        "producer_epoch": 2,
        "topics": [describe_.TopicData(topic="t", partitions=[0])],
        **changes,
    }
    state = describe_.TransactionState(**values)  # type: ignore[arg-type]
    answer = describe_.DescribeTransactionsResponse(transaction_states=[state])
    shell.cluster.offer(describe_.DescribeTransactionsRequest, answer)


def producers(shell: Shell, *states: producers_.ProducerState) -> None:
    """Of t-0; the other partitions have none."""

    def answer(
        request: producers_.DescribeProducersRequest,
    ) -> producers_.DescribeProducersResponse:
        return producers_.DescribeProducersResponse(
            topics=[
                producers_.TopicResponse(
                    name=topic.name,
                    partitions=[
                        producers_.PartitionResponse(
                            partition_index=index, active_producers=[*states] if not index else []
                        )
                        for index in topic.partition_indexes
                    ],
                )
                for topic in request.topics
            ]
        )

    shell.cluster.offers[producers_.DescribeProducersRequest.API_KEY] = (0, answer)


def producer(idle_ms: int = 3_600_000, *, start_offset: int = 40) -> producers_.ProducerState:
    return producers_.ProducerState(
        producer_id=7,
        producer_epoch=2,
        last_timestamp=wall_clock_ms() - idle_ms,
        coordinator_epoch=3,
        current_txn_start_offset=start_offset,
    )


def test_a_pattern_goes_to_every_broker_and_a_bad_one_is_shown(shell: Shell) -> None:
    listing(shell)
    shell("transactions", "list", "--pattern", "copy-[0-9]+")
    patterns = [
        request.transactional_id_pattern
        for _, request in shell.cluster.seen
        if isinstance(request, list_.ListTransactionsRequest)
    ]
    assert {*patterns} == {"copy-[0-9]+"}
    refusal = list_.ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    shell.cluster.offer(list_.ListTransactionsRequest, refusal)
    said = shell("transactions", "list", "--pattern", "(", status=EXIT_FAILED)
    assert "INVALID_REGULAR_EXPRESSION" in said
    assert "ids that match '('" in said
    assert "its extra re2" in said


def test_a_broker_that_takes_no_pattern_is_not_asked_for_all(shell: Shell) -> None:
    listing(shell)
    shell.cluster.offers[list_.ListTransactionsRequest.API_KEY] = (
        1,
        lambda request: list_.ListTransactionsResponse(),
    )
    said = shell("transactions", "list", "--pattern", "x", status=EXIT_FAILED)
    assert "version 2 of ListTransactions is needed" in said
    asked = [one for _, one in shell.cluster.seen if isinstance(one, list_.ListTransactionsRequest)]
    assert asked == []


def test_transactional_ids_are_listed(shell: Shell) -> None:
    one = list_.TransactionState(transactional_id="x", producer_id=7, transaction_state="Ongoing")
    listing(shell, one)
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
    assert isinstance(found, dict)
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
    found = shell.json(*words, "--older-than", "1m")
    assert isinstance(found, dict)
    [one] = found["hanging"]
    assert one.pop("idle_ms") >= 3_600_000
    assert one == {
        "topic": "t",
        "partition": 0,
        "producer_id": 7,
        "producer_epoch": 2,
        "start_offset": 40,
    }
    state = list_.TransactionState(transactional_id="x", producer_id=7, transaction_state="Ongoing")
    listing(shell, state)
    described(shell)
    assert (shell(*words), shell.said) == (
        "",
        "no transaction hangs\n",
    )  # its coordinator will end it
    described(shell, topics=[])
    assert "40" in shell(*words)


def test_a_transaction_that_hangs_is_aborted_by_its_leader(shell: Shell) -> None:
    words = ("transactions", "abort", "--topic", "t", "--partition", "0", "--start-offset")
    producers(shell, producer())
    outcome = markers_.WritableTxnMarkerPartitionResult(partition_index=0)
    topic = markers_.WritableTxnMarkerTopicResult(name="t", partitions=[outcome])
    result = markers_.WritableTxnMarkerResult(producer_id=7, topics=[topic])
    answer = markers_.WriteTxnMarkersResponse(markers=[result])
    shell.cluster.offer(markers_.WriteTxnMarkersRequest, answer)
    assert shell(*words, "40") == "t-0: aborted the transaction of producer 7\n"
    [marker] = shell.cluster.requests()[-1].markers
    said = (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch)
    assert (said, marker.transaction_result) == ((7, 2, 3), False)
    assert "has no open transaction with first offset 41" in shell(*words, "41", status=EXIT_FAILED)
    outcome.error_code = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert "TRANSACTION_COORDINATOR_FENCED" in shell(*words, "40", status=EXIT_FAILED)
