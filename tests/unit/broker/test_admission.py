"""Which produced records a broker admits, the error of each that it refuses, and many at once."""

import asyncio
import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quorumlog.broker.handlers import produce as produce_handler
from quorumlog.broker.partitions.core import admission
from quorumlog.broker.partitions.core.admission import (
    Admission,
    TopicLimits,
    admit,
    is_zstd_too_early,
    topic_limits,
)
from quorumlog.broker.partitions.core.data_path import RecordError
from quorumlog.broker.settings import BrokerSettings
from quorumlog.settings.servers import texts_of
from quorumlog.settings.topics import TopicConfig
from quorumlog.storage.core.settings import LogSettings
from quorumlog.wire.codec.compression import Compression
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from quorumlog.wire.codec.records import (
    Record,
    decode_batch,
    decode_batches,
    encode_batch,
    read_header,
    validate_checksum,
)
from quorumlog.wire.io.connection import ConnectionLost, KafkaConnection
from tests.support.broker.requests import list_offset, produce, topic_creation
from tests.support.groups.asking import asking, versions
from tests.support.groups.asking import create as create_partitions
from tests.support.groups.single_broker import SingleBroker
from tests.support.wire import handmade_bytes as handmade

NOW_MS = 1_000_000
AT = TopicPartition("orders", 0)
SETTINGS = BrokerSettings(message_max_bytes=200)
LIMITS = topic_limits(TopicConfig({}, texts_of(SETTINGS)), is_internal=False)
ONE = [Record(0, NOW_MS, None, b"value")]
HOUR_MS = 3_600_000


def judge(records: bytes, limits: TopicLimits = LIMITS) -> Admission:
    return admit(records, limits, NOW_MS, AT)


def limits_of(**configs: str) -> TopicLimits:
    own = {name.replace("_", "."): value for name, value in configs.items()}
    return topic_limits(TopicConfig(own, {}), is_internal=False)


def test_one_whole_batch_is_admitted() -> None:
    batch = encode_batch(ONE)
    admitted = judge(batch)
    assert admitted.error_code is ErrorCode.NONE
    assert admitted.header == read_header(batch)
    assert admitted.records is batch  # not a copy


def changed(at: int, value: int, *, mended: bool = False) -> bytes:
    batch = bytearray(encode_batch(ONE))
    batch[at] = value
    return handmade.mended(batch) if mended else bytes(batch)


