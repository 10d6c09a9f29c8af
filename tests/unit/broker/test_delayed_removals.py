"""Removed files stay for `file.delete.delay.ms`, under names that a start removes."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from quorumlog.broker.partitions.core.deletions import DeletionResult
from quorumlog.broker.partitions.io import delayed_removals
from quorumlog.broker.partitions.io.delayed_removals import DelayedRemovals
from quorumlog.broker.replicas import Replicas
from quorumlog.broker.settings import BrokerSettings
from quorumlog.metadata_quorum.image import ClusterDelta, ClusterImage
from quorumlog.settings.kinds import LONG_MAX
from quorumlog.settings.topics import TopicConfig
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io import log_loader
from quorumlog.storage.io.disk import Disk
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.records import Record, encode_batch
from tests.support.broker.held_queue import HeldQueue
from tests.support.broker.one_broker import AT, TOPIC_ID, append, one_broker, publish
from tests.support.broker.replicas import ALL_ALIVE, image
from tests.support.waiting import loop_turns, until

pytestmark = pytest.mark.jumping_time

SMALL = LogSettings(segment_bytes=200)  # two batches in each segment
DELAYED = BrokerSettings(log_segment_delete_delay_ms=60_000)
KEYED = encode_batch([Record(0, 1, b"k", b"value")])
LEFT = ["00000000000000000004.log", "00000000000000000006.log"]


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "orders-0").glob("*.log*"))


def doomed(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*-delete"))


async def delete_records(replicas: Replicas, offset: int) -> None:
    done: asyncio.Future[DeletionResult] = asyncio.get_running_loop().create_future()
    replicas.deletions.delete(AT, offset, timeout_ms=10_000, done=done.set_result)
    assert await done == (ErrorCode.NONE, offset)


def delete_topic(replicas: Replicas) -> None:
    delta = ClusterDelta(partitions=frozenset({AT}), deleted_topics={AT.topic: TOPIC_ID})
    replicas.publish(delta, ClusterImage(brokers=ALL_ALIVE))


async def renamed(replicas: Replicas, directory: Path) -> None:
    """Delete the records of two of four segments; return when their files are renamed."""
    for _ in range(7):
        append(replicas)
    await delete_records(replicas, 5)
    await until(lambda: len([name for name in files(directory) if name.endswith(".log")]) == 2)
    assert len([name for name in files(directory) if name.endswith(".deleted")]) == 2


async def test_segments_go_after_the_delay_of_their_topic(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=SMALL, settings=DELAYED) as replicas:
        publish(replicas, image(1, 0, 1, (1,), replicas=(1,)), file_delete_delay_ms="5000")
        await renamed(replicas, tmp_path)
        await asyncio.sleep(4)
        assert len(files(tmp_path)) == 4
        await asyncio.sleep(2)
        assert files(tmp_path) == LEFT


async def test_a_start_removes_the_files_that_wait(tmp_path: Path) -> None:
    """Whatever their delay, and however the process has ended."""
    async with one_broker(tmp_path, log_settings=SMALL, settings=DELAYED) as replicas:
        await renamed(replicas, tmp_path)
    assert len(files(tmp_path)) == 4
    async with one_broker(tmp_path, log_settings=SMALL, settings=DELAYED) as replicas:
        assert files(tmp_path) == LEFT
        assert replicas.drivers[AT].partition.state.log_start_offset == 5


async def test_a_start_that_loads_removed_segments_again_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = log_loader._sweep

    def loads_again(disk: Disk, directory: str, names: Sequence[str]) -> Any:
        for name in names:
            disk.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix('.deleted')}")
        return sweep(disk, directory, disk.listdir(directory))

    monkeypatch.setattr(log_loader, "_sweep", loads_again)
    with pytest.raises(AssertionError):
        await test_a_start_removes_the_files_that_wait(tmp_path)


async def test_a_deleted_topic_goes_after_the_delay_of_the_node(tmp_path: Path) -> None:
    async with one_broker(tmp_path, settings=DELAYED) as replicas:
        publish(replicas, image(1, 0, 1, (1,), replicas=(1,)), file_delete_delay_ms="1")
        append(replicas)
        delete_topic(replicas)
        await loop_turns()
        assert not (tmp_path / "orders-0").exists()
        [name] = doomed(tmp_path)
        replicas._replicas.remove_files()  # for another log: this directory is not due
        await asyncio.sleep(59)
        assert doomed(tmp_path) == [name]
        await asyncio.sleep(2)
        assert doomed(tmp_path) == []


async def test_a_topic_may_come_back_before_its_files_go(tmp_path: Path) -> None:
    async with one_broker(tmp_path, log_settings=SMALL, settings=DELAYED) as replicas:
        await renamed(replicas, tmp_path)
        delete_topic(replicas)
        await loop_turns()
        publish(replicas, image(1, 0, 0, (1,), replicas=(1,)))
        assert append(replicas).base_offset == 0
        await asyncio.sleep(61)
        assert (doomed(tmp_path), files(tmp_path)) == ([], ["00000000000000000000.log"])
        assert append(replicas).base_offset == 1


async def test_directories_that_wait_go_at_the_next_start(tmp_path: Path) -> None:
    async with one_broker(tmp_path, settings=DELAYED) as replicas:
        append(replicas)
        delete_topic(replicas)
        await loop_turns()
    assert len(doomed(tmp_path)) == 1
    async with one_broker(tmp_path, settings=DELAYED):
        assert doomed(tmp_path) == []


async def test_the_removals_that_wait_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed_removals, "WAITING_MAX", 2)
    done: list[int] = []
    removals = DelayedRemovals(HeldQueue(), lambda _: TopicConfig({}, {}))
    for number, delay_ms in enumerate((LONG_MAX, 1000, 1000)):
        removals.add(delay_ms, lambda number=number: done.append(number))  # type: ignore[misc]
    assert done == [0]  # the oldest makes room
    removals.add(0, lambda: done.append(9))
    assert done == [0, 9]
    removals.stop()
    await asyncio.sleep(2)
    assert done == [0, 9]


async def test_index_files_do_not_wait_under_names_that_a_later_segment_may_have(
    tmp_path: Path,
) -> None:
    """Compaction merges segments; after a truncation a new segment could have such a name."""
    merging = LogSettings(segment_bytes=400, cleanup_policy="compact")
    async with one_broker(tmp_path, log_settings=merging, settings=DELAYED) as replicas:
        publish(replicas, image(1, 0, 1, (1,), replicas=(1,)), cleanup_policy="compact")
        for _ in range(2):  # the second pass merges the small segments that the first one leaves
            for _ in range(30):
                append(replicas, records=KEYED)
            assert await replicas.ticks.cleaner.clean_dirtiest()
        living = {name.removesuffix(".log") for name in files(tmp_path) if name.endswith(".log")}
        assert len(files(tmp_path)) > len(living) > 1  # replaced segments wait
        indexes = {path.stem for path in (tmp_path / "orders-0").glob("*.index")}
        assert indexes <= living
        await asyncio.sleep(61)
        assert files(tmp_path) == sorted(f"{stem}.log" for stem in living)
