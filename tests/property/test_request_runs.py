"""A run of requests has the outcome of its requests one by one: responses, logs and state.

Two brokers receive the same bytes, cut into other reads; one has no runs. Among the requests are
all that the data path refuses, and frames with changed bytes.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from quorumlog.wire.codec.produce_template import ProduceTemplate, TemplateMatch, template_of
from quorumlog.wire.codec.records import Compression, Record, encode_batch
from quorumlog.wire.codec.schemas import decode_request, encode_request, encode_response
from tests.support.broker.produce_twins import NOW_MS, TOPICS, Twins
from tests.support.native import LANES, native, needs_native
from tests.support.sizes import examples

TOPIC_IDS = {name: at.to_bytes(16, "big") for at, name in enumerate(TOPICS, 1)}
NO_PRODUCER, PRODUCER, OTHER_PRODUCER = -1, 5, 6
VARIANTS = (
    *("next",) * 16, "repeat", "gap", "old epoch", "new epoch", "no producer", "other producer",
    "compressed", "corrupt", "control", "two", "empty", "null", "late", "untimed", "keyless",
    "long", "transactional", "old format", "changed", "cut",
)  # fmt: skip


@dataclass
class Stream:
    """A client's requests for one partition."""

    topic: str
    partition: int
    version: int
    acks: int
    producer_id: int
    transactional_id: str | None
    sequence: int = 0
    epoch: int = 1
    last: bytes = b""
    correlation_id: int = field(default=0)

    def frame(self, variant: str, number: int) -> bytes:
        """Return a frame with its length; `number` chooses among equals."""
        self.correlation_id += 1
        by_id = self.version >= 13
        data = PartitionProduceData(index=self.partition, records=self._records(variant, number))
        topic = TopicProduceData(
            name="" if by_id else self.topic,
            topic_id=TOPIC_IDS[self.topic] if by_id else bytes(16),
            partition_data=[data],
        )
        request = ProduceRequest(
            acks=self.acks,
            timeout_ms=30_000,
            transactional_id=self.transactional_id,
            topic_data=[topic],
        )
        client_id = None if self.topic == "plain" else "client"
        chunks = encode_request(
            request,
            api_version=self.version,
            correlation_id=self.correlation_id,
            client_id=client_id,
        )
        frame = b"".join(chunks)
        if variant == "changed":
            at = number % len(frame)
            return frame[:at] + bytes([frame[at] ^ (1 << number % 8)]) + frame[at + 1 :]
        return frame[: 4 + number % len(frame)] if variant == "cut" else frame

    def _records(self, variant: str, number: int) -> bytes | None:
        if variant in ("empty", "null"):
            return b"" if variant == "empty" else None
        if variant == "repeat" and self.last:
            return self.last
        timestamp_ms = {"late": NOW_MS + 10_000, "untimed": -1}.get(variant, NOW_MS + number % 3)
        key = None if variant == "keyless" else b"key"
        value = b"v" * (300 if variant == "long" else number % 40)
        records = [Record(at, timestamp_ms, key, value) for at in range(1 + number % 4)]
        producer_id, epoch, sequence = self.producer_id, self.epoch, self.sequence
        if variant == "no producer":
            producer_id = NO_PRODUCER
        if variant == "other producer":
            producer_id = OTHER_PRODUCER
        if variant == "new epoch":
            self.epoch = epoch = epoch + 1
            self.sequence = sequence = 0
        batch = encode_batch(
            records,
            producer_id=producer_id,
            producer_epoch=-1 if producer_id < 0 else epoch - (variant == "old epoch"),
            base_sequence=-1 if producer_id < 0 else sequence + (variant == "gap"),
            is_transactional=self.transactional_id is not None or variant == "transactional",
            is_control=variant == "control",
            compression=Compression.GZIP if variant == "compressed" else Compression.NONE,
        )
        if variant in ("next", "new epoch", "compressed", "untimed"):
            self.sequence += len(records)
            self.last = batch
        if variant == "two":
            return batch + batch
        if variant in ("corrupt", "old format"):
            at = 16 if variant == "old format" else number % len(batch)
            return batch[:at] + bytes([batch[at] ^ 1]) + batch[at + 1 :]
        return batch


STREAMS = st.builds(
    Stream,
    topic=st.sampled_from(["plain", "plain", "copied", "copied", "rolling", *TOPICS]),
    partition=st.sampled_from([0, 0, 0, 1, 9]),
    version=st.sampled_from([9, 9, 13, 13, 7, 3, 5, 8, 11, 12]),
    acks=st.sampled_from([1, 1, -1, -1, 0, 2]),
    producer_id=st.sampled_from([NO_PRODUCER, PRODUCER, PRODUCER]),
    transactional_id=st.sampled_from([None, None, None, "t"]),
)
BURSTS = st.tuples(
    st.integers(0, 1),
    st.lists(st.tuples(st.sampled_from(VARIANTS), st.integers(0, 2**16)), min_size=1, max_size=6),
)
REQUESTS = st.lists(BURSTS, min_size=1, max_size=3)
ALONE: list[int] = [1] * 500
SPLITS = st.one_of(st.lists(st.integers(1, 400), max_size=20), st.just(ALONE))
SENDS = st.tuples(st.just("send"), REQUESTS, SPLITS, SPLITS)
STEPS = st.one_of(
    SENDS,
    SENDS,
    SENDS,
    st.tuples(st.just("follow"), st.sampled_from([0.3, 0.7, 1.0])),
    st.tuples(st.just("verify"), st.sampled_from([ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE])),
    st.sampled_from([("expire",), ("resign",)]),
)


