"""One broker's data path: appends, long polls, metadata, and records above the high watermark."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from quorumlog.broker.partitions.core.data_path import (
    DEBUG_REPLICA,
    NO_REPLICA,
    FetchedPartition,
    OffsetAnswer,
    ProduceResult,
)
from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.broker.partitions.log import appends, loaded_log
from quorumlog.broker.partitions.log.offset_lookup import LATEST
from quorumlog.broker.replicas import Replicas
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage, TopicImage
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Epoch, Offset, TopicId, TopicPartition
from quorumlog.wire.codec.message import contents
from quorumlog.wire.codec.records import read_header
from tests.support.broker.one_broker import (
    AT,
    BATCH,
    TOPIC_ID,
    append,
    fetch_of,
    from_leader,
    one_broker,
    publish,
    sequenced,
    size,
    start,
)
from tests.support.broker.replica_calls import append_to, fetch_from, read_local
from tests.support.broker.replicas import ALL_ALIVE, BROKERS, diverged, image
from tests.support.waiting import until


async def test_a_lone_replica_commits_at_once(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as replicas:
        assert append(replicas, acks=-1) == ProduceResult(ErrorCode.NONE, 0, -1, 0)
        read = read_local(replicas, AT, 0, 1000)
        assert read_header(read.records).leader_epoch == 0
        assert read_local(replicas, AT, 5, 1000).error_code is ErrorCode.OFFSET_OUT_OF_RANGE
        append(replicas)  # the first batch is returned even if it is too large
        assert size(fetch_from(replicas, fetch_of(0, max_bytes=1))) == len(BATCH)
        assert size(fetch_from(replicas, fetch_of(0, partition_max_bytes=1))) == len(BATCH)
        assert size(fetch_from(replicas, fetch_of(0))) == 2 * len(BATCH)


async def test_a_long_poll_ends_with_enough_bytes(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as replicas:
        poll = fetch_from(replicas, fetch_of(0, min_bytes=2 * len(BATCH)))
        assert isinstance(poll, asyncio.Future)
        append(replicas)
        await asyncio.sleep(0)
        assert not poll.done()
        append(replicas)
        assert size(await poll) == 2 * len(BATCH)


async def test_consumers_wait_for_the_high_watermark_and_followers_do_not(tmp_path: Path) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        consumer = fetch_from(replicas, fetch_of(0))
        follower = fetch_from(replicas, fetch_of(0, replica_id=2, leader_epoch=0))
        assert isinstance(consumer, asyncio.Future)
        assert isinstance(follower, asyncio.Future)
        produced = [append_to(replicas, AT, BATCH, acks=-1, timeout_ms=1000) for _ in range(3)]
        assert size(await follower) == 3 * len(BATCH)  # one answer for all three
        assert not consumer.done()
        assert not any(one.done() for one in produced)
        fetch_from(replicas, fetch_of(3, replica_id=2, leader_epoch=0)).cancel()  # type: ignore[union-attr]  # it waits
        assert [one.result().base_offset for one in produced] == [0, 1, 2]
        assert size(await consumer) == 3 * len(BATCH)
        assert read_local(replicas, AT, 0, 1).next_offset == 1


async def test_a_higher_epoch_of_a_leader_keeps_produces_and_wakes_fetches(tmp_path: Path) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        follower = fetch_from(replicas, fetch_of(0, replica_id=2, leader_epoch=0))
        assert isinstance(follower, asyncio.Future)
        publish(replicas, image(1, 1, 1, (1, 2), replicas=(1, 2)))
        assert (await follower)[0].error_code is ErrorCode.FENCED_LEADER_EPOCH
        produced = append_to(replicas, AT, BATCH, acks=-1, timeout_ms=1000)
        publish(replicas, image(1, 2, 2, (1, 2), replicas=(1, 2)))
        assert not produced.done()
        waits = fetch_from(replicas, fetch_of(1, replica_id=2, leader_epoch=2))
        assert isinstance(waits, asyncio.Future)
        waits.cancel()
        assert produced.result().error_code is ErrorCode.NONE


async def test_who_waits_when_the_leader_is_deposed_is_told(tmp_path: Path) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        seen: list[tuple[str, int]] = []

        class Listener:
            def became_leader(self, topic_partition: TopicPartition, leader_epoch: Epoch) -> None:
                seen.append(("led", leader_epoch))

            def resigned(self, topic_partition: TopicPartition, leader_epoch: Epoch) -> None:
                seen.append(("resigned", leader_epoch))

        replicas.add_leadership_listener(Listener())
        produced = append_to(replicas, AT, BATCH, acks=-1, timeout_ms=1000)
        consumer = fetch_from(replicas, fetch_of(0))
        publish(replicas, image(2, 1, 1, (1, 2), replicas=(1, 2)))
        assert produced.result().error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert isinstance(consumer, asyncio.Future)
        [answer] = await consumer
        assert answer.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (answer.leader_id, answer.leader_epoch) == (2, 1)
        assert append(replicas).error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        publish(replicas, image(1, 2, 2, (1, 2), replicas=(1, 2)))
        assert seen == [("resigned", 1), ("led", 2)]


async def test_a_duplicate_waits_for_the_first_attempt(tmp_path: Path) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        first, second = (
            append_to(replicas, AT, sequenced(0), acks=-1, timeout_ms=1000) for _ in range(2)
        )
        assert not first.done()
        assert not second.done()
        waits = fetch_from(replicas, fetch_of(1, replica_id=2, leader_epoch=0))
        assert first.result() == second.result() == ProduceResult(ErrorCode.NONE, 0, -1, 0)
        cast(asyncio.Future[Any], waits).cancel()


def recreate(replicas: Replicas, new_id: TopicId) -> None:
    topic = TopicImage(
        name=AT.topic, topic_id=new_id, partitions=(image(1, 0, 0, (1,), replicas=(1,)),)
    )
    cluster = ClusterImage(
        brokers=ALL_ALIVE, topics={AT.topic: topic}, topic_names={new_id: AT.topic}
    )
    delta = ClusterDelta(partitions=frozenset({AT}), deleted_topics={AT.topic: TOPIC_ID})
    replicas.publish(delta, cluster)


@pytest.mark.parametrize("replica_id", [-1, 2])
async def test_who_waits_for_a_topic_gets_nothing_of_the_next_one_of_its_name(
    tmp_path: Path, replica_id: int
) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        spec = fetch_of(0, replica_id, leader_epoch=0)
        spec.partitions[0].topic_id = TOPIC_ID
        waiting = fetch_from(replicas, spec)
        produced = append_to(replicas, AT, BATCH, acks=-1, timeout_ms=1000)
        assert isinstance(waiting, asyncio.Future)
        recreate(replicas, TopicId(b"n" * 16))
        assert produced.result().error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert append(replicas, acks=-1).base_offset == 0
        [answer] = await waiting
        assert (answer.error_code, list(answer.records)) == (ErrorCode.INCONSISTENT_TOPIC_ID, [])
        [late] = cast(list[FetchedPartition], fetch_from(replicas, spec))
        assert late.error_code is ErrorCode.INCONSISTENT_TOPIC_ID


async def test_only_so_many_produces_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appends, "WAITING_MAX", 2)

    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        waiting = [append_to(replicas, AT, BATCH, acks=-1, timeout_ms=2**31 - 1) for _ in range(2)]
        refused = append(replicas, acks=-1)
        assert refused.error_code is ErrorCode.REQUEST_TIMED_OUT
        assert append(replicas, acks=1).base_offset == 2  # it was not appended
        cast(asyncio.Future[Any], fetch_from(replicas, fetch_of(3, 2, leader_epoch=0))).cancel()
        assert [one.result().base_offset for one in waiting] == [0, 1]
        assert not append_to(replicas, AT, BATCH, acks=-1, timeout_ms=1000).done()


async def test_a_truncation_that_cuts_no_record_reads_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deposed leader that wrote nothing gives up its epoch, at each change of leaders."""

    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        append(replicas)
        append(replicas)
        publish(replicas, image(1, 5, 1, (1, 2), replicas=(1, 2)))
        publish(replicas, image(2, 6, 2, (1, 2), replicas=(1, 2)))
        driver, rebuilt = replicas.drivers[AT], list[int]()

        def note(log: Log, kind: type[ProducerStates], *, clock_ahead_ms: int) -> ProducerStates:
            assert clock_ahead_ms == 0
            rebuilt.append(log.log_end_offset)
            return kind()

        monkeypatch.setattr(loaded_log, "load_producers", note)
        for epoch, last_epoch, end_offset in ((0, 5, 2), (0, 0, 1)):
            answer = diverged(2, end_offset, epoch=epoch, last_fetched_epoch=last_epoch)
            driver.feed(0, replace(answer, leader_epoch=Epoch(6)))
            assert driver.log.epochs.latest_epoch == 0  # KAFKA-10706
        assert rebuilt == [1]


