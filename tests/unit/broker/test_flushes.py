"""When logs are flushed, and what waits for it: log.flush.acks, flush.messages and flush.ms."""

import asyncio
import errno
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from quorumlog.broker.partitions.core.data_path import ACKS_ALL, ProduceResult
from quorumlog.broker.partitions.io.disk_threads import THREADS
from quorumlog.broker.partitions.log.partition_driver import PartitionDriver
from quorumlog.broker.replicas import Replicas
from quorumlog.broker.settings import BrokerSettings
from quorumlog.storage.core.settings import LogSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId
from tests.support.broker.faulty_disk import FaultyDisk
from tests.support.broker.held_queue import HeldQueue
from tests.support.broker.one_broker import (
    AT,
    BATCH,
    follow,
    from_leader,
    one_broker,
    publish,
    start,
)
from tests.support.broker.replica_calls import append_to
from tests.support.broker.replicas import diverged, fetched_by, image
from tests.support.waiting import until

AFTER_FLUSH = BrokerSettings(log_flush_acks=True)


def appended(replicas: Replicas, acks: int) -> asyncio.Future[ProduceResult]:
    return append_to(replicas, AT, BATCH, acks=acks, timeout_ms=60_000)


def high_watermark(replicas: Replicas) -> int:
    return replicas.drivers[AT].partition.state.high_watermark


@pytest.mark.parametrize("acks", [1, ACKS_ALL])
async def test_an_acknowledgement_waits_for_the_disk(tmp_path: Path, acks: int) -> None:
    queue = HeldQueue()
    async with one_broker(tmp_path, disk_queue=queue, settings=AFTER_FLUSH) as replicas:
        queue.is_held = True
        first, second = appended(replicas, acks), appended(replicas, acks)
        assert not first.done()
        assert high_watermark(replicas) == 0  # consumers do not see it either
        assert queue.release() == [AT, AT]  # the producers, and one flush for both batches
        assert [first.result().base_offset, second.result().base_offset] == [0, 1]
        assert high_watermark(replicas) == 2

        queue.is_held = True  # no timeout is too short for the disk of a sole replica
        waiting = append_to(replicas, AT, BATCH, acks=acks, timeout_ms=0)
        await asyncio.sleep(0.01)
        assert not waiting.done()
        queue.release()
        assert waiting.result().error_code is ErrorCode.NONE
        queue.is_held = True
        assert appended(replicas, 0).done()  # without acknowledgement nothing waits
        queue.release()
        publish(replicas, image(1, 0, 1, (1, 2), replicas=(1, 2)))
        waiting = append_to(replicas, AT, BATCH, acks=ACKS_ALL, timeout_ms=0)
        assert (await waiting).error_code is ErrorCode.REQUEST_TIMED_OUT  # of a follower


@pytest.mark.parametrize("acks", [1, ACKS_ALL])
async def test_a_flush_that_fails_acknowledges_nothing(tmp_path: Path, acks: int) -> None:
    queue, disk = HeldQueue(), FaultyDisk()
    async with one_broker(tmp_path, disk=disk, disk_queue=queue, settings=AFTER_FLUSH) as replicas:
        queue.is_held = True
        waiting = appended(replicas, acks)
        disk.errors = {"fsync": errno.EIO}
        queue.release()
        assert waiting.result().error_code is ErrorCode.KAFKA_STORAGE_ERROR
        assert AT not in replicas.drivers


@pytest.mark.parametrize("is_flushed", [False, True])
async def test_a_flush_without_room_is_tried_again(tmp_path: Path, is_flushed: bool) -> None:
    """Also after another flush: the checkpoints flush logs, and the replica is not notified."""
    queue, disk = HeldQueue(), FaultyDisk()
    async with one_broker(tmp_path, disk=disk, disk_queue=queue, settings=AFTER_FLUSH) as replicas:
        publish(replicas, image(1, 1, 1, (1,), replicas=(1,)))  # another epoch, for its file
        disk.on, disk.errors = "leader-epoch-checkpoint", {"append": errno.ENOSPC}
        waiting = appended(replicas, 1)
        assert not waiting.done()
        disk.errors = {}
        if is_flushed:
            replicas.drivers[AT].log.flush()
        replicas.drivers[AT].note_tick(0)
        assert waiting.result().error_code is ErrorCode.NONE


async def test_what_was_appended_before_a_move_that_failed_is_flushed(tmp_path: Path) -> None:
    """A flush ends while the log is exchanged: only the end of that can begin the next one."""
    queue = HeldQueue()
    async with one_broker(tmp_path, disk_queue=queue, settings=AFTER_FLUSH) as replicas:
        driver = replicas.drivers[AT]
        queue.holds_outcomes = True
        first, second = appended(replicas, 1), appended(replicas, 1)
        driver.begin_exchange()
        queue.release()
        driver.end_exchange(None)
        assert [first.result().base_offset, second.result().base_offset] == [0, 1]


async def test_a_leader_commits_what_is_on_its_own_disk(tmp_path: Path) -> None:
    """A follower that was faster holds the record: it is not committed yet all the same."""
    queue = HeldQueue()
    isr = (1, 2)
    async with one_broker(tmp_path, isr, disk_queue=queue, settings=AFTER_FLUSH) as replicas:
        queue.is_held = True
        appended(replicas, ACKS_ALL)
        replicas.drivers[AT].judge_follower_fetch(0, fetched_by(BrokerId(2), 1))
        assert high_watermark(replicas) == 0
        queue.release()
        assert high_watermark(replicas) == 1


