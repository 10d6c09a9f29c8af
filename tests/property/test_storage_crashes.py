"""Power loss, or an error of the disk, at every operation of a log.

What was flushed is there, and the rest is a prefix of the written records. The log start never
falls below its checkpoint. A log that the disk refused once is what the disk holds, or refuses
further use.
"""

import errno
from collections.abc import Callable, Iterable
from random import Random

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.checkpoints import (
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from quorumlog.storage.io.epoch_checkpoint import LeaderEpochCache
from quorumlog.storage.io.log import Log
from quorumlog.storage.io.log_health import LogHealth
from quorumlog.storage.io.segment import Segment
from quorumlog.storage.io.segment_list import SegmentList
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.identifiers import Offset, TopicPartition
from quorumlog.wire.codec.records import HEADER_BYTES, decode_batches
from tests.support.sizes import tries
from tests.support.storage.batches import DIRECTORY, batch, open_log, read_all
from tests.support.storage.power import PowerLoss, at, kept, operations_of

SETTINGS = LogSettings(segment_bytes=300, index_interval_bytes=0)
PARTITION = TopicPartition("topic", 0)
SEEDS = 4
Written = tuple[int, str]  # leader epoch, value

# Each word is a step and a number: append, cut back, advance the start, flush, keep the start,
# remove dead segments, continue without records behind the end, elect, elect and note the epoch;
# kill the process and open its log: so that what it recovers is durable, or not before a flush.
CUTS = "a5 f a1 e a5 b4 e a2 f b7 e a10 f a3"
STARTS = "a9 f s5 k r a8 s7 f k a3 r s6 r f s2 k"
KILLS = "a5 f b1 a1 X f a2 f b1 a1 x a3 x e b4 f a2 X a1 f"
RESTARTS = "a9 f s5 z4 a3 k f a7 z1 e a2 f z2"
ANY = ("a1", "a1", "a2", "a3", "e", "E", "b1", "b3", "f")
ANY_START = ("s1", "s3", "k", "r")


class Life:
    """One process on one disk, and what it was promised. `written`: by offset."""

    def __init__(self, disk: SimDisk, *, sizes: tuple[int, ...] = (37,)) -> None:
        self.disk, self.sizes = disk, sizes
        self.written: list[Written] = []
        self.possible: list[list[Written]] = [[]]  # the records that the log may hold, or less
        self.flushed = self.start = self.kept_start = self.epoch = self.values = 0
        self.is_checkpointing = False
        self.log: Log | None = None

    def live(self, script: str) -> None:
        self.begin()
        for word in script.split():
            self.do(word)
        assert self.log is not None
        self.log.close()

    def begin(self) -> None:
        self.disk.mkdir("/data")
        self.log = open_from_checkpoints(self.disk)

    def do(self, word: str) -> None:  # noqa: C901 - one branch per word
        assert self.log is not None
        number = int(word[1:] or 1)
        match word[0]:
            case "a":
                for _ in range(number):
                    self._append(self.log)
            case "b":
                self._truncate(self.log, max(self.start, len(self.written) - number))
            case "s":
                self.start = min(self.start + number, len(self.written))
                self.log.advance_log_start_offset(self.start)
            case "f":
                self.log.flush()
                self.flushed = len(self.written)
                self._checkpoint(RECOVERY_POINT_FILE, self.log.flushed_offset)
            case "k":
                self._checkpoint(LOG_START_FILE, Offset(self.start))
                self.kept_start = self.start
                self.log.epochs.truncate_from_start(self.start)
            case "r":  # on a file system that keeps no order of names
                self.disk.keeps_order_of_names = False
                self.log.remove_dead_segments()
                self.disk.keeps_order_of_names = True
            case "x" | "X":
                self._kill(must_last=word == "x")
            case "z":
                self._restart(self.log, len(self.written) + number)
            case _:
                self.epoch += 1
                if word == "E":
                    self.log.epochs.assign(self.epoch, self.log.log_end_offset)

    def _append(self, log: Log) -> None:
        self.values += 1
        value = f"{self.values}-" + "x" * self.sizes[self.values % len(self.sizes)]
        self.possible.append([*self.written, (self.epoch, value)])
        log.append_as_leader(batch(value), leader_epoch=self.epoch, wall_ms=0)
        self.written = self.possible[-1]

    def _truncate(self, log: Log, offset: int) -> None:
        self.flushed = min(self.flushed, offset)
        self.possible.append(self.written[:offset])
        log.truncate_to(offset)
        self.written = self.written[:offset]
        self._checkpoint(RECOVERY_POINT_FILE, Offset(min(offset, log.flushed_offset)))
        self.possible = [self.written]  # nothing of what was cut may come back

    def _kill(self, *, must_last: bool) -> None:
        self.disk.kill()
        self.log = open_from_checkpoints(self.disk, must_last=must_last)
        assert held_by(self.log) == self.written[self.log.log_start_offset :]
        assert not must_last or self.log.flushed_offset == len(self.written)
        self.flushed = max(self.flushed, self.log.flushed_offset)

    def _restart(self, log: Log, offset: int) -> None:
        nothing = [(-1, "")] * (offset - len(self.written))  # below the log start from now on
        self.possible.append([*self.written, *nothing])
        self.start, self.flushed = offset, 0
        log.truncate_fully_and_start_at(offset)
        self.written, self.flushed = self.possible[-1], offset
        self._checkpoint(RECOVERY_POINT_FILE, log.flushed_offset)
        self.possible = [self.written]

    def _checkpoint(self, name: str, offset: Offset) -> None:
        self.is_checkpointing = True
        write_offset_checkpoint(self.disk, "/data", name, {PARTITION: offset})
        self.is_checkpointing = False

    def live_on(self, words: Iterable[str], rng: Random) -> bool:
        """Go on after errors of the disk; return whether the log is still in use."""
        try:
            self.begin()
        except (StorageError, OSError):
            return False
        log = self.log
        assert log is not None
        for word in words:
            try:
                self.do(word)
            except (StorageError, OSError):
                self.disk.keeps_order_of_names = True
                if log.failure is not None or self.is_checkpointing:
                    return False  # a directory without checkpoints is used no more
                self.written = self.written[: log.log_end_offset]
                self.possible = [self.written]
                if rng.random() < 0.5:  # the new epoch is in no log, and never will be
                    self.epoch = max(0, log.epochs.latest_epoch)
        return True


def open_from_checkpoints(disk: SimDisk, *, must_last: bool = True) -> Log:
    points = read_offset_checkpoint(disk, "/data", RECOVERY_POINT_FILE)
    starts = read_offset_checkpoint(disk, "/data", LOG_START_FILE)
    return Log.open(
        disk,
        DIRECTORY,
        SETTINGS,
        clean=False,
        recovery_point=points.get(PARTITION, 0),
        log_start_offset=starts.get(PARTITION),
        must_last=must_last,
    )


def held_by(log: Log) -> list[Written]:
    """Return the records from the log start on."""
    found = [
        (header.leader_epoch, (record.value or b"").decode())
        for header, records in decode_batches(read_all(log))
        for record in records
        if record.offset >= log.log_start_offset
    ]
    offsets = range(log.log_start_offset, log.log_end_offset)
    assert [log.epochs.epoch_at(offset) for offset in offsets] == [epoch for epoch, _ in found]
    return found


def check_after(life: Life) -> None:
    disk = life.disk
    disk.on_operation, disk.keeps_order_of_names = None, True
    disk.mkdir("/data")
    log = open_from_checkpoints(disk)
    found, start, end = held_by(log), log.log_start_offset, log.log_end_offset
    assert life.kept_start <= start <= max(life.start, life.kept_start)
    assert end >= life.flushed
    assert any(whole[start:end] == found and end <= len(whole) for whole in life.possible)
    log.remove_dead_segments()
    log.append_as_leader(batch("more"), leader_epoch=99, wall_ms=0)
    log.flush()
    log.close()
    log = Log.open(disk, DIRECTORY, SETTINGS, clean=True, log_start_offset=start)
    assert held_by(log) == [*found, (99, "more")]


def operations(script: str) -> int:
    return operations_of(lambda disk: Life(disk).live(script))


def cut_off(script: str, number: int, seed: int) -> Life:
    """Return a life that ends with the power at this operation."""
    life = Life(SimDisk(on_operation=at(number)))
    with pytest.raises(PowerLoss):
        life.live(script)
    life.disk.crash(kept(number, seed))
    return life


def check_power_loss_at_every_operation(script: str, seeds: int = SEEDS) -> None:
    for number in range(1, operations(script) + 1):
        for seed in range(seeds):
            check_after(cut_off(script, number, seed))


@pytest.mark.parametrize("script", [CUTS, STARTS, KILLS, RESTARTS])
def test_kafka_10527_power_loss_anywhere_leaves_a_prefix_with_all_that_was_flushed(
    script: str,
) -> None:
    check_power_loss_at_every_operation(script, tries(SEEDS))


SIM = "quorumlog.chaos.simulation.kernel.sim_disk."
STORAGE = "quorumlog.storage."
TRUNCATE, WRITE = Segment.truncate_to, LeaderEpochCache.write
RENAME_DEAD, SYNC = SegmentList.rename_dead, SegmentList.sync
Patch = Callable[[pytest.MonkeyPatch], None]


def _truncates_without_fsync(patch: pytest.MonkeyPatch) -> None:
    def truncate_to(self: Segment, offset: int) -> int:
        with patch.context() as inner:
            inner.setattr(SIM + "SimFile.fsync", lambda file: None)
            return TRUNCATE(self, offset)

    patch.setattr(Segment, "truncate_to", truncate_to)


def _flushes_no_new_epochs(patch: pytest.MonkeyPatch) -> None:
    def write(cache: LeaderEpochCache) -> None:
        if cache._written is None or not cache._written.entries:
            WRITE(cache)

    patch.setattr(LeaderEpochCache, "write", write)
    # It would rebuild the file: the flush alone must see to it.
    patch.setattr(STORAGE + "io.log_loader.contradiction", lambda *args: None)


def _removes_the_newest_first(patch: pytest.MonkeyPatch) -> None:
    def rename_dead(self: SegmentList) -> list[str]:
        self._dead.reverse()
        return RENAME_DEAD(self)

    patch.setattr(SegmentList, "rename_dead", rename_dead)


def _removes_with_one_fsync(patch: pytest.MonkeyPatch) -> None:
    """It relies on the order in which a file system keeps names."""

    def rename_dead(self: SegmentList) -> list[str]:
        disk = self._disk
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(disk, "fsync_dir", lambda _: None)
            renamed = RENAME_DEAD(self)
        disk.fsync_dir(self._directory)
        return renamed

    patch.setattr(SegmentList, "rename_dead", rename_dead)


def _flushes_no_dead_segments(patch: pytest.MonkeyPatch) -> None:
    def sync(self: SegmentList, flushed_offset: int, end_offset: int, health: LogHealth) -> None:
        dead, self._dead = self._dead, []
        SYNC(self, flushed_offset, end_offset, health)
        self._dead = dead

    patch.setattr(SegmentList, "sync", sync)


def _without(duty: str) -> Patch:
    return lambda patch: patch.setattr(duty, lambda *args: None)


PLANTED: dict[str, tuple[str, Patch]] = {
    "segments are not flushed": (CUTS, _without(STORAGE + "io.segment.Segment.sync")),
    "batches are not checked": (CUTS, _without(STORAGE + "core.recovery.validate_batch")),
    "directories are not flushed": (CUTS, _without(SIM + "SimDisk.fsync_dir")),
    "a truncation is not durable": (CUTS, _truncates_without_fsync),
    "a flush leaves out new epochs": (CUTS, _flushes_no_new_epochs),
    "the newest dead segment goes first": (STARTS, _removes_the_newest_first),
    "dead segments go with one fsync": (STARTS, _removes_with_one_fsync),
    "dead segments are not flushed": (STARTS, _flushes_no_dead_segments),
}


@pytest.mark.planted
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script, plant = PLANTED[name]
    plant(monkeypatch)
    with pytest.raises((AssertionError, StorageError, CorruptBatch)):
        check_power_loss_at_every_operation(script)


def test_power_loss_in_the_middle_of_recovery_costs_nothing_more() -> None:
    count = operations(CUTS)
    for number in range(count // 2, count, 7):
        for second in range(1, 40, 3):
            life = cut_off(CUTS, number, 0)
            life.disk.on_operation = at(second)
            try:
                open_from_checkpoints(life.disk)
            except PowerLoss:
                life.disk.crash(Random(second))
            check_after(life)


def drawn(rng: Random, *, has_starts: bool) -> list[str]:
    words = (*ANY, *ANY_START) if has_starts else ANY
    return rng.choices(words, k=25)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_kafka_7866_a_log_that_was_refused_once_goes_on_truly_or_not_at_all(code: int) -> None:
    lives = 0
    for seed in range(tries(8)):
        words = drawn(Random(seed), has_starts=seed % 2 == 0)

        def live(disk: SimDisk, words: list[str] = words) -> None:
            Life(disk, sizes=(3, 30, 120)).live_on(words, Random(0))

        def refuse() -> None:
            raise OSError(code, "planted")

        for number in range(1, operations_of(live) + 1):
            rng = Random(number)
            life = Life(SimDisk(on_operation=at(number, refuse)), sizes=(3, 30, 120))
            if life.live_on(words, rng):
                assert life.log is not None
                assert held_by(life.log) == life.written[life.log.log_start_offset :]
            if rng.random() < 0.5:
                life.disk.crash(rng)
            else:
                life.disk.kill()
            check_after(life)
            lives += 1
    assert lives > 50 * tries(8)


@pytest.mark.parametrize("room", range(0, 200, 9))
def test_kafka_7866_a_full_disk_leaves_the_log_as_it_was(room: int) -> None:
    disk = SimDisk()
    log = open_log(disk, LogSettings())
    log.append_as_leader(batch("a"), leader_epoch=0, wall_ms=0)
    before = read_all(log)
    disk.capacity_bytes = disk.bytes_used() + room
    two = batch("b" * 40, "c" * 40)
    if len(two) > room:
        with pytest.raises(StorageError, match="No space"):
            log.append_as_leader(two, leader_epoch=0, wall_ms=0)
        assert (log.log_end_offset, read_all(log), log.failure) == (1, before, None)
    disk.capacity_bytes = None
    log.append_as_leader(two, leader_epoch=0, wall_ms=0)
    expected = read_all(log)
    disk.kill()
    assert read_all(open_log(disk, LogSettings())) == expected


def test_a_torn_tail_is_cut_at_every_byte_of_the_last_batch() -> None:
    first, last = batch("first", leader_epoch=0), batch("last", base_offset=1, leader_epoch=1)
    for size in range(len(last)):
        for rest in (b"", bytes(len(last) - size), b"\xff" * (len(last) - size)):
            if last[:size] + rest == last:
                continue  # the last byte is a zero
            disk = SimDisk()
            log = open_log(disk)
            log.append_as_follower(first + last)
            log.close(clean=False)
            file = disk.open(f"{DIRECTORY}/{0:020d}.log")
            file.truncate(len(first) + size)
            file.append([rest])
            log = open_log(disk)
            assert read_all(log) == first
            assert log.epochs.entries == ((0, 0),)
            assert log.append_as_follower(last).last_offset == 1


def test_a_flipped_bit_in_a_middle_segment_ends_an_unclean_log_before_it() -> None:
    values = [f"value-{index:02}" for index in range(30)]
    for seed in range(40):
        disk, rng = SimDisk(), Random(seed)
        log = open_log(disk)
        for value in values:
            log.append_as_leader(batch(value), leader_epoch=0, wall_ms=0)
        base_offset = log.segment_base_offsets[3]
        log.close()
        position = disk.flip_bit(f"{DIRECTORY}/{base_offset:020d}.log", rng)
        in_batch = position % len(batch(values[0]))
        log = open_log(disk)
        end = base_offset + position // len(batch(values[0]))
        if 12 <= in_batch < 16 and log.log_end_offset != end:
            continue  # the leader epoch is under no checksum, and a later one is no fault
        assert in_batch < HEADER_BYTES or log.log_end_offset == end
        assert log.log_end_offset <= end
        assert b"".join(batch(v, base_offset=o, leader_epoch=0) for o, v in enumerate(values))[
            : log.size
        ] == read_all(log)


def test_kafka_16541_a_torn_epoch_checkpoint_is_rebuilt_from_the_log() -> None:
    disk = SimDisk()
    log = open_log(disk)
    for leader_epoch in range(12):
        log.append_as_leader(batch("a", "b"), leader_epoch=leader_epoch, wall_ms=0)
    expected = log.epochs.entries
    log.close()
    path = f"{DIRECTORY}/leader-epoch-checkpoint"
    whole = disk.durable_bytes(path)
    assert whole is not None
    for size in range(len(whole)):
        file = disk.open(path)
        file.truncate(0)
        file.append([whole[:size]])
        log = open_log(disk, clean=True)
        assert log.epochs.entries == expected
        log.close()
        assert LeaderEpochCache.open(disk, DIRECTORY, has_file=True).entries == expected
