"""Raw clients: their connections, the bursts that they draw, their records and facts."""

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count, pairwise
from random import Random
from typing import Any

import pytest
import trustme

from quorumlog.chaos.checkers.findings import Row
from quorumlog.chaos.checkers.wire.facts import read_facts
from quorumlog.chaos.history.exchanges import ALL, UNANSWERED, Exchange, Read
from quorumlog.chaos.rude_clients import produce_plans as plans
from quorumlog.chaos.rude_clients.connection import RawConnection
from quorumlog.chaos.rude_clients.produce_plans import PlannedBatch, ProducerState
from quorumlog.chaos.rude_clients.raw_client import fetched, read_batches
from quorumlog.chaos.rude_clients.record_content import (
    NOT_OURS,
    digest_of,
    drawn_record,
    installed_codecs,
    value_of,
)
from quorumlog.wire.codec.compression import Compression
from quorumlog.wire.codec.messages.fetch import PartitionData
from quorumlog.wire.codec.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from quorumlog.wire.codec.records import Record, decode_batch, encode_batch
from quorumlog.wire.codec.schemas import encode_response
from quorumlog.wire.io.security import ConnectionSecurity, SaslLogin
from tests.support.wire.sasl_broker import SaslBroker, serving
from tests.support.wire.scripted_broker import Broker

SEEDS = range(40)


@asynccontextmanager
async def connected(timeout_s: float = 5.0) -> AsyncIterator[tuple[Broker, RawConnection]]:
    broker, times = Broker(), count()
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    how: dict[str, Any] = {"node": 1, "number": 4, "now_ns": lambda: next(times)}
    connection = await RawConnection.connect("127.0.0.1", port, **how, timeout_s=timeout_s)
    assert connection is not None
    try:
        async with asyncio.timeout(20):
            yield broker, connection
    finally:
        await connection.close()
        server.close()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)


# --- connections ---


async def test_pipelined_requests_get_their_responses() -> None:
    async with connected() as (broker, connection):
        pending = [connection.send(HeartbeatRequest(generation_id=one), one) for one in range(3)]
        for generation in range(3):
            header, request = await broker.requests.get()
            assert (header.api_version, request.generation_id) == (generation, generation)
            answer = HeartbeatResponse(error_code=generation)
            broker.writer.writelines(encode_response(header, answer))
        answered = [await connection.within(one) for one in pending]
        assert [one.response.error_code for one in answered] == [0, 1, 2]
        exchanges = [one.exchange for one in answered]
        assert [one.place for one in exchanges] == [1, 2, 3]
        assert {(one.node, one.connection) for one in exchanges} == {(1, 4)}
        assert all(one.sent_ns < one.answered_ns for one in exchanges)
        later = connection.send_silently(HeartbeatRequest(), 0)
        assert (later.since_ns, later.place) == (exchanges[0].answered_ns - 1, 4)


async def test_a_connection_requests_the_versions_in_a_drawn_one() -> None:
    broker = Broker()
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for seed in range(8):
        connection = await RawConnection.open(
            "127.0.0.1", port, node=1, number=1, now_ns=lambda: 0, rng=Random(seed)
        )
        assert connection is not None
        assert connection.versions[12] == range(4)
        await connection.close()
    assert len({*broker.versions_seen}) > 2
    server.close()
    assert (
        await RawConnection.connect("127.0.0.1", port, node=1, number=1, now_ns=lambda: 0) is None
    )


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"])
@pytest.mark.parametrize("password", ["secret", "wrong"])
async def test_a_raw_connection_logs_in_over_tls(mechanism: str, password: str) -> None:
    authority = trustme.CA()
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(own)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    login = SaslLogin(
        mechanism=mechanism,
        username="alice",
        password=password,
        token=lambda: "good" if password == "secret" else "bad",
    )
    how: dict[str, Any] = {"node": 1, "number": 1, "now_ns": lambda: 0, "rng": Random(1)}
    security = ConnectionSecurity(tls=client, login=login)
    async with serving(SaslBroker(), own) as port:
        connection = await RawConnection.open("127.0.0.1", port, security=security, **how)
        if password == "wrong":
            assert connection is None
            return
        assert connection is not None
        answered = await connection.exchange(HeartbeatRequest(generation_id=7), 0)
        assert answered.response == HeartbeatResponse(throttle_time_ms=0)
        await connection.close()
        plain = ConnectionSecurity(login=login)  # the listener has TLS
        assert await RawConnection.open("127.0.0.1", port, security=plain, **how) is None


