"""Error responses from requests: every API and version, and parts of requests."""

from typing import Any, Final

import pytest

from quorumlog.chaos.faults.error_answers import (
    Refusal,
    has_entries,
    has_error,
    merged,
    names_partitions,
    names_topics,
    refuse_all,
    refuse_topic,
)
from quorumlog.chaos.network.response_errors import errors_in
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.message import Request, Response
from quorumlog.wire.codec.messages import add_partitions_to_txn as to_txn
from quorumlog.wire.codec.messages import create_topics, fetch, offset_fetch, produce
from quorumlog.wire.codec.schemas import (
    APIS,
    RequestHeader,
    decode_request,
    decode_whole_response,
    encode_request,
    encode_response,
    request_class,
    response_class,
)

TOPIC_ID: Final = bytes(range(16))
TOPICS: Final = {TOPIC_ID: "orders"}
ERROR: Final = ErrorCode.NOT_COORDINATOR
SAME: Final = ("string", "uuid")


def filled(kind: Any) -> Any:
    """Return a message with one item in each array, about the topic orders, partition 0."""
    made = kind()
    for field in kind.FIELDS:
        of, value = field.type, getattr(made, field.name)
        match of:
            case list():
                value = [filled(of[0]) if isinstance(of[0], type) else plain(of[0], 0)]
            case type():
                value = filled(of)
            case _:
                value = plain(of, value)
        setattr(made, field.name, value)
    return made


def plain(wire_type: object, otherwise: object) -> object:
    return {"string": "orders", "uuid": TOPIC_ID}.get(str(wire_type), otherwise)


def received(request: Request[Any], version: int) -> tuple[RequestHeader, Request[Any]]:
    chunks = encode_request(request, api_version=version, correlation_id=7, client_id="c")
    return decode_request(b"".join(chunks)[4:])


def sent(header: RequestHeader, response: Response) -> Response:
    """Return the response as its client decodes it."""
    frame = b"".join(encode_response(header, response))[4:]
    number, decoded = decode_whole_response(header.api_key, header.api_version, frame)
    assert number == header.correlation_id
    return decoded


@pytest.mark.parametrize("key", [*APIS], ids=lambda key: APIS[key].name)
def test_every_version_of_every_api_can_be_refused(key: int) -> None:
    assert has_error(key)
    for version in APIS[key].versions:
        header, request = received(filled(request_class(key)), version)
        answer = refuse_all(request, key, version, ERROR)
        assert answer is not None, version
        assert {*errors_in(sent(header, answer), TOPICS)} == {"NOT_COORDINATOR"}, version


@pytest.mark.parametrize("key", [*filter(names_topics, APIS)], ids=lambda key: APIS[key].name)
@pytest.mark.parametrize("partition", [-1, 0])
def test_every_entry_of_a_topic_can_be_refused(key: int, partition: int) -> None:
    name = APIS[key].name
    if partition == 0 and (
        not names_partitions(key) or name in {"Metadata", "DescribeTopicPartitions"}
    ):
        return  # these requests name topics alone
    for version in APIS[key].versions:
        header, request = received(filled(request_class(key)), version)
        refusal = Refusal(ERROR, "orders", partition)
        other = refuse_topic(request, key, version, Refusal(ERROR, "bills", partition), TOPICS)
        assert other is None, version
        assert refuse_topic(request, key, version, refusal, TOPICS, takes=False) is not None
        assert has_entries(response_class(key), request), version
        answer = refuse_topic(request, key, version, refusal, TOPICS)
        assert answer is not None, version
        assert {*errors_in(sent(header, answer), TOPICS)} == {"NOT_COORDINATOR"}, version
        assert not has_entries(response_class(key), request), version


def produce_of(**partitions: list[int]) -> produce.ProduceRequest:
    return produce.ProduceRequest(
        acks=-1,
        topic_data=[
            produce.TopicProduceData(
                name=name,
                partition_data=[
                    produce.PartitionProduceData(index=n, records=b"r") for n in numbers
                ],
            )
            for name, numbers in partitions.items()
        ],
    )


def named(request: produce.ProduceRequest) -> dict[str, list[int]]:
    return {one.name: [each.index for each in one.partition_data] for one in request.topic_data}


def test_one_partition_is_taken_out_and_put_back_into_the_response() -> None:
    request = produce_of(orders=[0, 1], bills=[0])
    refusal = Refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER, "orders", 1)
    errors = refuse_topic(request, 0, 12, refusal, {})
    assert errors is not None
    assert named(request) == {"orders": [0], "bills": [0]}
    rest = produce.ProduceResponse(
        responses=[
            produce.TopicProduceResponse(
                name=name,
                partition_responses=[produce.PartitionProduceResponse(index=0, base_offset=5)],
            )
            for name in ("orders", "bills")
        ]
    )
    whole: Any = merged(rest, errors)
    answers = {
        (topic.name, one.index): (one.error_code, one.base_offset)
        for topic in whole.responses
        for one in topic.partition_responses
    }
    assert answers == {("orders", 0): (0, 5), ("orders", 1): (6, -1), ("bills", 0): (0, 5)}


def test_an_error_replaces_the_entry_that_was_carried_out() -> None:
    """A created topic has an id in the response, and none in the request."""
    request = create_topics.CreateTopicsRequest(
        topics=[create_topics.CreatableTopic(name="orders")]
    )
    refusal = Refusal(ErrorCode.REQUEST_TIMED_OUT, "orders")
    errors = refuse_topic(request, 19, 7, refusal, {}, takes=False)
    assert errors is not None
    created = create_topics.CreatableTopicResult(name="orders", topic_id=TOPIC_ID)
    whole: Any = merged(create_topics.CreateTopicsResponse(topics=[created]), errors)
    assert [(one.name, one.error_code) for one in whole.topics] == [("orders", 7)]


def test_an_error_of_a_group_stands_above_its_topics() -> None:
    group = offset_fetch.OffsetFetchRequestGroup(group_id="g", topics=None)
    request = offset_fetch.OffsetFetchRequest(groups=[group])
    answer: Any = refuse_all(request, 9, 9, ERROR)
    assert [(one.group_id, one.error_code, one.topics) for one in answer.groups] == [("g", 16, [])]


def test_the_oldest_and_the_newest_shape_of_a_transaction() -> None:
    topic = to_txn.AddPartitionsToTxnTopic(name="orders", partitions=[0, 1])
    old = to_txn.AddPartitionsToTxnRequest(v3_and_below_topics=[topic])
    refusal = Refusal(ErrorCode.CONCURRENT_TRANSACTIONS, "orders", 1)
    answer: Any = refuse_topic(old, 24, 3, refusal, {})
    [result] = answer.results_by_topic_v3_and_below
    assert [one.partition_index for one in result.results_by_partition] == [1]
    assert topic.partitions == [0]
    new = to_txn.AddPartitionsToTxnRequest(
        transactions=[to_txn.AddPartitionsToTxnTransaction(transactional_id="t", topics=[topic])]
    )
    answer = refuse_topic(new, 24, 4, Refusal(ERROR, "orders"), {})
    [transaction] = answer.results_by_transaction
    assert transaction.transactional_id == "t"
    assert new.transactions == []


def test_an_error_of_a_fetch_session_stands_at_the_top() -> None:
    request = fetch.FetchRequest(session_id=3, session_epoch=4)
    answer: Any = refuse_all(request, 1, 13, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    assert answer.error_code == 70
    assert refuse_all(request, 1, 13, ErrorCode.NOT_LEADER_OR_FOLLOWER) is None
