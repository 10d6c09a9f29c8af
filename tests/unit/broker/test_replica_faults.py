"""A disk that is full, or broken: no acknowledged record is lost, and the node stays up."""

from errno import EIO, EMFILE, ENOSPC
from pathlib import Path

import pytest

from quorumlog.broker.partitions.io import ticks
from quorumlog.broker.replicas import Replicas
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage, TopicImage
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.disk import RealFile
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from tests.support.broker.faulty_disk import FaultyDisk
from tests.support.broker.log_directories import started, write
from tests.support.broker.one_broker import (
    AT,
    BATCH,
    TOPIC_ID,
    append,
    fetch_of,
    follow,
    from_leader,
    one_broker,
    publish,
    sequenced,
    size,
)
from tests.support.broker.replica_calls import fetch_from
from tests.support.broker.replicas import ALL_ALIVE, image
from tests.support.waiting import until

OTHER = TopicPartition("orders", 1)


def assert_offline(replicas: Replicas) -> None:
    """The partition answers KAFKA_STORAGE_ERROR, and the broker asks to be fenced."""
    assert replicas.drivers.get(AT) is None
    assert append(replicas).error_code is ErrorCode.KAFKA_STORAGE_ERROR
    answers = fetch_from(replicas, fetch_of(0))
    assert isinstance(answers, list)
    assert answers[0].error_code is ErrorCode.KAFKA_STORAGE_ERROR
    assert not replicas.may_lead.is_set()
    assert not replicas.failure.done()
    assert not replicas.is_to_lead(AT)  # so no answer waits for it


def admit(replicas: Replicas) -> None:
    """Let the broker lead, as its registration and its open logs do."""
    replicas.registered(ALL_ALIVE[replicas.broker_id].broker_epoch)
    publish(replicas, image(1, 0, 0, (1,), replicas=(1,)))
    assert replicas.may_lead.is_set()


async def test_a_leader_on_a_full_or_unreadable_disk_goes_on_afterwards(tmp_path: Path) -> None:
    disk = FaultyDisk()

    async with one_broker(tmp_path, disk=disk) as replicas:
        append(replicas, acks=-1, records=sequenced(0))
        disk.errors = {"append": ENOSPC}
        refused = append(replicas, acks=-1, records=sequenced(1))
        assert refused.error_code is ErrorCode.KAFKA_STORAGE_ERROR
        assert not replicas.failure.done()
        assert size(fetch_from(replicas, fetch_of(0))) == len(sequenced(0))
        disk.errors = {}
        assert append(replicas, acks=-1, records=sequenced(1)).base_offset == 1
        disk.errors = {"pread": EIO}  # a read that fails is the error of one request
        answers = fetch_from(replicas, fetch_of(0))
        assert isinstance(answers, list)
        assert answers[0].error_code is ErrorCode.KAFKA_STORAGE_ERROR
        disk.errors = {}
        assert size(fetch_from(replicas, fetch_of(0))) == 2 * len(sequenced(0))
        assert append(replicas).base_offset == 2


async def test_a_leader_whose_disk_breaks_in_an_append_goes_offline(tmp_path: Path) -> None:
    disk = FaultyDisk()

    async with one_broker(tmp_path, disk=disk) as replicas:
        admit(replicas)
        append(replicas, acks=-1, records=sequenced(0))
        disk.errors = {"append": EIO}
        refused = append(replicas, acks=-1, records=sequenced(1))
        assert refused.error_code is ErrorCode.KAFKA_STORAGE_ERROR
        disk.errors = {}
        assert_offline(replicas)  # what is in the file is unknown now
        publish(replicas, image(1, 1, 1, (1,), replicas=(1,)))
        assert_offline(replicas)

    async with one_broker(tmp_path) as replicas:
        publish(replicas, image(1, 1, 1, (1,), replicas=(1,)))
        assert append(replicas, acks=-1, records=sequenced(0)).base_offset == 0  # a duplicate
        assert append(replicas, acks=-1, records=sequenced(1)).base_offset == 1


async def test_a_flush_that_fails_takes_the_replica_offline_at_the_next_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticks, "TICK_MS_MAX", 1)
    disk = FaultyDisk()

    settings = LogSettings(segment_bytes=100)
    async with one_broker(tmp_path, disk=disk, log_settings=settings) as replicas:
        admit(replicas)
        for sequence in range(3):
            append(replicas, records=sequenced(sequence))
        disk.errors = {"fsync": EIO}
        await replicas._checkpoints.flush_full_segments()
        answer = append(replicas, records=sequenced(3))
        assert answer.error_code is ErrorCode.KAFKA_STORAGE_ERROR
        await until(lambda: AT not in replicas.drivers)
        disk.errors = {}
        assert_offline(replicas)


@pytest.mark.parametrize("number", [EMFILE, ENOSPC])
async def test_a_log_for_which_there_is_no_handle_or_no_room_is_opened_later(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticks, "TICK_MS_MAX", 1)

    class Exhausted(FaultyDisk):
        def open(self, path: str, *, create: bool = False) -> RealFile:
            self.fail("open", path)
            return super().open(path, create=create)

    log, _ = started(tmp_path).open(OTHER, TOPIC_ID, {})
    write(log, BATCH)
    disk = Exhausted()
    disk.on = "orders-1"

    async with one_broker(tmp_path, disk=disk) as replicas:
        disk.errors = {"open": number}
        now = image(1, 0, 1, (1,), replicas=(1,))
        topic = TopicImage(name=AT.topic, topic_id=TOPIC_ID, partitions=(now, now))
        cluster = ClusterImage(brokers=ALL_ALIVE, topics={AT.topic: topic})
        replicas.publish(ClusterDelta(partitions=frozenset({AT, OTHER})), cluster)
        assert replicas.drivers.get(OTHER) is None
        assert not replicas.is_to_lead(OTHER)
        assert replicas.drivers.get(AT) is not None
        # What is tried again and again reads bytes, but makes no progress.
        assert replicas.descriptions.progress() == "opening logs: 1 of 2"
        disk.errors = {}
        await until(lambda: OTHER in replicas.drivers)
        assert not replicas.failure.done()


async def test_a_follower_without_room_or_with_a_bad_answer_asks_later(tmp_path: Path) -> None:
    disk = FaultyDisk()

    async with one_broker(tmp_path, isr=(1, 2), disk=disk) as replicas:
        take, torn = follow(replicas), from_leader(1)
        torn[-1] ^= 1
        assert take(from_leader(0)).failures == 0
        disk.errors = {"append": ENOSPC}
        assert take(from_leader(1)).failures > 0
        disk.errors = {}
        assert take(torn).failures > 0
        assert take(from_leader(7)).failures > 0  # does not continue the log
        partition = replicas.drivers[AT].partition
        assert (partition.state.high_watermark, partition.state.log_end_offset) == (1, 1)
        assert take(from_leader(1)).failures == 0
        assert (partition.state.high_watermark, partition.state.log_end_offset) == (2, 2)


async def test_a_follower_whose_disk_breaks_goes_offline(tmp_path: Path) -> None:
    disk = FaultyDisk()

    async with one_broker(tmp_path, isr=(1, 2), disk=disk) as replicas:
        admit(replicas)
        take = follow(replicas)
        disk.errors = {"append": EIO}
        take(from_leader(0))
        disk.errors = {}
        assert_offline(replicas)