async def test_a_raw_connection_without_a_token_or_sasl_is_none() -> None:
    def no_token() -> str:
        raise OSError("the issuer is down")

    how: dict[str, Any] = {"node": 1, "number": 1, "now_ns": lambda: 0, "rng": Random(1)}
    for token, broker in ((no_token, SaslBroker()), (lambda: "good", SaslBroker(without=(17,)))):
        login = SaslLogin(mechanism="OAUTHBEARER", token=token)
        security = ConnectionSecurity(login=login)
        async with serving(broker) as port:
            assert await RawConnection.open("127.0.0.1", port, security=security, **how) is None


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (struct.pack(">ii", 4, 77), "a Heartbeat v0 response"),
        (struct.pack(">iiih", 10, 77, 0, 0), "a response to 77, not to 1"),
    ],
)
async def test_bytes_that_are_no_response_end_the_connection(frame: bytes, reason: str) -> None:
    async with connected() as (broker, connection):
        pending = connection.send(HeartbeatRequest(), 1 if "77," in reason else 0)
        await broker.requests.get()
        broker.writer.write(frame)
        answered = await connection.within(pending)
        assert (answered.response, answered.exchange.answered_ns) == (None, UNANSWERED)
        assert connection.malformed.startswith(reason)
        assert connection.is_closed
        assert (await connection.exchange(HeartbeatRequest(), 0)).response is None


async def test_a_response_to_no_request_ends_the_connection() -> None:
    async with connected() as (broker, connection):
        connection.send_silently(HeartbeatRequest(), 0)
        header, _ = await broker.requests.get()
        broker.writer.writelines(encode_response(header, HeartbeatResponse()))
        while not connection.is_closed:
            await asyncio.sleep(0)
        assert connection.malformed == "a response to no request"


async def test_a_request_without_a_response_in_time_ends_the_connection() -> None:
    async with connected(timeout_s=0.01) as (_, connection):
        answered = await connection.exchange(HeartbeatRequest(), 0)
        assert (answered.response, connection.is_closed, connection.malformed) == (None, True, "")


# --- records ---


@pytest.mark.parametrize("codec", installed_codecs())
def test_a_record_that_comes_back_has_the_same_digest(codec: Compression) -> None:
    for seed in SEEDS:
        rng = Random(seed)
        records = [drawn_record(rng, index, 100 * seed + index) for index in range(3)]
        read = decode_batch(encode_batch(records, compression=codec))
        assert [digest_of(one) for one in read] == [digest_of(one) for one in records]
        assert [value_of(one) for one in read] == [100 * seed + index for index in range(3)]


@pytest.mark.parametrize(
    "change", [{"key": b""}, {"headers": (("a", b""),)}, {"timestamp_ms": 2}, {"value": b"07"}]
)
def test_each_part_of_a_record_changes_the_digest(change: dict[str, Any]) -> None:
    record = Record(0, 1, None, b"7", (("a", None),))
    digests = digest_of(record), digest_of(record._replace(**change))
    before, after = (one.split(":") for one in digests)
    assert sum(one != other for one, other in zip(before, after, strict=True)) == 1


def test_the_value_of_a_record_of_others_is_not_ours() -> None:
    assert {value_of(Record(0, 0, None, value)) for value in (None, b"", b"live")} == {NOT_OURS}
    assert value_of(Record(0, 0, None, b"0007")) == 7


def test_all_kinds_of_records_are_drawn() -> None:
    records = [drawn_record(Random(seed), 0, seed) for seed in range(200)]
    assert {None, b""} < {one.key for one in records}
    assert {0, 1, 2, 3} == {len(one.headers) for one in records}
    headers = [header for one in records for header in one.headers]
    assert {None, b""} < {value for _, value in headers}


# --- bursts ---


def state_of(seed: int) -> ProducerState:
    return ProducerState(producer_id=9, epoch=2, next_sequence=3 * seed)


