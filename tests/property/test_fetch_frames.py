"""Fetch frames that are compared or copied are equal to frames of the codec of all fields."""

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.broker.handlers import fetch
from quorumlog.broker.partitions.core.data_path import (
    DivergingEpoch,
    FetchedPartition,
    PartitionFetch,
)
from quorumlog.chaos.mutants.registry import _changed
from quorumlog.chaos.mutants.requests import REQUESTS
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.storage.core.aborted_transactions import AbortedTransaction
from quorumlog.wire.codec.encoder import COPY_BELOW_BYTES
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.fetched_records import SINCE_VERSION, FetchedRecords, decode_fetched
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset, TopicId, TopicPartition
from quorumlog.wire.codec.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from quorumlog.wire.codec.repeated_fetches import FetchDecoder, RepeatableFetch
from quorumlog.wire.codec.schemas import (
    RequestHeader,
    UnsupportedVersion,
    decode_request,
    decode_response,
    decode_whole_response,
    encode_request,
    encode_response,
)
from tests.support.sizes import examples, tries
from tests.support.wire.records_oracle import random_message

VERSION = FetchRequest.VERSIONS[-1]
INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
REFUSALS = (MalformedFrame, UnsupportedVersion)


def framed(
    request: FetchRequest, correlation_id: int, version: int = VERSION, client_id: str | None = "x"
) -> bytes:
    chunks = encode_request(
        request, api_version=version, correlation_id=correlation_id, client_id=client_id
    )
    return b"".join(chunks)[4:]


def outcome(decode: Any, frame: bytes) -> object:
    try:
        return decode(memoryview(frame))
    except REFUSALS as refusal:
        return type(refusal), str(refusal)


def renumbered(request: FetchRequest, draw: random.Random) -> None:
    """Change what a repeated fetch may change."""
    request.session_epoch = draw.getrandbits(31)
    for topic in request.topics:
        for partition in topic.partitions:
            partition.fetch_offset = draw.getrandbits(63)
            partition.last_fetched_epoch = draw.getrandbits(31) - 1
            partition.log_start_offset = draw.getrandbits(63) - 1


@pytest.mark.parametrize("version", FetchRequest.VERSIONS)
def test_a_repeated_fetch_is_what_it_is_when_decoded(version: int) -> None:
    for seed in range(tries(40)):
        draw = random.Random(seed)
        request = random_message(draw, FetchRequest, version)
        client_id = draw.choice((None, "", "é", "broker-1-fetcher"))
        decoder = FetchDecoder()
        for correlation_id in range(4):
            frame = framed(request, correlation_id, version, client_id)
            assert outcome(decoder.decode, frame) == outcome(decode_request, frame)
            renumbered(request, draw)


@pytest.mark.parametrize("version", FetchRequest.VERSIONS)
def test_a_repeatable_fetch_is_sent_as_any_other(version: int) -> None:
    for seed in range(tries(40)):
        draw = random.Random(seed)
        request = random_message(draw, FetchRequest, version)
        fields = {one.name: getattr(request, one.name) for one in FetchRequest.FIELDS}
        repeatable = RepeatableFetch(**fields)
        for correlation_id in range(6):
            client_id = "é" if correlation_id < 4 else None
            whole = framed(request, correlation_id, version, client_id)
            assert framed(repeatable, correlation_id, version, client_id) == whole
            partitions = [one for topic in request.topics for one in topic.partitions]
            before = [(one.fetch_offset, 7, one.log_start_offset + 1) for one in partitions]
            renumbered(request, draw)
            epochs = [one.current_leader_epoch for one in partitions]
            positions = [(epoch, *one) for epoch, one in zip(epochs, before, strict=True)]
            assert repeatable.renumber(request.session_epoch, positions)
            for one, numbers in zip(partitions, before, strict=True):
                assert (one.fetch_offset, one.last_fetched_epoch, one.log_start_offset) == numbers


def usual_fetch(partitions: int) -> FetchRequest:
    named = [FetchPartition(partition=at, partition_max_bytes=7) for at in range(partitions)]
    return FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        session_id=9,
        session_epoch=1,
        topics=[FetchTopic(topic_id=b"t" * 16, partitions=named)],
    )


