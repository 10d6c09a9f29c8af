"""What a check after a crash says of producers is what all batches of the log say."""

from random import Random

import pytest

from quorumlog.broker.partitions.core.producer_state import ProducerStates
from quorumlog.broker.partitions.log.producer_loading import load_producers
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.core import recent_batches
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.log import Log
from quorumlog.storage.io.producer_snapshots import ProducerSnapshot
from quorumlog.wire.codec.records import Record, encode_batch

SMALL = LogSettings(segment_bytes=400)  # some batches in a segment


def opened(disk: SimDisk, recovery_point: int = 0) -> Log:
    return Log.open(disk, "/log", SMALL, clean=False, recovery_point=recovery_point)


def fill(disk: SimDisk, rng: Random) -> ProducerStates:
    """Write batches of several producers, and keep snapshots now and then; return what is known."""
    log, producers = opened(disk), ProducerStates()
    for number in range(rng.randrange(1, 80)):
        producer = rng.randrange(-1, 4)
        batch = encode_batch(
            [Record(0, number, None, b"v")],
            producer_id=producer,
            producer_epoch=-1 if producer < 0 else number // 40,
            base_sequence=-1 if producer < 0 else number,
        )
        info = log.append_as_leader(batch, leader_epoch=0, wall_ms=number)
        for header in log.headers(info.first_offset):
            producers.record(header, header.base_offset, header.max_timestamp)
        if rng.random() < 0.05:
            log.producers.keep(ProducerSnapshot(log.log_end_offset, producers.snapshot()))
    log.flush()
    log.close(clean=False)
    return producers


def differing() -> list[int]:
    """Return the seeds of logs whose producers are not found as they were."""
    found = []
    for seed in range(15):
        rng = Random(seed)
        disk = SimDisk()
        known = fill(disk, rng)
        log = opened(disk, recovery_point=rng.choice([0, 0, 5, 30]))
        if load_producers(log).snapshot() != known.snapshot():
            found.append(seed)
        log.close(clean=False)
    return found


def test_the_producers_are_those_of_all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    assert differing() == []
    with monkeypatch.context() as planted:  # a batch that is not noted is missed
        planted.setattr(recent_batches, "BATCHES_MAX", 4)
        assert differing() != []
    monkeypatch.setattr(recent_batches, "PRODUCERS_MAX", 2)  # a log of more is read once more
    assert differing() == []


def test_what_was_noted_does_not_outlive_a_cut() -> None:
    disk = SimDisk()
    fill(disk, Random(1))
    log = opened(disk)
    log.truncate_to(3)
    known = ProducerStates()
    known.rebuild(log.headers(0))
    assert load_producers(log).snapshot() == known.snapshot()
    log.close(clean=False)


def test_the_log_is_not_read_a_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    fill(disk, Random(2))
    log = opened(disk)
    monkeypatch.setattr(Log, "headers", None)
    load_producers(log)
    log.close(clean=False)