@pytest.mark.parametrize(
    ("records", "error_code"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (encode_batch(ONE)[:-1], ErrorCode.INVALID_RECORD),
        (encode_batch(ONE)[:60], ErrorCode.INVALID_RECORD),
        (changed(-1, 0xFF), ErrorCode.CORRUPT_MESSAGE),
        (changed(11, 48), ErrorCode.CORRUPT_MESSAGE),  # less than a header
        (changed(16, 0), ErrorCode.INVALID_RECORD),  # magic
        (changed(16, 1), ErrorCode.INVALID_RECORD),
        (changed(16, 3), ErrorCode.CORRUPT_MESSAGE),
        (changed(60, 9), ErrorCode.CORRUPT_MESSAGE),  # the count, damaged on the way
        (changed(60, 9, mended=True), ErrorCode.INVALID_RECORD),
        (changed(57, 0x80, mended=True), ErrorCode.INVALID_RECORD),
        (changed(26, 1, mended=True), ErrorCode.INVALID_RECORD),  # the last offset delta
        (changed(22, 5, mended=True), ErrorCode.UNKNOWN_SERVER_ERROR),  # no such compression
        (changed(22, 7, mended=True), ErrorCode.UNKNOWN_SERVER_ERROR),
        (changed(22, 1, mended=True), ErrorCode.INVALID_RECORD),  # not gzip
        (changed(-1, 1, mended=True), ErrorCode.INVALID_RECORD),  # minus one headers
        (encode_batch(ONE) * 2, ErrorCode.INVALID_RECORD),
        (encode_batch(ONE) + b"\0", ErrorCode.INVALID_RECORD),
        (encode_batch([ONE[0]._replace(offset=7)], base_offset=7), ErrorCode.INVALID_RECORD),
        (encode_batch(ONE, is_control=True), ErrorCode.INVALID_RECORD),
        (encode_batch(ONE, producer_id=1, producer_epoch=0), ErrorCode.INVALID_RECORD),
        (encode_batch(ONE, is_transactional=True), ErrorCode.INVALID_RECORD),  # without a producer
        (encode_batch([Record(0, 1, None, bytes(200))]), ErrorCode.MESSAGE_TOO_LARGE),
        (encode_batch([Record(0, NOW_MS + 3_600_001, None, b"")]), ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_what_is_refused(records: bytes, error_code: ErrorCode) -> None:
    refused = judge(records)
    assert refused.error_code is error_code
    assert refused.header is None
    assert refused.reason


def test_a_topic_may_allow_more() -> None:
    defaults = texts_of(BrokerSettings(message_max_bytes=10))
    limits = topic_limits(TopicConfig({"max.message.bytes": "500"}, defaults), is_internal=False)
    assert judge(encode_batch(ONE), limits).error_code is ErrorCode.NONE


@pytest.mark.parametrize("policy", ["compact", "delete,compact", "compact, delete"])
@pytest.mark.parametrize("compression", Compression)
def test_a_compacted_topic_wants_keys(policy: str, compression: Compression) -> None:
    keys = [b"k", None, b"", None]
    records = [Record(index, NOW_MS, key, b"v") for index, key in enumerate(keys)]
    limits = limits_of(cleanup_policy=policy)
    refused = judge(encode_batch(records, compression=compression), limits)
    message = "Compacted topic cannot accept message without key in topic partition orders-0"
    assert refused.error_code is ErrorCode.INVALID_RECORD
    assert refused.record_errors == [RecordError(1, message), RecordError(3, message)]
    assert refused.reason == (
        "One or more records have been rejected due to 2 record errors in total, and only showing "
        "the first three errors at most: "
        f"[RecordError(batchIndex=1, message='{message}'), "
        f"RecordError(batchIndex=3, message='{message}')]"
    )
    keyed = encode_batch([one._replace(key=one.key or b"") for one in records])
    assert judge(keyed, limits).error_code is ErrorCode.NONE


def test_a_topic_is_compacted_if_it_says_so_or_says_nothing_and_the_broker_does() -> None:
    without_key = encode_batch(ONE)
    for own, brokers, is_compacted in (
        ({}, "compact", True),
        ({"cleanup.policy": "delete"}, "compact", False),
        ({"cleanup.policy": "compact"}, "delete", True),
        ({}, "delete", False),
    ):
        defaults = texts_of(LogSettings(cleanup_policy=brokers))
        limits = topic_limits(TopicConfig(own, defaults), is_internal=False)
        refused = judge(without_key, limits).error_code is ErrorCode.INVALID_RECORD
        assert refused is is_compacted


def test_each_timestamp_is_held_against_both_limits() -> None:
    times = [NOW_MS - 1000, NOW_MS - 1001, -1, NOW_MS + 2000, NOW_MS + 2001]
    records = [Record(index, time, b"k", b"v") for index, time in enumerate(times)]
    limits = limits_of(
        message_timestamp_before_max_ms="1000", message_timestamp_after_max_ms="2000"
    )
    refused = judge(encode_batch(records), limits)
    assert refused.error_code is ErrorCode.INVALID_TIMESTAMP
    assert refused.reason == "One or more records have been rejected due to invalid timestamp"
    assert [error.batch_index for error in refused.record_errors] == [1, 4]
    assert refused.record_errors[0].message == (
        "Timestamp 998999 of message with offset 1 is out of range. "
        "The timestamp should be within [999000, 1002000]"
    )
    good = [times[0], times[2], times[3]]
    kept = [Record(index, time, b"k", b"v") for index, time in enumerate(good)]
    assert judge(encode_batch(kept), limits).error_code is ErrorCode.NONE


def test_the_brokers_limits_of_time_hold_for_topics_that_have_none() -> None:
    settings = BrokerSettings(
        log_message_timestamp_before_max_ms=5, log_message_timestamp_after_max_ms=7
    )
    limits = topic_limits(TopicConfig({}, texts_of(settings)), is_internal=False)
    for time, error_code in (
        (NOW_MS - 6, ErrorCode.INVALID_TIMESTAMP),
        (NOW_MS - 5, ErrorCode.NONE),
        (NOW_MS + 7, ErrorCode.NONE),
        (NOW_MS + 8, ErrorCode.INVALID_TIMESTAMP),
    ):
        assert judge(encode_batch([Record(0, time, None, b"")]), limits).error_code is error_code
    assert judge(encode_batch([Record(0, 0, None, b"")])).error_code is ErrorCode.NONE


def test_a_missing_key_and_a_wrong_time_are_one_refusal() -> None:
    records = [Record(0, NOW_MS, None, b""), Record(1, NOW_MS + 2 * HOUR_MS, b"k", b"")]
    refused = judge(encode_batch(records), limits_of(cleanup_policy="compact"))
    assert refused.error_code is ErrorCode.INVALID_TIMESTAMP  # as in Kafka, if there is one
    assert [error.batch_index for error in refused.record_errors] == [0, 1]


def test_the_largest_timestamp_is_worked_out_anew() -> None:
    body = handmade.record() + handmade.record(1, 4000)
    for said, attributes in ((1000, 0), (9000, 0), (5000, 0x08), (-1, 0)):
        batch = handmade.batch(
            body, 2, base_timestamp=1000, max_timestamp=said, attributes=attributes
        )
        admitted = judge(batch)
        assert admitted.error_code is ErrorCode.NONE
        assert admitted.header == read_header(admitted.records)
        assert (admitted.header.max_timestamp, admitted.header.attributes) == (5000, 0)
        assert [one.timestamp_ms for one in decode_batch(admitted.records)] == [1000, 5000]
        assert judge(bytes(admitted.records)).records == admitted.records


def test_a_time_that_the_header_hides_is_seen() -> None:
    body = handmade.record() + handmade.record(1, 4 * 10**12)
    hidden = handmade.batch(body, 2, base_timestamp=1000, max_timestamp=1000)
    assert judge(hidden).error_code is ErrorCode.INVALID_TIMESTAMP


def test_a_batch_without_timestamps_says_so() -> None:
    admitted = judge(handmade.batch(handmade.record(), base_timestamp=-1, max_timestamp=7))
    assert admitted.header is not None
    assert admitted.header.max_timestamp == -1


@pytest.mark.parametrize("compression", [one for one in Compression if one])
def test_bombs_are_too_large(compression: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "DECOMPRESSED_BYTES_MAX", 50_000)
    batch = handmade.batch(handmade.record(value=bytes(60_000)), compression=compression)
    limits = limits_of(max_message_bytes="50000")
    assert judge(batch, limits).error_code is ErrorCode.MESSAGE_TOO_LARGE
    as_plain = limits_of(max_message_bytes="70000")  # which may be as large when not compressed
    assert judge(batch, as_plain).error_code is ErrorCode.NONE


def test_more_records_than_a_moment_allows_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "ITEMS_MAX", 2)
    body = b"".join(handmade.record(number) for number in range(3))
    assert judge(handmade.batch(body, 3)).error_code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_list_of_wrong_records_is_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "RECORD_ERRORS_MAX", 2)
    body = b"".join(handmade.record(number, key=None) for number in range(5))
    refused = judge(handmade.batch(body, 5), limits_of(cleanup_policy="compact"))
    assert len(refused.record_errors) == 2
    assert refused.reason is not None
    assert "due to 5 record errors in total" in refused.reason


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
def test_records_get_the_time_of_the_append_whatever_they_had(compression: Compression) -> None:
    limits = limits_of(message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms="0")
    times = (-1, 5, NOW_MS, NOW_MS + 24 * HOUR_MS)
    sent = encode_batch(
        [Record(index, time, None, b"v") for index, time in enumerate(times)],
        compression=compression,
    )
    admitted = judge(sent, limits)
    assert admitted.error_code is ErrorCode.NONE
    assert admitted.header == read_header(admitted.records)
    assert admitted.header.has_log_append_time
    validate_checksum(admitted.records, 0, admitted.header)
    assert [record.timestamp_ms for record in decode_batch(admitted.records)] == [NOW_MS] * 4
    assert judge(sent).error_code is ErrorCode.INVALID_TIMESTAMP


def test_the_time_of_the_append_excuses_no_missing_key() -> None:
    limits = limits_of(message_timestamp_type="LogAppendTime", cleanup_policy="compact")
    assert judge(encode_batch(ONE), limits).error_code is ErrorCode.INVALID_RECORD


def test_what_brokers_write_is_trusted_under_a_right_checksum() -> None:
    limits = topic_limits(TopicConfig({"cleanup.policy": "compact"}, {}), is_internal=True)
    batch = encode_batch(ONE)
    assert judge(batch, limits).records is batch
    assert judge(changed(-1, 0xFF), limits).error_code is ErrorCode.CORRUPT_MESSAGE
    assert judge(changed(-1, 1, mended=True), limits).error_code is ErrorCode.NONE


def test_zstd_is_for_newer_requests() -> None:
    for compression in Compression:
        batch = encode_batch(ONE, compression=compression)
        for version in range(3, 14):
            is_early = compression is Compression.ZSTD and version < 7
            assert is_zstd_too_early(batch, version) is is_early
    assert not is_zstd_too_early(b"", 3)
    assert not is_zstd_too_early(changed(16, 1), 3)


SENT_MS = 1_700_000_000_000
PRODUCE = 0
LAST_BY_NAME = 12  # newer versions name topics by id


async def create(connection: KafkaConnection, **configs: str) -> bytes:
    given = {name.replace("_", "."): value for name, value in configs.items()}
    [made] = (await connection.send(topic_creation("t", configs=given))).topics
    assert made.error_code == ErrorCode.NONE
    return bytes(made.topic_id)


def to_partitions(batches: list[bytes], acks: int) -> ProduceRequest:
    data = [PartitionProduceData(index=one, records=of) for one, of in enumerate(batches)]
    topic = TopicProduceData(name="t", partition_data=data)
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[topic])


