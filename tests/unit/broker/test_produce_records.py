"""Produce requests whose records are against the rules, or many, asked over a connection."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from quorumlog.broker.handlers import produce as produce_handler
from quorumlog.wire.codec.compression import Compression
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from quorumlog.wire.codec.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from quorumlog.wire.codec.records import Record, decode_batches, encode_batch
from quorumlog.wire.io.connection import ConnectionLost, KafkaConnection
from tests.support.broker.requests import list_offset, produce, topic_creation
from tests.support.groups.asking import asking, versions
from tests.support.groups.asking import create as create_partitions
from tests.support.groups.single_broker import SingleBroker
from tests.support.wire import handmade_bytes as handmade

NOW_MS = 1_700_000_000_000
PRODUCE = 0
LAST_BY_NAME = 12  # newer versions name topics by id


async def create(connection: KafkaConnection, **configs: str) -> None:
    given = {name.replace("_", "."): value for name, value in configs.items()}
    [made] = (await connection.send(topic_creation("t", configs=given))).topics
    assert made.error_code == ErrorCode.NONE


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


@pytest.mark.parametrize("version", versions(PRODUCE)[:-1])
async def test_a_compacted_topic_names_the_records_without_a_key(
    tmp_path: Path, version: int
) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection, cleanup_policy="compact")
        records = [Record(0, NOW_MS, b"k", b"v"), Record(1, NOW_MS, None, b"no key")]
        answer = await produce(connection, encode_batch(records), version=version)
        assert answer.error_code == ErrorCode.INVALID_RECORD
        named = [(one.batch_index, one.batch_index_error_message) for one in answer.record_errors]
        message = "Compacted topic cannot accept message without key in topic partition t-0"
        assert named == ([(1, message)] if version >= 8 else [])
        assert (answer.error_message or "").startswith("One or more records") is (version >= 8)
        assert answer.base_offset == -1
        assert answer.log_start_offset == (0 if version >= 5 else -1)
        assert await values(connection) == []  # refused whole
        answer = await produce(connection, encode_batch(records[:1]), version=version)
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
async def test_a_lookup_by_time_finds_what_the_header_does_not_say(
    tmp_path: Path, said_ms: int
) -> None:
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


async def test_timestamps_too_early_and_too_late_are_named(tmp_path: Path) -> None:
    async with asking(tmp_path) as (_, connection):
        await create(connection, message_timestamp_before_max_ms="1000")
        early = handmade.batch(handmade.record(), base_timestamp=1, max_timestamp=1)
        hidden = handmade.record(0, 4 * 10**12)  # of the year 2096
        late = handmade.batch(hidden, base_timestamp=1000, max_timestamp=1000)
        for batch in (early, late):
            answer = await produce(connection, batch)
            assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
            [error] = answer.record_errors
            assert error.batch_index == 0
            assert "is out of range" in (error.batch_index_error_message or "")
        assert await values(connection) == []


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