async def test_an_append_that_failed_leaves_no_trace(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as replicas:
        driver = replicas.drivers[AT]

        def full(*args: object, **options: object) -> None:
            raise StorageError("no space left on device")

        append(replicas, records=sequenced(0))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(driver.log), "append_run", full)
            refused = append(replicas, records=sequenced(1))
        assert refused.error_code is ErrorCode.KAFKA_STORAGE_ERROR
        assert append(replicas, records=sequenced(1)).base_offset == 1  # KAFKA-6683
        assert not replicas.failure.done()  # there may be room again


async def test_no_log_is_opened_once_it_stops(tmp_path: Path) -> None:
    """The clean shutdown marker would speak for it too."""

    async with one_broker(tmp_path) as replicas:
        await replicas.stop()
        other = TopicPartition("other", 0)
        topic = TopicImage(
            name="other", topic_id=TopicId(b"o" * 16), partitions=(image(1, 0, 0, (1,)),)
        )
        cluster = ClusterImage(brokers=ALL_ALIVE, topics={"other": topic})
        replicas.publish(ClusterDelta(partitions=frozenset({other})), cluster)
        assert replicas.drivers.get(other) is None
    assert not (tmp_path / "other-0").exists()


async def test_a_replica_that_is_removed_while_it_is_flushed_harms_nobody(tmp_path: Path) -> None:
    replicas = await start(tmp_path)
    await until(lambda: replicas.drivers.get(AT) is not None)
    driver = replicas.drivers[AT]
    flush, begun, may_flush = driver.log.flush, threading.Event(), threading.Event()

    def late_flush() -> Offset:
        begun.set()
        assert may_flush.wait(10)
        return flush()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver.log, "flush", late_flush)
        patch.setattr(type(driver.log), "active_base_offset", Offset(1))
        flushing = asyncio.create_task(replicas._checkpoints.flush_full_segments())
        await until(begun.is_set)
        gone = ClusterDelta(deleted_topics={AT.topic: TOPIC_ID})
        replicas.publish(gone, ClusterImage(brokers=ALL_ALIVE))
        may_flush.set()
        await flushing
    await replicas.stop()