async def values(connection: KafkaConnection) -> list[bytes | None]:
    """Return what a consumer reads from the beginning."""
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_bytes=1 << 20, topics=[FetchTopic(topic="t", partitions=[partition])]
    )
    response = await connection.send(request, version=LAST_BY_NAME)
    [answer] = response.responses[0].partitions
    assert answer.error_code == ErrorCode.NONE
    batches = answer.records or b""
    assert isinstance(batches, bytes | bytearray | memoryview)
    return [one.value for _, records in decode_batches(batches) for one in records]


@pytest.mark.parametrize("version", versions(PRODUCE))
async def test_a_compacted_topic_names_records_without_key(tmp_path: Path, version: int) -> None:
    async with asking(tmp_path) as (_, connection):
        topic_id = await create(connection, cleanup_policy="compact")
        written = partial(produce, connection, topic_id=topic_id, version=version)
        records = [Record(0, SENT_MS, b"k", b"v"), Record(1, SENT_MS, None, b"no key")]
        answer = await written(encode_batch(records))
        assert answer.error_code == ErrorCode.INVALID_RECORD
        named = [(one.batch_index, one.batch_index_error_message) for one in answer.record_errors]
        message = "Compacted topic cannot accept message without key in topic partition t-0"
        assert named == ([(1, message)] if version >= 8 else [])
        assert (answer.error_message or "").startswith("One or more records") is (version >= 8)
        assert answer.base_offset == -1
        assert answer.log_start_offset == (0 if version >= 5 else -1)
        assert await values(connection) == []  # refused whole
        answer = await written(encode_batch(records[:1]))
        assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 0)


