"""Brokers that commit only flushed records: the rule of their oracle, and their disk queues."""

from contextlib import nullcontext
from functools import partial

import pytest

from quorumlog.chaos.simulation.kernel.randomness import seeded
from quorumlog.chaos.simulation.kernel.rules import Violation
from quorumlog.chaos.simulation.kernel.run import Environment
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.chaos.simulation.worlds.brokers.disk_queue import (
    LOG_DIR,
    SimulatedDiskQueue,
    late_outcomes,
)
from quorumlog.chaos.simulation.worlds.brokers.durable_records import durable_entries
from quorumlog.chaos.simulation.worlds.brokers.oracle import Members, ReplicationOracle
from quorumlog.chaos.simulation.worlds.entries import Entry
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.identifiers import Epoch, TopicPartition
from quorumlog.wire.codec.records import Record, encode_batch, read_header
from tests.support.storage.batches import open_log

AT = TopicPartition("t", 0)
RECORDS = [Entry(1, b"%d" % number, 0) for number in range(6)]
TWO_BATCHES = 150  # bytes of a segment


def opened(disk: SimDisk) -> Log:
    settings = LogSettings(segment_bytes=TWO_BATCHES)
    return open_log(disk, settings, directory=f"{LOG_DIR}/{AT}")


def append(log: Log, entries: list[Entry]) -> None:
    for entry in entries:
        batch = encode_batch([Record(0, 1, None, entry.content)])
        log.append_as_leader(batch, read_header(batch), leader_epoch=Epoch(entry.epoch), wall_ms=1)


@pytest.mark.parametrize("start", range(5))
def test_durable_are_the_records_that_were_flushed(start: int) -> None:
    disk = SimDisk()
    log = opened(disk)
    append(log, RECORDS[:5])
    assert durable_entries(disk, AT, start) == []
    log.flush()
    append(log, RECORDS[5:])
    assert len(log.segment_base_offsets) > 1
    assert durable_entries(disk, AT, start) == RECORDS[start:5]


def test_a_log_that_is_not_there_has_no_durable_records() -> None:
    assert durable_entries(SimDisk(), AT, 0) == []


@pytest.mark.parametrize("flushed", [1, 2])
def test_nothing_is_committed_that_the_disk_of_a_member_lacks(flushed: int) -> None:
    """Also when the members hold it in memory."""
    disks = {1: SimDisk(), 2: SimDisk()}
    oracle = ReplicationOracle(disks=disks)
    oracle.elected(AT, Members((1, 2), 1))
    for broker_id, disk in disks.items():
        log = opened(disk)
        append(log, RECORDS)
        if broker_id <= flushed:
            log.flush()
        oracle.recovered(broker_id, AT, [])
        oracle.appended(broker_id, AT, RECORDS)
    is_broken = pytest.raises(Violation, match=r"^commit-durable: the disk of 2 ")
    with nullcontext() if flushed == 2 else is_broken:
        oracle.showed(1, AT, len(RECORDS), leads=True, leader_epoch=1)


def test_a_member_that_loses_its_power_keeps_what_is_committed() -> None:
    disk = SimDisk()
    oracle = ReplicationOracle(disks={1: disk})
    oracle.elected(AT, Members((1,), 1))
    log = opened(disk)
    append(log, RECORDS)
    log.flush()
    oracle.recovered(1, AT, [])
    oracle.appended(1, AT, RECORDS)
    oracle.showed(1, AT, len(RECORDS), leads=True, leader_epoch=1)
    disk.crash(seeded("power", 0))
    oracle.stopped(1, loses_power=True)
    disk.lose(f"{LOG_DIR}/{AT}/{0:020d}.log")
    with pytest.raises(Violation, match=r"^commit-durable: the disk of 1 "):
        oracle.stopped(1, loses_power=True)


def test_work_of_one_key_begins_when_the_outcome_of_the_work_before_has_come() -> None:
    environment = Environment(3, (1,))
    machine = environment.machines[1]
    machine.is_up = True
    happened: list[str] = []
    queue = SimulatedDiskQueue(
        machine, environment, lambda action, *given: action(*given), late_outcomes(environment, 1)
    )
    times: dict[str, int] = {}

    def note(text: str) -> None:
        happened.append(text)
        times[text] = environment.timeline.now_us

    for number in range(20):
        work, done = partial(note, f"{number}"), lambda _, n=number: note(f"{n} ended")
        queue.submit("key", work, done)
    environment.timeline.run()
    assert happened == [f"{number}{text}" for number in range(20) for text in ("", " ended")]
    are_late = [times[f"{number} ended"] > times[f"{number}"] for number in range(20)]
    assert {*are_late} == {True, False}