def test_a_frame_without_bytes_repeats_no_fetch() -> None:
    assert outcome(FetchDecoder().decode, b"") == outcome(decode_request, b"")


def test_a_repeated_fetch_is_not_decoded_again() -> None:
    request, decoder = usual_fetch(2), FetchDecoder()
    seen = []
    for correlation_id in range(3):
        seen.append(decoder.decode(memoryview(framed(request, correlation_id)))[1])
        renumbered(request, random.Random(correlation_id))
    assert seen[0] is seen[1] is seen[2]


def test_fetches_of_changing_partitions_are_seldom_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[int] = []

    def note(decoder: FetchDecoder, frame: memoryview) -> bool:
        compared.append(len(frame))
        return repeats(decoder, frame)

    repeats = FetchDecoder._repeats
    monkeypatch.setattr(FetchDecoder, "_repeats", note)
    decoder = FetchDecoder()
    for number in range(500):
        request = usual_fetch(1)
        request.topics[0].partitions[0].partition = number
        frame = framed(request, number)
        assert outcome(decoder.decode, frame) == outcome(decode_request, frame)
    assert len(compared) < 20
    frames = [framed(usual_fetch(1), number) for number in range(200)]
    requests = [decoder.decode(memoryview(frame))[1] for frame in frames]
    assert len({id(one) for one in requests[100:]}) == 1  # and compared again


@pytest.mark.parametrize("partitions", [0, 1, 3])
def test_a_frame_that_differs_in_any_byte_is_what_it_is_when_decoded(partitions: int) -> None:
    """Every byte, also of what is compared, and every length, after a fetch and its repetition."""
    usual = framed(usual_fetch(partitions), 1)
    for at in range(len(usual)):
        for flipped in (1, 0x80, 0xFF):
            other = bytearray(usual)
            other[at] ^= flipped
            changed = bytes(other)
            for frames in (
                (usual, usual, changed, usual[:at], usual, usual, usual, usual),
                (changed, changed, usual, changed),
            ):
                decoder = FetchDecoder()
                for frame in frames:
                    assert outcome(decoder.decode, frame) == outcome(decode_request, frame)


def found_with(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[FetchedPartition]:
    usual: dict[str, st.SearchStrategy[Any]] = {
        "error_code": st.just(ErrorCode.NONE),
        "high_watermark": INT64,
        "log_start_offset": INT64,
        "records": st.lists(st.sampled_from([b"", b"a" * 5, b"b" * 700, bytes(1100)]), max_size=3),
        "last_stable_offset": INT64,
        "aborted": st.sampled_from([None, []]),
    }
    return st.fixed_dictionaries(usual | values).map(lambda chosen: FetchedPartition(**chosen))


USUAL = found_with()
UNUSUAL = found_with(
    error_code=st.sampled_from(
        [ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.FENCED_LEADER_EPOCH]
    ),
    diverging=st.none() | st.just(DivergingEpoch(Epoch(3), Offset(4))),
    leader_id=st.sampled_from([BrokerId(-1), BrokerId(2)]),
    preferred_replica=st.sampled_from([BrokerId(-1), BrokerId(2)]),
    aborted=st.sampled_from([None, [], [AbortedTransaction(4, 5, 6, 7)]]),
)


def fetch_of(topic: int, partition: int) -> PartitionFetch:
    return PartitionFetch(
        topic_partition=TopicPartition(f"t{topic}", partition),
        topic_id=TopicId(bytes([topic]) * 16),
        fetch_offset=Offset(0),
        max_bytes=1,
        leader_epoch=Epoch(0),
        last_fetched_epoch=Epoch(0),
        log_start_offset=Offset(0),
    )


def frames_of(
    version: int, session_id: int, asked: list[PartitionFetch], found: list[FetchedPartition]
) -> tuple[bytes, bytes, bool]:
    """Return the frames of the response and of the whole message; whether the first is usual."""
    session = SimpleNamespace(session_id=session_id)
    spec: Any = SimpleNamespace(partitions=asked, session=session, is_from_follower=False)
    context: Any = SimpleNamespace(image=ClusterImage())
    header = RequestHeader(FetchRequest.API_KEY, version, session_id, None)
    response = fetch._response(context, header, spec, found)
    whole = fetch._whole_response(context, header, spec, found, session_id)
    frames = (b"".join(encode_response(header, one)) for one in (response, whole))
    return next(frames), next(frames), isinstance(response, FetchedRecords)


@given(
    version=st.sampled_from(range(SINCE_VERSION, VERSION + 1)),
    session_id=INT32,
    places=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2**31 - 1)), max_size=5),
    data=st.data(),
)
@examples(200)
def test_the_usual_response_is_what_the_message_is(
    version: int, session_id: int, places: list[tuple[int, int]], data: st.DataObject
) -> None:
    asked = [fetch_of(*place) for place in places]
    kind = data.draw(st.sampled_from([USUAL, USUAL | UNUSUAL]))
    found = [data.draw(kind) for _ in asked]
    frame, whole, is_usual = frames_of(version, session_id, asked, found)
    assert frame == whole
    assert is_usual or kind is not USUAL


