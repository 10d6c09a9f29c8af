"""For every API and version: what we encode, and that no bytes break the decoder."""

import contextlib
import random
import time
import tracemalloc
from collections.abc import Iterator

import pytest

from quorumlog.wire.codec.errors import MalformedFrame, UnencodableMessage
from quorumlog.wire.codec.message import Message
from quorumlog.wire.codec.messages import APIS
from quorumlog.wire.codec.messages.api_versions import ApiVersionsResponse
from quorumlog.wire.codec.messages.consumer_protocol_subscription import (
    ConsumerProtocolSubscription,
)
from quorumlog.wire.codec.messages.fetch import FetchRequest, FetchResponse, PartitionData
from quorumlog.wire.codec.messages.leader_change_message import LeaderChangeMessage
from quorumlog.wire.codec.messages.metadata import MetadataRequest, MetadataResponse
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from quorumlog.wire.codec.messages.voters_record import VotersRecord
from quorumlog.wire.codec.schemas import (
    RequestHeader,
    UnsupportedVersion,
    decode_message,
    decode_request,
    decode_response,
    encode_message,
    encode_request,
    encode_response,
    request_class,
    response_class,
)
from tests.support.wire.dumb_encoder import dumb_encode
from tests.support.wire.records_oracle import random_message


def messages(api_key: int, samples: int) -> Iterator[tuple[int, Message]]:
    draw = random.Random(api_key)
    for version in APIS[api_key].versions:
        for message_class in (request_class(api_key), response_class(api_key)):
            for _ in range(samples):
                yield version, random_message(draw, message_class, version)


@pytest.mark.parametrize("api_key", sorted(APIS))
def test_fast_is_dumb_and_unknown_tags_are_skipped(api_key: int) -> None:
    for version, message in messages(api_key, samples=2):
        assert b"".join(encode_message(message, version)) == dumb_encode(message, version)
        newer = dumb_encode(message, version, with_unknown_tags=True)
        assert decode_message(type(message), version, newer) == message


@pytest.mark.parametrize("api_key", sorted(APIS))
def test_truncated_at_any_byte_it_is_malformed_and_nothing_else(api_key: int) -> None:
    for version, message in messages(api_key, samples=1):
        data = b"".join(encode_message(message, version))
        newer = dumb_encode(message, version, with_unknown_tags=True)
        for whole in (data, newer) if len(newer) > len(data) else (data,):
            step = 1 if len(whole) < 400 else 23
            for size in range(0, len(whole), step):
                with pytest.raises(MalformedFrame):
                    decode_message(type(message), version, whole[:size])


@pytest.mark.parametrize("api_key", sorted(APIS))
def test_garbage_is_a_message_or_malformed(api_key: int) -> None:
    draw = random.Random(api_key)
    for version, message in messages(api_key, samples=1):
        data = bytearray(b"".join(encode_message(message, version)))
        for _ in range(6 if data else 0):
            data[draw.randrange(len(data))] = draw.choice((0, 1, 0x7F, 0x80, 0xFF))
            with contextlib.suppress(MalformedFrame):
                decode_message(type(message), version, data)