@pytest.mark.parametrize("is_native", LANES)
@examples(150)
@given(st.lists(STREAMS, min_size=1, max_size=2), st.lists(STEPS, min_size=1, max_size=8))
def test_a_run_has_the_outcome_of_its_requests_one_by_one(
    is_native: bool,
    streams: list[Stream],
    steps: list[tuple],  # type: ignore[type-arg]  # of many shapes
) -> None:
    own = [replace(stream) for stream in streams]  # hypothesis may run an example again

    async def story(directory: Path) -> None:
        async with Twins(directory) as twins:
            for name, *arguments in steps:
                if name != "send":
                    await twins.both(name, *arguments)
                    continue
                requests, pieces, others = arguments
                frames = [own[at % len(own)].frame(*one) for at, burst in requests for one in burst]
                await twins.receive(b"".join(frames), pieces, others)

    with tempfile.TemporaryDirectory() as directory, native(is_on=is_native):
        asyncio.run(story(Path(directory)))


@examples(300)
@given(STREAMS, st.integers(0, 2**16), st.integers(0, 2**16), st.data())
def test_a_template_matches_exactly_the_frames_of_the_same_request(
    stream: Stream, number: int, other: int, data: st.DataObject
) -> None:
    stream = replace(stream, version=max(stream.version, 7), acks=min(stream.acks, 1))
    template = template_like(stream, number)
    frame = bytearray(stream.frame("next", other))
    received = frame, memoryview(frame).toreadonly()
    found = template.match(received, 0, len(frame))
    assert found is not None
    header, request = decode_request(memoryview(frame)[4:])
    assert isinstance(request, ProduceRequest)
    records = request.topic_data[0].partition_data[0].records
    assert found == (header.correlation_id, records, len(frame))
    assert all(template.match(received, 0, end) is None for end in range(len(frame)))
    records_end = len(frame) - (3 if stream.version >= 9 else 0)
    variable = {*range(8, 12), *range(records_end - len(found[1]), records_end)}
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    assert (template.match(received, 0, len(frame)) is not None) == (at in variable), at


def template_like(stream: Stream, number: int) -> ProduceTemplate:
    """Return the template of a stream's next request."""
    learned = memoryview(stream.frame("next", number))[4:]
    header, request = decode_request(learned)
    assert isinstance(request, ProduceRequest)
    template = template_of(learned, header, request)
    assert template is not None
    return template


FRAMES = st.lists(
    st.tuples(st.sampled_from(["next", "next", *VARIANTS]), st.integers(0, 2**16)), max_size=6
)


@needs_native
@examples(300)
@given(STREAMS, FRAMES, st.integers(0, 5), st.sampled_from([2**20, 2**20, 200]), st.data())
def test_the_lane_finds_the_runs_that_python_finds(
    stream: Stream,
    made: list[tuple[str, int]],
    count_max: int,
    frame_max_bytes: int,
    data: st.DataObject,
) -> None:
    stream = replace(stream, version=max(stream.version, 7), acks=min(stream.acks, 1))
    template = template_like(stream, 0)
    buffer = bytearray(b"".join(stream.frame(*one) for one in made))
    if buffer and data.draw(st.booleans()):  # near a beginning, most likely
        buffer[data.draw(st.integers(0, min(len(buffer) - 1, 120)))] ^= data.draw(
            st.integers(1, 255)
        )
    received = buffer, memoryview(buffer).toreadonly()

    def run_in(start: int, end: int) -> list[TemplateMatch]:
        return template.match_run(
            received, start, end, count_max=count_max, frame_max_bytes=frame_max_bytes
        )

    for start, end in [(0, end) for end in range(len(buffer) + 1)] + [(9, len(buffer))]:
        with native(is_on=False):
            expected = run_in(start, end)
        with native(is_on=True):
            assert run_in(start, end) == expected


@pytest.mark.parametrize("is_native", LANES)
@examples(100)
@given(
    STREAMS,
    st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**63 - 1)), max_size=5),
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**63 - 1),
)
def test_the_responses_of_a_run_are_those_of_its_requests(
    is_native: bool,
    stream: Stream,
    pairs: Sequence[tuple[int, int]],
    append_time_ms: int,
    log_start: int,
) -> None:
    stream = replace(stream, version=max(stream.version, 7), acks=min(stream.acks, 1))
    template = template_like(stream, 0)
    expected = b""
    for correlation_id, base_offset in pairs:
        slot = PartitionProduceResponse(
            index=stream.partition,
            base_offset=base_offset,
            log_append_time_ms=append_time_ms,
            log_start_offset=log_start,
        )
        topic = TopicProduceResponse(
            name=template.at.topic, topic_id=template.topic_id, partition_responses=[slot]
        )
        header = template.header._replace(correlation_id=correlation_id)
        expected += b"".join(encode_response(header, ProduceResponse(responses=[topic])))
    correlation_ids, base_offsets = ([pair[at] for pair in pairs] for at in (0, 1))
    with native(is_on=is_native):
        found = template.responses(correlation_ids, base_offsets, append_time_ms, log_start)
    assert b"".join(found) == (expected if stream.acks else b"")