def test_a_mutant_changes_the_message_of_an_encoded_response() -> None:
    found = [FetchedPartition(ErrorCode.NONE, records=[bytes(5000)])]
    keys: Any = [fetch_of(1, 0).key]
    mutant = REQUESTS["session_forgets_one_partition"].parts.responses
    assert mutant is not None
    handle = _changed(lambda *_: FetchedRecords(9, keys, found), mutant())
    header = RequestHeader(FetchRequest.API_KEY, VERSION, 1, None)
    for epoch, left in ((0, 1), (1, 0)):
        response: Any = handle(cast(Any, None), header, FetchRequest(session_epoch=epoch))
        assert response.session_id == 9
        assert len(response.responses[0].partitions) == left


SIZES = (0, 1, 1023, 1024, 2046, 2047, 16_382, 16_383, 2_097_150, 2_097_151)


@pytest.mark.parametrize("size", SIZES)
def test_records_of_any_size_are_counted_and_large_ones_are_not_copied(size: int) -> None:
    records = bytes(size)
    found = [FetchedPartition(ErrorCode.NONE, records=[records])]
    frame, whole, is_usual = frames_of(VERSION, 1, [fetch_of(1, 1)], found)
    assert frame == whole
    assert is_usual
    keys: Any = [fetch_of(1, 1).key]
    is_kept = any(chunk is records for chunk in FetchedRecords(1, keys, found).frame(2))
    assert is_kept == (size >= COPY_BELOW_BYTES)


def fetched_frame(draw: random.Random, version: int) -> bytes:
    """Return the frame of a response: usual, nearly usual, or any."""
    response = random_message(draw, FetchResponse, version)
    for topic in response.responses:
        for one in topic.partitions:
            if draw.random() < 0.8:
                one.aborted_transactions = draw.choice((None, []))
                one.diverging_epoch = one.current_leader = one.snapshot_id = None
                one.records = draw.choice((b"", bytes(3), bytes(200), bytes(20_000)))
    if draw.random() < 0.8:
        response.node_endpoints = []
    header = RequestHeader(FetchRequest.API_KEY, version, draw.getrandbits(31), None)
    return b"".join(encode_response(header, response))[4:]


def decoded(decode: Any, version: int, frame: bytes) -> object:
    try:
        return decode(FetchRequest.API_KEY, version, frame)
    except MalformedFrame as refusal:
        return str(refusal)


@pytest.mark.parametrize("version", range(SINCE_VERSION, VERSION + 1))
def test_a_response_is_decoded_as_field_by_field_whatever_its_bytes(version: int) -> None:
    usual = 0
    for seed in range(tries(60)):
        draw = random.Random(seed)
        frame = fetched_frame(draw, version)
        usual += decode_fetched(memoryview(frame)) is not None
        damaged = [frame, frame + b"\0", frame + b"x"]
        for at in [*range(min(len(frame), 60)), *range(len(frame) - 4, len(frame))]:
            damaged += [frame[:at], frame[:at] + bytes([frame[at] ^ 0x81]) + frame[at + 1 :]]
            damaged.append(frame[:at] + bytes([draw.randrange(256)]) + frame[at + 1 :])
        for one in damaged:
            whole = decoded(decode_whole_response, version, one)
            assert decoded(decode_response, version, one) == whole
    assert usual > tries(60) // 10