@pytest.mark.parametrize("version", [3, 9])
def test_the_batches_of_a_burst_follow_each_other(version: int) -> None:
    codecs, sizes = set(), set()
    for seed in SEEDS:
        state = state_of(seed)
        batches = plans.draw_batches(Random(seed), state, version, count())
        assert batches[0].base_sequence == state.next_sequence
        for before, after in pairwise(batches):
            assert after.base_sequence == before.base_sequence + len(before.records)
        assert {(one.producer_id, one.producer_epoch) for one in batches} == {(9, 2)}
        codecs |= {one.compression for one in batches}
        sizes.add(len(batches))
    assert sizes == {1, 2, 3, 4, 5}  # a leader remembers no more of a producer
    assert (Compression.ZSTD in codecs) == (version >= plans.ZSTD_SINCE)


def test_a_producer_without_idempotence_has_no_sequences_and_longer_bursts() -> None:
    every = [plans.draw_batches(Random(seed), None, 9, count()) for seed in SEEDS]
    assert max(map(len, every)) > plans.IN_FLIGHT_MAX
    assert {one.base_sequence for batches in every for one in batches} == {-1}
    assert {plans.draw_acks(Random(seed), idempotent=False) for seed in SEEDS} == {ALL, 0, 1}
    assert {plans.draw_acks(Random(seed), idempotent=True) for seed in SEEDS} == {ALL}


def out_of_turn(state: ProducerState) -> list[PlannedBatch]:
    drawn = (
        plans.draw_out_of_turn(Random(seed), state, 30, 9, count(10_000)) for seed in range(300)
    )
    return [one for one in drawn if one is not None]


def test_requests_out_of_turn_are_of_all_manners() -> None:
    state = state_of(10)
    state.recent.extend(plans.draw_batches(Random(1), state, 9, count()))
    last = plans.draw_batches(Random(2), ProducerState(producer_id=9, epoch=1), 9, count(500))[-1]
    state.old.append(last)
    drawn = out_of_turn(state)
    manners = {"gap", "gap in the next epoch", "again", "stale", "stale again"}
    assert {one.manner for one in drawn} == manners
    for one in drawn:
        match one.manner:
            case "gap":
                assert one.base_sequence > 30
                assert (one.producer_epoch, one.is_new) == (2, True)
            case "gap in the next epoch":
                assert (one.producer_epoch, one.base_sequence > 0) == (3, True)
            case "again":
                assert one.sent in [each.sent for each in state.recent]
            case "stale":
                assert (one.producer_epoch, one.is_new) == (1, True)
            case _:
                assert (one.sent, one.is_new) == (last.sent, False)


def test_a_new_producer_is_never_out_of_turn() -> None:
    state = ProducerState(producer_id=9, epoch=0)
    drawn = [plans.draw_out_of_turn(Random(seed), state, 0, 9, count()) for seed in SEEDS]
    assert drawn == [None] * len(SEEDS)


def test_a_producer_raises_its_epoch_and_begins_at_0() -> None:
    seeds = []
    for seed in range(60):
        state = state_of(5)
        batches = plans.draw_batches(Random(seed), state, 9, count())
        state.recent.extend(batches)
        plans.maybe_next_epoch(Random(seed), state)
        if state.epoch == 3:
            seeds.append(seed)
            assert (state.next_sequence, [*state.recent], state.old) == (0, [], [batches[-1]])
    assert 0 < len(seeds) < 30


# --- facts ---


def test_the_facts_of_a_fetch_are_read_as_they_were_written() -> None:
    record = drawn_record(Random(1), 0, 17)
    batch = encode_batch([record], base_offset=0, leader_epoch=6)
    data = PartitionData(partition_index=0, high_watermark=9, records=batch)
    exchange = Exchange(1, 2, 3, 4, 5, 6, 7)
    told = fetched("t-0", exchange, 0, data=data, session=(8, 1), asked_epoch=6)
    row = Row("t-0", told.f, "wire_fetch", "ok", 1, 0, 0, 0, 1, told.offset, 0, 0, 0, 1, 1)
    (fetch,) = read_facts([(row, told.text)]).fetches
    assert (fetch.exchange, fetch.high_watermark, fetch.asked_epoch) == (exchange, 9, 6)
    assert (fetch.session_id, fetch.session_epoch, fetch.was_asked) == (8, 1, True)
    assert fetch.records == (Read(0, 17, digest_of(record), 6),)
    assert fetch.spans == ((0, 0),)


def test_a_spoilt_batch_is_named() -> None:
    batch = bytearray(encode_batch([drawn_record(Random(1), 0, 17)]))
    batch[-1] ^= 1
    assert "checksum" in read_batches(bytes(batch))[2]