@pytest.mark.parametrize(
    ("message_class", "version", "data"),
    [
        (FetchResponse, 4, bytes(4) + b"\x7f\xff\xff\xff"),
        (FetchResponse, 12, bytes(10) + b"\xff\xff\xff\xff\x0f"),
        (FetchResponse, 12, bytes(10) + b"\xff" * 60),
        (MetadataRequest, 1, b"\x7f\xff\xff\xff" + bytes(100)),
        (FetchRequest, 17, bytes(17) + b"\x01\x01\x00" + b"\xff\xff\xff\xff\x0f"),
    ],
)
def test_a_huge_count_costs_neither_time_nor_memory(
    message_class: type[Message], version: int, data: bytes
) -> None:
    with pytest.raises(MalformedFrame):
        decode_message(message_class, version, data)  # compiled
    tracemalloc.start()
    try:
        started = time.process_time()
        with pytest.raises(MalformedFrame):
            decode_message(message_class, version, data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000
    assert time.process_time() - started < 1


@pytest.mark.parametrize("api_key", sorted(APIS))
def test_frames_carry_header_and_message(api_key: int) -> None:
    draw = random.Random(api_key)
    for version in APIS[api_key].versions:
        request = random_message(draw, request_class(api_key), version)
        response = random_message(draw, response_class(api_key), version)
        if isinstance(response, ApiVersionsResponse):
            response.error_code = 0
        header = RequestHeader(api_key, version, draw.getrandbits(31), draw.choice((None, "é")))
        frame = b"".join(
            encode_request(
                request,
                api_version=version,
                correlation_id=header.correlation_id,
                client_id=header.client_id,
            )
        )
        assert int.from_bytes(frame[:4]) == len(frame) - 4
        assert decode_request(frame[4:]) == (header, request)
        for size in range(min(len(frame) - 4, 30)):
            with pytest.raises(MalformedFrame):
                decode_request(frame[4 : 4 + size])
        answer = b"".join(encode_response(header, response))
        assert int.from_bytes(answer[:4]) == len(answer) - 4
        decoded = decode_response(api_key, version, answer[4:])
        assert decoded == (header.correlation_id, response)


def test_an_unknown_version_is_refused_with_the_header() -> None:
    names = {18: "ApiVersions", 0: "Produce", 70: "ControllerRegistration", 78: "ShareFetch"}
    unknown = (18, 99), (0, 2), (0, -1), (70, 0), (78, 9), (7, 0), (-5, 0), (32_000, 1)
    for api_key, version in unknown:
        frame = api_key.to_bytes(2, signed=True) + version.to_bytes(2, signed=True)
        frame += (77).to_bytes(4) + b"\0\2me" + b"what a future version holds"
        with pytest.raises(UnsupportedVersion) as refused:
            decode_request(frame)
        assert refused.value.header == RequestHeader(api_key, version, 77, "me")
        name = names.get(api_key, f"API key {api_key}")
        assert str(refused.value) == f"{name} v{version} is not supported"


def test_a_refused_api_versions_request_is_read_in_version_0() -> None:
    response = ApiVersionsResponse(error_code=35)
    header = RequestHeader(18, 99, 5, None)
    frame = b"".join(encode_response(header._replace(api_version=0), response))
    assert decode_response(18, 4, frame[4:]) == (5, response)


def test_records_are_neither_copied_nor_joined() -> None:
    large, small = memoryview(bytes(5000)), b"x" * 10
    response = FetchResponse()
    request = ProduceRequest(
        topic_data=[
            TopicProduceData(
                partition_data=[
                    PartitionProduceData(records=[large, small]),
                    PartitionProduceData(records=small),
                ]
            )
        ]
    )
    chunks = encode_message(request, 9)
    assert any(chunk is large for chunk in chunks)
    frame = memoryview(b"".join(chunks))
    decoded = decode_message(ProduceRequest, 9, frame)
    first, second = decoded.topic_data[0].partition_data
    assert isinstance(first.records, memoryview)
    assert first.records.obj is frame.obj
    assert [first.records, second.records] == [bytes(large) + small, small]
    assert encode_message(response, 12) == [bytes(4 + 2 + 4) + b"\1\0"]


def test_fields_of_other_versions_are_left_out_and_come_back_as_defaults() -> None:
    partition = PartitionData(preferred_read_replica=3, log_start_offset=9)
    data = b"".join(encode_message(response_with(partition), 4))
    back = decode_message(FetchResponse, 4, data).responses[0].partitions[0]
    assert (back.preferred_read_replica, back.log_start_offset) == (-1, -1)


def response_with(partition: PartitionData) -> FetchResponse:
    from quorumlog.wire.codec.messages.fetch import FetchableTopicResponse

    topic = FetchableTopicResponse(topic="t", partitions=[partition])
    return FetchResponse(responses=[topic])


@pytest.mark.parametrize(
    "message",
    [
        MetadataResponse(cluster_id="a", brokers=None),  # type: ignore[arg-type]
        MetadataResponse(controller_id=2**40),
        MetadataResponse(cluster_id=7),  # type: ignore[arg-type]
        MetadataResponse(cluster_id="\ud800"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(message: Message) -> None:
    with pytest.raises(UnencodableMessage, match="MetadataResponse v12"):
        encode_message(message, 12)


@pytest.mark.parametrize(
    "message_class", [ConsumerProtocolSubscription, LeaderChangeMessage, VotersRecord]
)
def test_messages_without_an_api_round_trip(message_class: type[Message]) -> None:
    draw = random.Random(1)
    for version in message_class.VERSIONS:
        message = random_message(draw, message_class, version)
        data = b"".join(encode_message(message, version))
        assert decode_message(message_class, version, data + b"of a later version") == message


def test_messages_compare_and_show_their_fields() -> None:
    message = MetadataRequest(topics=None)
    assert message == MetadataRequest(topics=None)
    assert message != MetadataRequest()
    assert message != "something else"
    assert MetadataRequest().topics is not MetadataRequest().topics
    assert repr(message).startswith("MetadataRequest(topics=None, allow_auto_topic_creation=")