async def test_nonsense_under_a_right_checksum_does_not_end_the_partition(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection)
        await produce(connection, encode_batch([Record(0, 1, None, b"first")]))
        for nonsense in (
            handmade.batch(b"\xff" * 20),
            handmade.batch(handmade.record()[:-1]),
            handmade.batch(handmade.record(), 2),
            handmade.mended(encode_batch([Record(0, 1, None, b"x")]) + b"\0"),
            b"",
            encode_batch([Record(0, 1, None, b"x")])[:-1],
        ):
            answer = await produce(connection, nonsense)
            assert answer.error_code == ErrorCode.INVALID_RECORD
            assert answer.error_message
        await produce(connection, encode_batch([Record(0, 1, None, b"second")]))
        assert await values(connection) == [b"first", b"second"]


@pytest.mark.parametrize("said_ms", [1000, 10**12])
async def test_a_lookup_by_time_finds_more_than_the_header(tmp_path: Path, said_ms: int) -> None:
    async def ask(connection: KafkaConnection, timestamp: int) -> tuple[int, int]:
        answer = await list_offset(connection, timestamp, version=7)
        assert answer.error_code == ErrorCode.NONE
        return answer.offset, answer.timestamp

    async with asking(tmp_path) as (_, connection):
        await create(connection)
        await produce(connection, encode_batch([Record(0, 500, None, b"x")]))
        body = handmade.record() + handmade.record(1, 4000)
        batch = handmade.batch(body, 2, base_timestamp=1000, max_timestamp=said_ms)
        assert (await produce(connection, batch)).error_code == ErrorCode.NONE
        assert await ask(connection, 4000) == (2, 5000)
        assert await ask(connection, 5001) == (-1, -1)
        assert await ask(connection, -3) == (2, 5000)  # of the largest timestamp


