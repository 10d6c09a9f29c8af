"""Lookups by offset and by time against a scan of everything, whatever became of the indexes."""

import struct
from random import Random

import pytest
from crc32c import crc32c

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.io.disk import read_file, write_file_durably
from quorumlog.storage.io.log import Log
from quorumlog.storage.io.timestamps import DECOMPRESSED_BYTES_MAX, RECORDS_MAX
from quorumlog.wire.codec.compression import Compression, compress
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.identifiers import Offset
from quorumlog.wire.codec.records import Record, decode_batches, encode_batch
from tests.support.sizes import tries
from tests.support.storage.batches import DIRECTORY, batch, fill, open_log, read_all, timed_batch

SETTINGS = LogSettings(segment_bytes=1500, index_interval_bytes=0)
Found = tuple[int, int] | None


def linear_scan(log: Log, records: list[Record], timestamp_ms: int) -> Found:
    """The first record that may be read and has this timestamp or more."""
    for record in records:
        if record.offset >= log.log_start_offset and record.timestamp_ms >= timestamp_ms:
            return record.offset, record.timestamp_ms
    return None


def all_records(log: Log) -> list[Record]:
    return [record for _, records in decode_batches(read_all(log)) for record in records]


def check_lookups(log: Log) -> None:
    records = all_records(log)
    times = sorted({record.timestamp_ms for record in records})
    for timestamp_ms in {*times, *(time + 1 for time in times), 0}:
        if timestamp_ms >= 0:
            expected = linear_scan(log, records, timestamp_ms)
            assert log.time_lookup().first_since(timestamp_ms) == expected
    latest = linear_scan(log, records, times[-1]) if times else None
    assert log.time_lookup().of_max_timestamp() == latest
    for offset in range(log.log_start_offset, log.log_end_offset):
        found = log.read(offset, max_bytes=1, end_offset=log.log_end_offset)
        ((header, _),) = decode_batches(bytes(found.records))
        assert header.base_offset <= offset < header.next_offset


def random_times(rng: Random) -> list[int]:
    low, high = rng.choice(((1000, 1400), (1000, 1005), (-1, -1), (-1, 1400)))
    return [rng.randint(low, high) for _ in range(rng.randint(1, 3))]