async def test_a_log_that_cannot_be_opened_is_not_taken_for_a_stray(tmp_path: Path) -> None:
    """Renamed, it would be empty at the next start, and this replica perhaps elected."""

    async with one_broker(tmp_path) as replicas:
        append(replicas)

    def damaged(*args: object, **options: object) -> None:
        raise StorageError("input/output error")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Log, "open", damaged)
        async with one_broker(tmp_path) as replicas:
            publish(replicas, image(1, 1, 1, (1,), replicas=(1,)))
            assert append(replicas).error_code is ErrorCode.KAFKA_STORAGE_ERROR
            replicas.registered(ALL_ALIVE[BROKERS[0]].broker_epoch)
            publish(replicas, image(1, 1, 1, (1,), replicas=(1,)))
            assert not replicas.failure.done()
            assert not replicas.may_lead.is_set()
    assert (tmp_path / "orders-0").exists()


async def test_a_former_leader_serves_what_overwrote_its_own_records(tmp_path: Path) -> None:
    """Its newest batches are in memory: they must not outlive the leadership they were made in."""

    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        driver = replicas.drivers[AT]
        append(replicas)  # offset 0 in epoch 0, which no follower has fetched
        publish(replicas, image(2, 1, 1, (1, 2), replicas=(1, 2)))
        driver.feed(0, diverged(1, 0, epoch=-1))
        driver.append_as_follower(
            from_leader(0),
            leader_epoch=Epoch(1),
            high_watermark=Offset(0),
            log_start_offset=Offset(0),
            now_ms=0,
            wall_ms=0,
        )
        publish(replicas, image(1, 2, 2, (1, 2), replicas=(1, 2)))
        append(replicas)  # offset 1 in epoch 2, which continues what was in memory
        assert driver.partition.state.high_watermark == 0
        fetched = fetch_from(replicas, fetch_of(0, replica_id=2, leader_epoch=2, max_wait_ms=0))
        assert isinstance(fetched, list)
        records = b"".join(contents(fetched[0].records))
        first = read_header(records)
        second = read_header(records, first.size_in_bytes)
        assert [first.leader_epoch, second.leader_epoch] == [1, 2]


async def test_the_latest_offset_is_the_high_watermark_for_a_consumer(tmp_path: Path) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        append(replicas)

        async def latest(replica_id: BrokerId) -> OffsetAnswer:
            return await replicas.list_offset(AT, LATEST, replica_id=replica_id)

        assert await latest(NO_REPLICA) == OffsetAnswer(ErrorCode.NONE, 0, -1, Epoch(0))
        assert (await latest(BrokerId(9))).offset == 0  # it is no replica of this partition
        assert (await latest(BrokerId(2))).offset == (await latest(DEBUG_REPLICA)).offset == 1


async def test_a_duplicate_of_an_older_batch_is_acknowledged_with_that(tmp_path: Path) -> None:
    async with one_broker(tmp_path, isr=(1, 2)) as replicas:
        waiting: list[asyncio.Future[ProduceResult]] = []

        def produce(sequence: int) -> list[bool]:
            future = append_to(replicas, AT, sequenced(sequence), acks=-1, timeout_ms=1000)
            waiting.append(future)
            return [one.done() for one in waiting]

        for sequence in (0, 1, 2):
            produce(sequence)
        assert produce(1) == [False] * 4
        fetch_from(replicas, fetch_of(1, replica_id=2, leader_epoch=0, max_wait_ms=0))
        assert [one.done() for one in waiting] == [True, False, False, False]
        fetch_from(replicas, fetch_of(2, replica_id=2, leader_epoch=0, max_wait_ms=0))
        assert [one.done() for one in waiting] == [True, True, False, True]
        assert waiting[3].result() == waiting[1].result()
        assert produce(0)[4]  # committed long ago
