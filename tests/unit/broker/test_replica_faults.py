"""A disk that is full, or broken: no acknowledged record is lost, and the node does not go on."""

import asyncio
from errno import EIO, ENOSPC
from pathlib import Path

import pytest

from quorumlog.broker import replicas as replica_manager
from quorumlog.broker.replicas import Replicas
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage, TopicImage
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import StorageError
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from tests.support.broker.faulty_disk import FaultyDisk
from tests.support.broker.one_broker import (
    AT,
    TOPIC_ID,
    append,
    fetch_of,
    follow,
    from_leader,
    publish,
    run,
    sequenced,
    size,
)
from tests.support.broker.replicas import ALL_ALIVE, image

OTHER = TopicPartition("orders", 1)


async def failure_of(replicas: Replicas) -> BaseException | None:
    async with asyncio.timeout(10):
        await asyncio.wait([replicas.failure])
    return replicas.failure.exception()


def test_a_leader_on_a_full_disk_refuses_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    disk = FaultyDisk()

    async def story(replicas: Replicas) -> None:
        append(replicas, acks=-1, records=sequenced(0))
        disk.errors = {"append": ENOSPC}
        refused = append(replicas, acks=-1, records=sequenced(1))
        assert refused.error_code is ErrorCode.KAFKA_STORAGE_ERROR
        assert not replicas.failure.done()
        assert size(replicas.fetch(fetch_of(0))) == len(sequenced(0))
        disk.errors = {}
        assert append(replicas, acks=-1, records=sequenced(1)).base_offset == 1

    run(tmp_path, story, disk=disk)


def test_a_leader_whose_disk_breaks_in_an_append_ends(tmp_path: Path) -> None:
    disk = FaultyDisk()

    async def story(replicas: Replicas) -> None:
        append(replicas, acks=-1, records=sequenced(0))
        disk.errors = {"append": EIO}
        refused = append(replicas, acks=-1, records=sequenced(1))
        assert refused.error_code is ErrorCode.KAFKA_STORAGE_ERROR
        assert isinstance(replicas.failure.exception(), StorageError)
        disk.errors = {}
        again = append(replicas, records=sequenced(1))  # nobody knows what is in the file now
        assert again.error_code is ErrorCode.KAFKA_STORAGE_ERROR

    run(tmp_path, story, disk=disk)

    async def next_life(replicas: Replicas) -> None:
        publish(replicas, image(1, 1, 1, (1,), replicas=(1,)))
        assert append(replicas, acks=-1, records=sequenced(0)).base_offset == 0  # a duplicate
        assert append(replicas, acks=-1, records=sequenced(1)).base_offset == 1

    run(tmp_path, next_life)


def test_a_disk_that_cannot_be_read_ends_the_broker_though_nobody_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would stay the leader, and answer every consumer with an error."""
    monkeypatch.setattr(replica_manager, "TICK_MS_MAX", 1)
    disk = FaultyDisk()

    async def story(replicas: Replicas) -> None:
        append(replicas)
        disk.errors = {"pread": EIO}
        answers = replicas.fetch(fetch_of(0))
        assert isinstance(answers, list)
        assert answers[0].error_code is ErrorCode.KAFKA_STORAGE_ERROR
        assert "orders-0: cannot read" in str(await failure_of(replicas))

    run(tmp_path, story, disk=disk)


def test_a_flush_that_fails_ends_the_broker(tmp_path: Path) -> None:
    disk = FaultyDisk()

    async def story(replicas: Replicas) -> None:
        for sequence in range(3):
            append(replicas, records=sequenced(sequence))
        disk.errors = {"fsync": EIO}
        with pytest.raises(StorageError, match="cannot flush"):
            await replicas._checkpoints._flush_full_segments()
        answer = append(replicas, records=sequenced(3))
        assert answer.error_code is ErrorCode.KAFKA_STORAGE_ERROR

    run(tmp_path, story, disk=disk, log_settings=LogSettings(segment_bytes=100))


def test_a_leader_epoch_that_cannot_be_written_ends_the_broker_and_others_are_told(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk()

    async def story(replicas: Replicas) -> None:
        def publish_both(leader_epoch: int) -> None:
            now = image(1, leader_epoch, leader_epoch, (1,), replicas=(1,))
            topic = TopicImage(name=AT.topic, topic_id=TOPIC_ID, partitions=(now, now))
            cluster = ClusterImage(brokers=ALL_ALIVE, topics={AT.topic: topic})
            replicas.publish(ClusterDelta(partitions=frozenset({AT, OTHER})), cluster)

        publish_both(1)
        disk.on, disk.errors = "orders-0/leader-epoch-checkpoint", {"append": ENOSPC}
        publish_both(2)
        assert "leader-epoch-checkpoint" in str(replicas.failure.exception())
        other = replicas.driver(OTHER)
        assert other is not None
        assert other.log.epochs.latest_epoch == 2

    run(tmp_path, story, disk=disk)


def test_a_follower_on_a_full_disk_or_with_a_bad_answer_asks_again_later(tmp_path: Path) -> None:
    disk = FaultyDisk()

    async def story(replicas: Replicas) -> None:
        take, torn = follow(replicas), from_leader(1)
        torn[-1] ^= 1
        assert take(from_leader(0)).backoff_ms == 0
        disk.errors = {"append": ENOSPC}
        assert take(from_leader(1)).backoff_ms > 0
        disk.errors = {}
        assert take(torn).backoff_ms > 0
        assert take(from_leader(7)).backoff_ms > 0  # does not continue the log
        partition = replicas.partition(AT)
        assert partition is not None
        assert (partition.state.high_watermark, partition.state.log_end_offset) == (1, 1)
        assert take(from_leader(1)).backoff_ms == 0
        assert (partition.state.high_watermark, partition.state.log_end_offset) == (2, 2)

    run(tmp_path, story, isr=(1, 2), disk=disk)


def test_a_follower_whose_disk_breaks_ends(tmp_path: Path) -> None:
    disk = FaultyDisk()

    async def story(replicas: Replicas) -> None:
        take = follow(replicas)
        disk.errors = {"append": EIO}
        with pytest.raises(StorageError):
            take(from_leader(0))  # ends the fetcher's task, and with it the node

    run(tmp_path, story, isr=(1, 2), disk=disk)
