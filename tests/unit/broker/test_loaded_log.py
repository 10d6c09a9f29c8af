"""Logs are opened in turn, with progress that is shown; idle ones cost nothing."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from quorumlog.broker.partitions.core import events
from quorumlog.broker.partitions.core.partition import Partition
from quorumlog.broker.partitions.core.placement import Standing
from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.broker.partitions.log import loaded_log
from quorumlog.broker.partitions.log.loaded_log import LoadedLog, load_log
from quorumlog.broker.partitions.log.log_directory import LogDirectory
from quorumlog.broker.partitions.log.log_progress import LogProgress
from quorumlog.broker.partitions.log.offset_checkpoints import OffsetCheckpoints
from quorumlog.metadata_quorum.image import TopicImage
from quorumlog.storage.core import recovery
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.disk import RealDisk
from quorumlog.wire.codec.identifiers import BrokerId, Offset, TopicId, TopicPartition
from quorumlog.wire.codec.records import Record, encode_batch
from tests.support.broker.held_queue import HeldQueue
from tests.support.broker.log_directories import started
from tests.support.broker.one_broker import AT, append, one_broker, start
from tests.support.broker.replicas import ALL_ALIVE, BROKERS, Replica, fetched_by, image
from tests.support.storage.batches import VALUES, fill, log_of

ORDERS = TopicImage(name="orders", topic_id=TopicId(b"o" * 16), partitions=(), configs={})


@pytest.fixture
def home(tmp_path: Path) -> LogDirectory:
    return started(tmp_path)


def load(home: LogDirectory) -> LoadedLog:
    return load_log(home, AT, ORDERS, Standing.SPARE, ProducerStates, note_read=lambda _: None)


class Turn:
    """A lock that notes what is done with it."""

    def __init__(self, seen: list[str]) -> None:
        self._seen = seen

    def acquire(self, *, timeout: float) -> bool:
        self._seen.append(f"taken within {timeout} s")
        return True

    def release(self) -> None:
        self._seen.append("given back")


def test_logs_are_opened_in_turn(home: LogDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[str]()
    monkeypatch.setattr(home, "opening", Turn(seen))
    open_log = home.open

    def noted(*arguments: Any, **named: Any) -> Any:
        seen.append("opened")
        return open_log(*arguments, **named)

    monkeypatch.setattr(home, "open", noted)
    load(home).log.close(clean=False)
    assert seen == ["taken within 0.02 s", "opened", "given back"]


def test_a_log_does_not_wait_long_for_a_slow_disk(home: LogDirectory) -> None:
    with home.opening:  # of a thread whose disk is slow
        load(home).log.close(clean=False)
        assert home.opening.locked()  # still the other's
    assert not home.opening.locked()


def test_a_log_that_cannot_be_opened_ends_its_turn(home: LogDirectory, tmp_path: Path) -> None:
    (tmp_path / str(AT)).write_bytes(b"no directory")
    with pytest.raises(StorageError):
        load(home)
    assert not home.opening.locked()


def test_logs_that_must_last_are_opened_beside_each_other(
    home: LogDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their threads wait for fsyncs, which a file system makes durable together."""
    monkeypatch.setattr(loaded_log, "TURN_S", 60.0)
    home.options.must_last = True
    with home.opening:
        load(home).log.close(clean=False)


MIB = 1 << 20


async def test_logs_that_are_to_be_opened_are_told_until_all_are_open(tmp_path: Path) -> None:
    queue = HeldQueue()
    queue.is_held = True
    replicas = await start(tmp_path, disk_queue=queue)
    assert replicas.descriptions.progress() == "opening logs: 0 of 1, 0 MiB read"
    queue.release()
    assert replicas.drivers.get(AT) is not None
    assert replicas.descriptions.progress() == ""
    await replicas.stop()
    assert replicas.descriptions.progress() == "closing logs: 1 of 1"


@pytest.mark.parametrize(("batches", "producers_max"), [(2, 1), (1, 0)])
async def test_what_is_read_of_a_log_after_a_crash_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int, producers_max: int
) -> None:
    """Both the check of the records, and the reading of producers that it has not noted."""
    monkeypatch.setattr(recovery, "PRODUCERS_MAX", producers_max)
    record = Record(0, 1, None, bytes(600_000))
    async with one_broker(tmp_path / "runs") as replicas:
        for number in range(batches):
            named: dict[str, Any] = {"producer_id": 5, "producer_epoch": 0, "base_sequence": number}
            append(replicas, records=encode_batch([record], **named))
        shutil.copytree(tmp_path / "runs", tmp_path / "crashed")
    async with one_broker(tmp_path / "crashed") as again:
        described = again._logs.progress.describe(opened=0, left=1)
    assert described == "opening logs: 0 of 1, 1 MiB read"


