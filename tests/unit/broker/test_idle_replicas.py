"""What replicas cost that nobody uses: no tick, no write of a checkpoint that says the same."""

from pathlib import Path
from typing import Any

import pytest

from quorumlog.broker.partitions.core import events
from quorumlog.broker.partitions.core.partition import Partition
from quorumlog.broker.partitions.log.offset_checkpoints import OffsetCheckpoints
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.disk import RealDisk
from quorumlog.wire.codec.identifiers import BrokerId, Offset, TopicPartition
from tests.support.broker.held_queue import HeldQueue
from tests.support.broker.one_broker import AT, append, start
from tests.support.broker.replicas import ALL_ALIVE, BROKERS, Replica, fetched_by, image

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
