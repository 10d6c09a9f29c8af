"""Fetches over sockets: sessions (KIP-227) that brokers forget and close, and full buffers."""

import asyncio
from random import Random
from typing import Any

import pytest

from quorumlog.client import Consumer, TopicPartition
from quorumlog.client.settings import ConsumerOptions
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.fetch import (
    AbortedTransaction,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from quorumlog.wire.codec.records import Record, encode_batch
from tests.support.client.fake_cluster import FakeCluster
from tests.support.client.opened import consuming
from tests.support.waiting import until

PARTITIONS = 20
NAMES = [TopicPartition("t", index) for index in range(PARTITIONS)]
OPTIONS: ConsumerOptions = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 1}


class Sessions:
    """Gives a FakeCluster sessions; `trouble`: how often each of four things goes wrong."""

    def __init__(self, cluster: FakeCluster, trouble: float = 0.0) -> None:
        self.rng, self.trouble = Random(1), trouble
        self.full_fetch = cluster.fetch
        self.sessions: dict[int, tuple[int, dict[TopicPartition, Any]]] = {}
        self.ids = self.named = 0
        self.errors: list[ErrorCode] = []
        cluster.fetch = self.fetch  # type: ignore[method-assign]  # for this test
        cluster.topics["t"] = PARTITIONS

    def goes_wrong(self) -> bool:
        return self.rng.random() < self.trouble

    def fetch(self, request: Any, fault: object) -> FetchResponse:
        session_id, epoch = request.session_id, request.session_epoch
        self.named += sum(len(topic.partitions) for topic in request.topics)
        if epoch == 0:
            self.sessions.pop(session_id, None)
            self.ids += 1
            session_id, expected, positions = self.ids, 0, dict[TopicPartition, Any]()
        else:
            expected, positions = self.sessions.get(session_id, (-1, {}))
        if expected < 0 or self.goes_wrong():
            self.sessions.pop(session_id, None)
            self.errors.append(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            return FetchResponse(error_code=self.errors[-1])
        if epoch != expected or self.goes_wrong():
            self.errors.append(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
            return FetchResponse(error_code=self.errors[-1])
        positions |= {
            TopicPartition(topic.topic, one.partition): one
            for topic in request.topics
            for one in topic.partitions
        }
        for topic in request.forgotten_topics_data:
            for index in topic.partitions:
                del positions[TopicPartition(topic.topic, index)]
        self.sessions[session_id] = epoch + 1, positions
        if epoch and self.goes_wrong():
            del self.sessions[session_id]
            session_id = 0
        return self.answer(fault, session_id, positions, is_full=epoch == 0)

    def answer(
        self, fault: object, session_id: int, positions: dict[TopicPartition, Any], *, is_full: bool
    ) -> FetchResponse:
        """Read all partitions of the session, and leave out those without news."""
        asked = FetchRequest(topics=[FetchTopic(topic="t", partitions=[*positions.values()])])
        response = self.full_fetch(asked, fault)
        response.session_id = session_id
        if not is_full:
            for topic in response.responses:
                topic.partitions = [
                    one for one in topic.partitions if one.records or one.error_code
                ]
        return response


def append(cluster: FakeCluster, name: TopicPartition, count: int) -> None:
    log = cluster.logs.setdefault(name, [])
    start = len(log)
    for offset in range(start, start + count):
        log.append(encode_batch([Record(offset, 0, None, b"%d" % offset)], base_offset=offset))


async def read(consumer: Consumer, count: int) -> dict[TopicPartition, list[int]]:
    found: dict[TopicPartition, list[int]] = {}
    while sum(map(len, found.values())) < count:
        for name, records in (await consumer.poll(1_000)).items():
            found.setdefault(name, []).extend(record.offset for record in records)
    return found


@pytest.mark.parametrize("trouble", [0.0, 0.1])
async def test_every_record_is_read_once_and_fetches_name_changes_only(trouble: float) -> None:
    async with consuming(**OPTIONS) as (cluster, consumer):
        sessions = Sessions(cluster, trouble)
        consumer.assign(NAMES)
        for start in range(0, 30, 3):
            for name in NAMES[: 1 + start // 3]:
                append(cluster, name, 3)
            found = await read(consumer, 3 * (1 + start // 3))
            assert {name: len(offsets) for name, offsets in found.items()} == dict.fromkeys(
                NAMES[: 1 + start // 3], 3
            )
        for name in NAMES[:10]:
            assert consumer._positions.of(name).offset == len(cluster.logs[name]) > 0
        if trouble:
            assert {*sessions.errors} == {
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
                ErrorCode.INVALID_FETCH_SESSION_EPOCH,
            }
        else:
            assert not sessions.errors
            assert len(sessions.sessions) == 1
            assert sessions.ids == 1
            batches = sum(map(len, cluster.logs.values()))
            assert sessions.named <= PARTITIONS + batches  # each anew after one of its batches


async def test_paused_and_unassigned_partitions_are_forgotten_and_sought_ones_are_named() -> None:
    async with consuming(**OPTIONS) as (cluster, consumer):
        sessions = Sessions(cluster)
        for name in NAMES[:3]:
            append(cluster, name, 4)
        consumer.assign(NAMES[:3])
        assert sum(map(len, (await read(consumer, 12)).values())) == 12
        consumer.pause(NAMES[:1])
        for name in NAMES[:2]:
            append(cluster, name, 1)
        assert await read(consumer, 1) == {NAMES[1]: [4]}
        consumer.seek(NAMES[2], 1)
        assert await read(consumer, 3) == {NAMES[2]: [1, 2, 3]}
        consumer.assign(NAMES[:2])
        append(cluster, NAMES[2], 1)
        consumer.resume(NAMES[:1])
        assert await read(consumer, 1) == {NAMES[0]: [4]}
        ((_, positions),) = sessions.sessions.values()
        assert {*positions} <= {*NAMES[:2]}


async def test_records_of_paused_partitions_do_not_stop_the_others() -> None:
    options: ConsumerOptions = {**OPTIONS, "fetch_max_bytes": 1}
    async with consuming(**options) as (cluster, consumer):
        cluster.topics["t"] = 2
        consumer.assign(NAMES[:2])
        append(cluster, NAMES[0], 40)
        await until(lambda: consumer._positions.of(NAMES[0]).buffered_bytes > 0)
        consumer.pause(NAMES[:1])
        append(cluster, NAMES[1], 3)
        assert await read(consumer, 3) == {NAMES[1]: [0, 1, 2]}
        consumer.resume(NAMES[:1])
        assert await read(consumer, 40) == {NAMES[0]: [*range(40)]}


async def test_a_lost_connection_begins_another_session_and_closes_the_last() -> None:
    async with consuming(**OPTIONS) as (cluster, consumer):
        sessions = Sessions(cluster)
        consumer.assign(NAMES)
        append(cluster, NAMES[0], 1)
        await read(consumer, 1)
        cluster.hang_up()
        append(cluster, NAMES[1], 1)
        assert await read(consumer, 1) == {NAMES[1]: [0]}
        assert (sessions.ids, len(sessions.sessions), sessions.errors) == (2, 1, [])


async def test_a_buffer_full_of_aborted_records_does_not_end_the_fetches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No fetch is outstanding while the buffer is full: to skip its records must begin the next."""
    small: ConsumerOptions = {
        "auto_offset_reset": "earliest", "isolation_level": "read_committed",
        "max_partition_fetch_bytes": 1,
    }  # fmt: skip
    async with asyncio.timeout(20), consuming(**small) as (cluster, consumer):
        fetch = cluster.fetch

        def with_aborted(request: Any, fault: object) -> Any:
            response = fetch(request, fault)
            for one in (one for topic in response.responses for one in topic.partitions):
                offset = request.topics[0].partitions[0].fetch_offset
                one.aborted_transactions = [AbortedTransaction(producer_id=7, first_offset=0)]
                one.records = batch_of(offset, b"%d" % offset, is_aborted=offset < 3)
            return response

        monkeypatch.setattr(cluster, "fetch", with_aborted)
        place = TopicPartition("t", 0)
        consumer.assign([place])
        position = consumer._positions.by_partition[place]
        while position.is_asked or not position.buffered_bytes:
            await asyncio.sleep(0.001)
        polled = await consumer.poll(10_000)
        assert [one.value for one in polled[place]] == [b"3"]


def batch_of(offset: int, value: bytes, *, is_aborted: bool) -> bytes:
    return encode_batch(
        [Record(offset, 0, None, value)],
        base_offset=offset,
        producer_id=7 if is_aborted else 8,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