async def test_zstd_needs_a_newer_request(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection)
        batch = encode_batch([Record(0, 1, None, b"v")], compression=Compression.ZSTD)
        for version in versions(PRODUCE)[:-1]:
            answer = await produce(connection, batch, version=version)
            refused = answer.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
            assert refused is (version < 7)
            assert refused is (answer.error_code != ErrorCode.NONE)


class Turns:
    """Counts the turns of the event loop, and notes in which one each append happens."""

    def __init__(self, broker: SingleBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        self.of_appends: list[int] = []
        append_then = broker.replicas.appends.append

        def noted(*arguments: Any, **named: Any) -> None:
            self.of_appends.append(self.now)
            append_then(*arguments, **named)

        monkeypatch.setattr(broker.replicas.appends, "append", noted)
        self._turn()

    def _turn(self) -> None:
        self.now += 1
        self._next = asyncio.get_running_loop().call_soon(self._turn)

    def stop(self) -> None:
        self._next.cancel()


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("slice_s", [-1, 1000])
async def test_a_request_that_takes_long_lets_others_have_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slice_s: int, acks: int
) -> None:
    monkeypatch.setattr(produce_handler, "SLICE_S", slice_s)

    async with asking(tmp_path) as (broker, connection):
        await create_partitions(connection, "t", 4)
        turns = Turns(broker, monkeypatch)
        batch = encode_batch([Record(0, 1, None, b"v")])
        request = to_partitions([batch, b"nonsense", batch, batch], acks)
        for count in (1, 2):
            response = await connection.send(request, version=LAST_BY_NAME)
            answers = response.responses[0].partition_responses
            assert [one.index for one in answers] == [0, 1, 2, 3]
            assert [one.base_offset for one in answers] == [count - 1, -1, count - 1, count - 1]
            assert answers[1].error_code == ErrorCode.INVALID_RECORD
            assert len({*turns.of_appends}) == (4 * count if slice_s < 0 else count)
        turns.stop()


async def test_in_slices_too_acks_0_has_no_answer_and_an_error_closes_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(produce_handler, "SLICE_S", -1)

    with caplog.at_level(logging.WARNING):
        async with asking(tmp_path) as (_, connection):
            await create_partitions(connection, "t", 2)
            batch = encode_batch([Record(0, 1, None, b"v")])
            connection.send_no_reply(to_partitions([batch, batch], 0), version=LAST_BY_NAME)
            assert await values(connection) == [b"v"]
            connection.send_no_reply(to_partitions([batch, b"nonsense"], 0), version=LAST_BY_NAME)
            with pytest.raises(ConnectionLost):
                await values(connection)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "acks=0, t-1: INVALID_RECORD" in caplog.text


async def test_requests_in_slices_keep_their_bytes_and_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records are views of the receive buffer, and more requests wait in the same buffer."""
    monkeypatch.setattr(produce_handler, "SLICE_S", -1)
    payloads = [bytes([number]) * 20_000 for number in range(12)]

    async with asking(tmp_path) as (_, connection):
        await create_partitions(connection, "t", 2)
        batches = [encode_batch([Record(0, 1, None, payload)]) for payload in payloads]
        requests = [to_partitions([batch, batch], 1) for batch in batches]
        sent = [connection.send(request, version=LAST_BY_NAME) for request in requests]
        for response in await asyncio.gather(*sent):
            answers = response.responses[0].partition_responses
            assert [one.error_code for one in answers] == [ErrorCode.NONE, ErrorCode.NONE]
        assert await values(connection) == payloads
