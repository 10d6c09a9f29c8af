"""Records whose topic id a power loss has destroyed, and their manual repair."""

from collections.abc import Mapping
from functools import partial

import pytest

from quorumlog.broker.partitions.core.placement import Standing
from quorumlog.broker.partitions.log.log_directory import LogDirectory, OrphanedRecords
from quorumlog.chaos.mutants.controller import CONTROLLERS
from quorumlog.chaos.mutants.mutant import Mutants
from quorumlog.chaos.simulation import simulate
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.chaos.simulation.worlds.brokers.disk_queue import maybe_repair
from quorumlog.chaos.simulation.worlds.brokers.oracle import ReplicationOracle
from quorumlog.chaos.simulation.worlds.entries import entries_of
from quorumlog.storage.core.recovery import MAX_EPOCH
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.checkpoints import write_partition_metadata
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import Offset, TopicId, TopicPartition
from quorumlog.wire.codec.records import Record, encode_batch

AT = TopicPartition("records", 0)
OLD, NEW = TopicId(b"o" * 16), TopicId(b"n" * 16)
BATCH = encode_batch([Record(offset, 1, None, b"x") for offset in range(4)], leader_epoch=0)


class Guesses(LogDirectory):
    """Takes records without a topic id as records of the current topic of that name."""

    def open(
        self,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        configs: Mapping[str, str],
        *,
        standing: Standing = Standing.SPARE,
        newest_epoch: int = MAX_EPOCH,
    ) -> tuple[Log, Offset]:
        name = str(topic_partition)
        is_there = self.holds(topic_partition)
        if is_there and self._found(name) is None and self._names.hold_records(name):
            write_partition_metadata(self._disk, f"{self.path}/{name}", topic_id)
        known = topic_partition, topic_id, configs
        return super().open(*known, standing=standing, newest_epoch=newest_epoch)


@pytest.mark.planted
def test_a_broker_that_guesses_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this seed it finds records of a deleted topic in place of its re-created one.

    The product reports such a log, or sets it aside where others are members.
    """
    guessing = Mutants("storage")
    guessing.breaks("records of a deleted topic are read as records of its successor")(Guesses)
    monkeypatch.setitem(CONTROLLERS, "guesses", guessing["guesses"])
    result = simulate(794, world="composed", mutant="guesses", duration_ms=20_000)
    assert str(result.violation).startswith("recovery: ")


def opened(disk: SimDisk, topic_id: TopicId) -> Log:
    logs = LogDirectory(disk, "/logs", LogSettings())
    logs.start()
    return logs.open(AT, topic_id, {}, standing=Standing.UNDECIDED)[0]


def orphan_and_repair(disk: SimDisk, topic_id: TopicId) -> Log:
    """Leave records of the old topic, but not its id, and let a person help the next start."""
    written = opened(disk, OLD)
    written.append_as_leader(BATCH, leader_epoch=0, wall_ms=0)
    written.close(clean=False)
    disk.open("/logs/records-0/partition.metadata").truncate(0)
    with pytest.raises(OrphanedRecords) as refused:
        opened(disk, topic_id)

    oracle = ReplicationOracle()
    oracle.topics.create(AT.topic, OLD)
    oracle.appended(1, oracle.topics.place_of(AT, OLD), entries_of(BATCH))
    oracle.topics.create(AT.topic, NEW)
    maybe_repair(disk, refused.value, partial(oracle.are_of, 1))
    return opened(disk, topic_id)


def test_a_person_says_of_which_topic_the_records_are() -> None:
    log = orphan_and_repair(SimDisk(), OLD)
    assert log.log_end_offset == 4
    log.close(clean=False)


def test_a_person_moves_the_records_of_a_deleted_topic_away() -> None:
    disk = SimDisk()
    for times in (1, 2):  # a directory moved away before is not in the way
        log = orphan_and_repair(disk, NEW)
        assert log.log_end_offset == 0
        log.close(clean=False)
        moved = [path for path, _ in disk.files() if "away" in path and path.endswith(".log")]
        assert len(moved) == times