@pytest.mark.parametrize("interval_bytes", [0, 200, 4096])
def test_every_lookup_is_what_a_linear_scan_finds(interval_bytes: int) -> None:
    settings = LogSettings(segment_bytes=1500, index_interval_bytes=interval_bytes)
    for seed in range(12):
        rng, disk = Random(seed), SimDisk()
        log = open_log(disk, settings)
        for _ in range(rng.randint(1, 60)):
            log.append_as_leader(timed_batch(*random_times(rng)), leader_epoch=0, wall_ms=0)
        check_lookups(log)
        log.truncate_to(rng.randint(0, log.log_end_offset))
        for _ in range(rng.randint(0, 20)):
            log.append_as_leader(timed_batch(*random_times(rng)), leader_epoch=0, wall_ms=0)
        log.advance_log_start_offset(
            rng.choice([*(header.base_offset for header in log.headers(0)), log.log_end_offset])
        )
        check_lookups(log)
        start = log.log_start_offset
        for clean in (True, False):
            log.close(clean=clean)
            log = Log.open(disk, DIRECTORY, settings, clean=clean, log_start_offset=start)
            check_lookups(log)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_no_flipped_bit_in_an_index_changes_an_answer(suffix: str) -> None:
    rng, disk = Random(1), SimDisk()
    log = open_log(disk, LogSettings(index_interval_bytes=250))
    times = [1000 + 10 * index + rng.randrange(30) for index in range(60)]
    for time in times:
        log.append_as_leader(timed_batch(time), leader_epoch=0, wall_ms=0)
    expected = [log.time_lookup().first_since(time) for time in times]
    log.close()
    path = f"{DIRECTORY}/{0:020d}{suffix}"
    whole = read_file(disk, path)
    for bit in range(0, 8 * len(whole), 12 // tries(4)):
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        write_file_durably(disk, path, bytes(content))
        log = open_log(disk, log.settings, clean=True)
        assert [log.time_lookup().first_since(time) for time in times] == expected
        for offset in range(0, len(times), 5):
            assert log.read(offset, max_bytes=1, end_offset=len(times)).next_offset == offset + 1


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_lacks_its_end_changes_no_answer(suffix: str) -> None:
    disk = SimDisk()
    log = open_log(disk, SETTINGS)
    for time in (*range(1000, 1010), *range(1000, 980, -1)):
        log.append_as_leader(timed_batch(time), leader_epoch=0, wall_ms=0)
    log.close()
    path = f"{DIRECTORY}/{0:020d}{suffix}"
    whole = read_file(disk, path)
    for size in (0, 1, len(whole) - 1):
        write_file_durably(disk, path, whole[:size])
        check_lookups(open_log(disk, SETTINGS, clean=True))


def test_a_death_at_any_operation_of_a_flush_leaves_no_index_that_misleads() -> None:
    number = 0
    while True:
        number += 1
        disk = SimDisk()
        log = open_log(disk, SETTINGS)
        # The first segment was full once before: its old indexes must not be taken for new ones.
        for time in (9000, 1000, *range(1100, 1130)):
            log.append_as_leader(timed_batch(time), leader_epoch=0, wall_ms=0)
        log.flush()
        log.truncate_to(2)
        base_offset, recovery_point = 0, Offset(0)
        while log.segment_base_offsets[-1] == 0 and base_offset < 100:
            recovery_point = log.flush()
            base_offset = log.log_end_offset
            time = 9500 - base_offset  # the largest is not in the last batch
            log.append_as_leader(timed_batch(time), leader_epoch=1, wall_ms=0)
        assert recovery_point == log.segment_base_offsets[1]
        left = number

        def die(operation: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

        disk.on_operation = die
        try:
            log.flush()
        except KeyboardInterrupt:
            disk.on_operation = None
            disk.kill()
            check_lookups(open_log(disk, SETTINGS, recovery_point=recovery_point))
            continue
        break
    assert number > 5


def test_the_time_index_of_a_full_segment_ends_with_its_maximum_as_kafkas_does() -> None:
    disk = SimDisk()
    log = open_log(disk, LogSettings(segment_bytes=300))
    for time in (1000, 3000, 2000, 1500, 1600):
        log.append_as_leader(timed_batch(time), leader_epoch=0, wall_ms=0)
    assert len(log.segment_base_offsets) == 2
    log.flush()
    content = read_file(disk, f"{DIRECTORY}/{0:020d}.timeindex")
    assert content == struct.pack(">qI", 3000, 1)


def bomb(count: int, body: bytes, compression: Compression) -> bytes:
    """A batch of `count` records that says nothing false of itself; its records are `body`."""
    packed = compress(compression, body)
    checked = struct.pack(">hiqqqhii", compression, count - 1, 1000, 1000, -1, -1, -1, count)
    checked += packed
    return struct.pack(">qiibI", 0, len(checked) + 9, 0, 2, crc32c(checked)) + checked


@pytest.mark.parametrize(
    "data",
    [
        bomb(RECORDS_MAX + 1, b"\x0c\0\0\0\x01\x01\0" * (RECORDS_MAX + 1), Compression.ZSTD),
        bomb(1, bytes(DECOMPRESSED_BYTES_MAX + 1), Compression.ZSTD),
        bomb(2, b"no records at all", Compression.NONE),
        bomb(3, b"no records at all", Compression.GZIP),
        bomb(3, b"", Compression.SNAPPY),
    ],
    ids=["many", "large", "garbage", "gzip", "empty"],
)
def test_a_batch_that_cannot_be_looked_into_counts_as_one(data: bytes) -> None:
    log = open_log(settings=LogSettings())
    log.append_as_leader(timed_batch(500), leader_epoch=0, wall_ms=0)
    log.append_as_leader(data, leader_epoch=0, wall_ms=0)
    end = log.log_end_offset
    log.append_as_leader(timed_batch(2000), leader_epoch=0, wall_ms=0)
    assert log.time_lookup().first_since(400) == (0, 500)
    assert log.time_lookup().first_since(600) == (1, 1000)
    assert log.time_lookup().first_since(1001) == (end, 2000)
    log.advance_log_start_offset(end - 1)
    assert log.time_lookup().first_since(600) == (end - 1, 1000)


def test_a_wrong_checksum_is_no_answer() -> None:
    disk = SimDisk()
    log = open_log(disk, LogSettings())
    fill(log, ["a", "b"])
    log.close()
    content = bytearray(read_file(disk, f"{DIRECTORY}/{0:020d}.log"))
    content[len(batch("a")) - 1] ^= 1
    write_file_durably(disk, f"{DIRECTORY}/{0:020d}.log", bytes(content))
    log = open_log(disk, LogSettings(), clean=True)
    with pytest.raises(CorruptBatch, match="checksum"):
        log.time_lookup().first_since(0)


def test_compressed_batches_are_looked_into() -> None:
    for compression in Compression:
        log = open_log()
        records = [Record(index, time, None, b"x") for index, time in enumerate((10, 30, 20))]
        data = encode_batch(records, compression=compression)
        log.append_as_leader(data, leader_epoch=0, wall_ms=0)
        assert log.time_lookup().first_since(11) == (1, 30)


def test_a_lookup_finds_what_was_there_when_it_was_made() -> None:
    """Whatever its log does meanwhile that is no cut."""
    for seed in range(12):
        rng, disk = Random(seed), SimDisk()
        log = open_log(disk, SETTINGS)
        for _ in range(rng.randint(1, 40)):
            log.append_as_leader(timed_batch(*random_times(rng)), leader_epoch=0, wall_ms=0)
            if rng.random() < 0.1:
                log.flush()
        records = all_records(log)
        times = sorted({record.timestamp_ms for record in records})
        lookups = [(time, log.time_lookup()) for time in times]
        latest = log.time_lookup()
        for _ in range(40):
            log.append_as_leader(timed_batch(9000), leader_epoch=0, wall_ms=0)
            if rng.random() < 0.1:
                log.flush()
                read_all(log)  # of the segments that are loaded, all but a few are released
        for time, lookup in lookups:
            assert lookup.first_since(time) == linear_scan(log, records, time)
        assert latest.of_max_timestamp() == linear_scan(log, records, times[-1])
        check_lookups(log)