async def test_a_follower_fetches_on_when_what_it_has_is_on_the_disk(tmp_path: Path) -> None:
    queue = HeldQueue()
    isr = (1, 2)
    async with one_broker(tmp_path, isr, disk_queue=queue, settings=AFTER_FLUSH) as replicas:
        take = follow(replicas)
        queue.is_held = True
        followed = take(from_leader(0))
        assert not followed.may_ask(0)
        queue.release()
        assert followed.may_ask(0)


@pytest.mark.parametrize("error", [{}, {"fsync": errno.EIO}])
async def test_the_fetcher_of_a_log_continues_after_a_flush_or_its_failure(
    tmp_path: Path, error: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, disk, isr = HeldQueue(), FaultyDisk(), (1, 2)
    async with one_broker(tmp_path, isr, disk, disk_queue=queue, settings=AFTER_FLUSH) as replicas:
        take, driver = follow(replicas), replicas.drivers[AT]
        queue.is_held = True
        take(from_leader(0))
        ended: list[PartitionDriver] = []
        monkeypatch.setattr(replicas._fetchers, "note_flush_ended", ended.append)
        disk.errors = error
        queue.release()
        disk.errors = {}
        assert ended == [driver]


def lose_first_record(driver: PartitionDriver) -> None:
    """Let the leader answer that the first record is not in its log."""
    driver.feed(0, diverged(1, 0, epoch=-1, last_fetched_epoch=1))


async def test_what_is_flushed_when_a_log_is_cut_does_not_count(tmp_path: Path) -> None:
    queue = HeldQueue()
    isr = (1, 2)
    async with one_broker(tmp_path, isr, disk_queue=queue, settings=AFTER_FLUSH) as replicas:
        take = follow(replicas, isr=(2,))
        queue.is_held = True
        take(from_leader(0))
        driver = replicas.drivers[AT]
        lose_first_record(driver)
        queue.release()
        state = driver.partition.state
        assert (state.log_end_offset, state.flushed_offset) == (0, 0)
        followed = take(from_leader(0))
        assert followed.may_ask(0)
        assert state.flushed_offset == 1


async def test_a_flush_before_a_cut_does_not_count_for_later_records(tmp_path: Path) -> None:
    """Its outcome may arrive when the cut is over and another record has the same offset."""
    queue = HeldQueue()
    async with one_broker(tmp_path, (1, 2), disk_queue=queue, settings=AFTER_FLUSH) as replicas:
        take, driver = follow(replicas, isr=(2,)), replicas.drivers[AT]
        queue.holds_outcomes = True
        take(from_leader(0))
        _, notify_flushed = queue.held.pop()
        queue.release()
        lose_first_record(driver)
        followed = take(from_leader(0))
        queue.is_held = True
        notify_flushed()
        assert driver.partition.state.flushed_offset == 0
        assert not followed.may_ask(0)
        queue.release()
        assert driver.partition.state.flushed_offset == 1


async def test_records_of_another_flush_count_with_the_outcome_of_ours(tmp_path: Path) -> None:
    """Nothing is left to flush then: no later outcome would say so."""
    queue = HeldQueue()
    async with one_broker(tmp_path, disk_queue=queue, settings=AFTER_FLUSH) as replicas:
        queue.holds_outcomes = True
        appended(replicas, ACKS_ALL)
        second = appended(replicas, ACKS_ALL)
        replicas.drivers[AT].log.flush()  # as the checkpoints do
        assert not second.done()
        assert queue.release() == [AT, AT]  # the producers, and one flush
        assert second.result().base_offset == 1


async def test_a_log_is_flushed_after_so_many_records(tmp_path: Path) -> None:
    settings = LogSettings(flush_messages=3)
    async with one_broker(tmp_path, log_settings=settings) as replicas:
        log = replicas.drivers[AT].log
        flushed = []
        for _ in range(7):
            assert appended(replicas, 1).done()
            flushed.append(int(log.flushed_offset))
        assert flushed == [0, 0, 3, 3, 3, 6, 6]


async def test_a_log_is_flushed_when_a_record_has_waited_so_long(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as replicas:
        driver = replicas.drivers[AT]
        driver.log.settings = replace(driver.log.settings, flush_ms=1000)
        appended(replicas, 1)
        for now_ms, flushed in ((0, 0), (999, 0), (1000, 1)):
            driver.note_tick(now_ms)
            assert driver.log.flushed_offset == flushed
        appended(replicas, 1)
        driver.note_tick(1500)
        assert driver.log.flushed_offset == 1


async def test_an_acknowledgement_does_not_wait_for_the_disk_threads(tmp_path: Path) -> None:
    """They may be opening logs for seconds."""
    replicas = await start(tmp_path, settings=AFTER_FLUSH)
    await until(lambda: AT in replicas.drivers)
    is_over = threading.Event()
    for number in range(THREADS):
        replicas.disk.submit(number, is_over.wait, lambda _: None)
    replicas.disk.submit(AT, is_over.wait, lambda _: None)
    try:
        outcome = await asyncio.wait_for(appended(replicas, ACKS_ALL), 30)
        assert outcome.error_code is ErrorCode.NONE
    finally:
        is_over.set()
        await replicas.stop()
