"""A full segment whose file was damaged: reads are right or fail, and never skip records."""

from collections.abc import Callable

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.batch_scan import BrokenSegment
from quorumlog.storage.io.disk import read_file
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.records import read_header
from tests.support.storage.batches import DIRECTORY, fill, open_log, read_all, stamped

VALUES = [f"value-{index}" for index in range(20)]

Damage = Callable[[bytes], bytes]
DAMAGES: dict[str, Damage] = {
    "empty": lambda _: b"",
    "zeros": lambda content: bytes(len(content)),
    "half": lambda content: content[: len(content) // 2],
    "one batch less": lambda content: content[: len(content) // 4],
    "foreign": lambda content: b"\x7fELF" + content[::-1],
    "a length is wrong": lambda content: content[:8] + b"\xff\xff" + content[10:],
}


def rewrite(disk: SimDisk, name: str, damage: Damage) -> None:
    path = f"{DIRECTORY}/{name}"
    content = damage(read_file(disk, path))
    file = disk.open(path)
    file.truncate(0)
    file.append([content])
    file.fsync()
    file.close()


def closed_log(disk: SimDisk) -> tuple[int, ...]:
    """Return where the segments start."""
    log = open_log(disk)
    fill(log, VALUES)
    bases = log.segment_base_offsets
    log.close()
    assert len(bases) > 3
    return bases


def read_on(log: Log, offset: int) -> int:
    """Read once; return the offset of the first record."""
    records = log.read(offset, max_bytes=1, end_offset=log.log_end_offset).records
    return read_header(records).base_offset


@pytest.mark.parametrize("name", DAMAGES)
def test_a_read_is_right_or_it_fails(name: str) -> None:
    disk = SimDisk()
    first, second, *_ = closed_log(disk)
    rewrite(disk, f"{first:020d}.log", DAMAGES[name])
    log = open_log(disk, clean=True)
    failed = set[int]()
    for offset in range(len(VALUES)):
        try:
            found = read_on(log, offset)
        except StorageError:
            failed.add(offset)
        else:
            assert found == offset
    assert failed
    assert failed <= {*range(second)}
    log.close()


def test_a_damaged_segment_is_searched_once(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk()
    first, *_ = closed_log(disk)
    rewrite(disk, f"{first:020d}.log", DAMAGES["zeros"])
    log = open_log(disk, clean=True)
    for _ in range(5):
        with pytest.raises(BrokenSegment):
            log.read(0, max_bytes=1, end_offset=log.log_end_offset)
    assert ["is damaged" in record.message for record in caplog.records] == [False, True]
    log.close()


def test_only_a_compacted_log_may_have_gaps() -> None:
    disk = SimDisk()
    _, second, *_ = closed_log(disk)
    disk.unlink(f"{DIRECTORY}/{second:020d}.log")
    log = open_log(disk, clean=True)
    with pytest.raises(BrokenSegment, match="is the first with records from"):
        log.read(second, max_bytes=1, end_offset=log.log_end_offset)
    log.close()


def test_rubbish_behind_the_last_batch_of_a_full_segment_costs_no_record() -> None:
    disk = SimDisk()
    _, second, *_ = closed_log(disk)
    path = f"{DIRECTORY}/{second:020d}.log"
    size = disk.size(path)
    rewrite(disk, f"{second:020d}.log", lambda content: content + bytes(100))
    log = open_log(disk)
    assert read_all(log) == stamped(VALUES)
    assert disk.size(path) == size
    log.close()