def test_a_text_is_another_one_only_with_progress() -> None:
    progress = LogProgress()
    assert progress.describe(opened=0, left=2) == "opening logs: 0 of 2, 0 MiB read"
    progress.note_read(MIB - 1)
    progress.note_read(1)
    assert progress.describe(opened=0, left=2) == "opening logs: 0 of 2, 1 MiB read"
    assert progress.describe(opened=2, left=0) == ""
    progress.close(lambda: None)
    assert progress.describe(opened=2, left=0) == "closing logs: 1 of 2"
    progress = LogProgress()
    progress.note_postponed(0, "orders-0", "no room")
    assert progress.describe(opened=2, left=1) == "opening logs: 2 of 3"
    progress.close(lambda: None)
    assert progress.describe(opened=2, left=1) == "closing logs: 1 of 2"


def test_a_log_without_room_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    progress = LogProgress()
    for now_ms in range(0, 61_000, 500):
        progress.note_postponed(now_ms, "orders-0", "no room")
    assert [record.getMessage() for record in caplog.records] == [
        "orders-0: no room",
        "orders-0: no room (121 times in 60 s)",
    ]
    caplog.set_level("INFO")
    progress.note_opened(61_000, "orders-0")
    assert "all logs that lacked room are open" in caplog.records[-1].getMessage()


FILE = "replication-offset-checkpoint"


class CountingDisk(RealDisk):
    """Counts the files that take the place of others, and refuses them if it is to."""

    def __init__(self) -> None:
        self.replaced, self.refuses = 0, False

    def rename(self, source: str, target: str) -> None:
        if self.refuses:
            raise OSError(5, "Input/output error")
        self.replaced += 1
        super().rename(source, target)


@pytest.fixture
def disk() -> CountingDisk:
    return CountingDisk()


@pytest.mark.parametrize("count", [1_000, 10_000])
def test_high_watermarks_are_written_when_one_has_changed(
    tmp_path: Path, disk: CountingDisk, count: int
) -> None:
    files = OffsetCheckpoints(disk, str(tmp_path))
    known = {TopicPartition("t", index): Offset(0) for index in range(count)}
    for _ in range(5):
        files.note_high_watermarks(known)
        files.write_high_watermarks()
    assert disk.replaced == 1
    files.note_high_watermarks({TopicPartition("t", 3): Offset(7)})
    files.write_high_watermarks()
    assert disk.replaced == 2
    assert "t 3 7\n" in (tmp_path / FILE).read_text()


def test_the_recovery_point_of_a_log_is_its_flushed_end(tmp_path: Path) -> None:
    log = log_of(VALUES[:5])
    log.flush()
    fill(log, ["not flushed"])
    files = OffsetCheckpoints(RealDisk(), str(tmp_path))
    files.note_recovery_points({AT: log})
    assert files.recovery_point(AT) == log.flushed_offset == 5


def test_what_the_disk_has_refused_is_written_again(tmp_path: Path, disk: CountingDisk) -> None:
    files = OffsetCheckpoints(disk, str(tmp_path))
    files.note_high_watermarks({AT: Offset(1)})
    files.write_high_watermarks()
    files.note_high_watermarks({AT: Offset(2)})
    disk.refuses = True
    with pytest.raises(StorageError):
        files.write_high_watermarks()
    files.note_high_watermarks({AT: Offset(1)})  # as it was before: but who knows what is there
    disk.refuses = False
    files.write_high_watermarks()
    assert disk.replaced == 2


async def test_only_a_leader_that_waits_for_something_looks_at_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticked: list[events.Ticked] = []
    step = Partition.step

    def noted(self: Partition, now_ms: int, event: Any) -> Any:
        if isinstance(event, events.Ticked):
            ticked.append(event)
        return step(self, now_ms, event)

    monkeypatch.setattr(Partition, "step", noted)
    for name, isr, ticks in (("alone", (1,), 0), ("followed", (1, 2), 1)):
        (tmp_path / name).mkdir()
        replicas = await start(tmp_path / name, isr, disk_queue=HeldQueue())
        append(replicas)
        ticked.clear()
        for now_ms in (1_000, 2_000, 3_000):
            replicas.drivers[AT].note_tick(now_ms)
        assert len(ticked) == 3 * ticks
        await replicas.stop()


def test_a_follower_that_falls_silent_ends_the_rest_of_its_leader() -> None:
    replica = Replica(BROKERS[0])
    replica.step(0, events.PartitionPublished(image=image(1, 0, 0, (1, 2)), brokers=ALL_ALIVE))
    assert replica.partition.needs_ticks()  # it has yet to hear of the follower
    epoch = replica.partition.state.leader_epoch
    for _ in range(2):
        fetch = fetched_by(
            BrokerId(2), 0, leader_epoch=epoch, last_fetched_epoch=epoch, log_start_offset=0
        )
        replica.step(1, fetch)
    assert not replica.partition.needs_ticks()
    replica.step(2, events.RecordsAppended(log_end_offset=Offset(1)))
    assert replica.partition.needs_ticks()
    replica.step(2**40, events.Ticked())
    assert [proposal.new_isr for proposal in replica.proposals] == [((1, -1),)]
