"""Bytes of a log that were lent to a socket stay as they are, whatever happens to the log.

A range refers to the pages of a file, and so does the socket that it was sent to: a cut in place
would change bytes that are on their way. Power is lost at each operation of a cut, too.
"""

import os
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.errors import NotInMemory
from quorumlog.storage.io import disk as real_disk
from quorumlog.storage.io.append_handles import AppendFile
from quorumlog.storage.io.disk import Disk, RealDisk
from quorumlog.storage.io.log import Log
from quorumlog.storage.io.segment import Segment
from quorumlog.wire.codec.file_range import FileRange
from tests.support.sizes import tries
from tests.support.storage.batches import DIRECTORY, TINY, fill, open_log, read_all, stamped
from tests.support.storage.cleaning import clean, rules
from tests.support.storage.crashes import lose_power_at

SETTINGS = replace(TINY, cleanup_policy="compact,delete")
STEPS = 40
SEEDS = tries(120)
MUTANT_SEEDS = 100


class Changed(Exception):
    """Lent bytes are not what they were."""


@dataclass
class Lent:
    """Ranges and the bytes that they had; `sent`: a socket that holds such bytes, unread."""

    ranges: list[tuple[FileRange, bytes]] = field(default_factory=list)
    sent: list[tuple[socket.socket, socket.socket, bytes]] = field(default_factory=list)

    def add(self, part: FileRange, rng: random.Random) -> None:
        content = part.read()
        self.ranges.append((part, content))
        if part.file.fileno() >= 0 and rng.random() < 0.3:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                receiver = socket.create_connection(listener.getsockname())
                sender, _ = listener.accept()
            count = os.sendfile(
                sender.fileno(), part.file.fileno(), part.position, min(part.size, 20_000)
            )
            self.sent.append((sender, receiver, content[:count]))

    def check(self) -> None:
        for part, content in self.ranges:
            if part.read() != content:
                raise Changed(f"{part.size} bytes at {part.position}")

    def receive(self) -> None:
        """Read what the sockets hold, and close them."""
        changed = False
        for sender, receiver, content in self.sent:
            with sender, receiver:
                changed |= receiver.recv(len(content), socket.MSG_WAITALL) != content
        self.sent.clear()
        if changed:
            raise Changed("bytes that were sent, and not yet received")


def lend(log: Log, rng: random.Random, lent: Lent) -> None:
    offset = rng.randint(log.log_start_offset, log.log_end_offset)
    below = rng.choice([log.log_end_offset, rng.randint(0, log.log_end_offset)])
    try:
        read = log.read(
            offset,
            max_bytes=rng.choice([1, 300, 1 << 20]),
            end_offset=log.log_end_offset,
            may_wait=False,
            lend_below=below,
        )
    except NotInMemory as absent:
        absent.bring_in()()
        return
    if isinstance(read.records, FileRange):
        assert read.next_offset <= below
        lent.add(read.records, rng)


def tell(log: Log, seed: int) -> int:
    """Change a log in random ways, with ranges of it under way; return their number."""
    rng, lent, epoch = random.Random(seed), Lent(), 0
    try:
        for step in range(STEPS):
            match rng.randrange(8):
                case 0 | 1:
                    values = [f"{step}-{'x' * rng.randrange(200)}" for _ in range(3)]
                    fill(log, values, leader_epoch=epoch)
                case 2:
                    log.truncate_to(rng.randint(log.log_start_offset, log.log_end_offset))
                    epoch += 1
                case 3:
                    log.flush()
                case 4:
                    start, end = log.log_start_offset, log.log_end_offset
                    log.advance_log_start_offset(rng.randint(start, (3 * start + end) // 4))
                    log.remove_dead_segments()
                case 5 if rng.random() < 0.3:
                    log.flush()
                    clean(log, rules(end_offset=log.flushed_offset))
                case _:
                    lend(log, rng, lent)
            lent.check()
        lent.receive()
        return len(lent.ranges)
    finally:
        for sender, receiver, _ in lent.sent:
            sender.close()
            receiver.close()


def on_simulated_disk(seed: int, _path: Path) -> int:
    log = open_log(SimDisk(), SETTINGS)
    lent = tell(log, seed)
    log.close()
    return lent


def on_real_disk(seed: int, path: Path) -> int:
    """With pages of real files in real sockets."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(real_disk, "LEND_FROM_BYTES", 1)
        log = open_log(RealDisk(), SETTINGS, directory=str(path / str(seed) / "topic-0"))
        lent = tell(log, seed)
        log.close()
        return lent


@pytest.mark.parametrize("tell_story", [on_simulated_disk, on_real_disk])
def test_lent_bytes_never_change(tmp_path: Path, tell_story: Callable[[int, Path], int]) -> None:
    seeds = range(SEEDS if tell_story is on_simulated_disk else SEEDS // 4)
    assert sum(tell_story(seed, tmp_path) for seed in seeds) > 3 * len(seeds)


def cut_in_place(segment: Segment, file: AppendFile, size: int) -> AppendFile:
    file.truncate(size)
    return file


@pytest.mark.parametrize("tell_story", [on_simulated_disk, on_real_disk])
def test_a_cut_in_place_is_found(
    tmp_path: Path, tell_story: Callable[[int, Path], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Segment, "_continue_in_another_file", cut_in_place)
    with pytest.raises((Changed, OSError)):
        sum(tell_story(seed, tmp_path) for seed in range(MUTANT_SEEDS))


def log_with_a_range(disk: Disk) -> tuple[Log, FileRange]:
    log = open_log(disk, replace(TINY, segment_bytes=4000))
    fill(log, ["a", "b", "c"])
    log.flush()
    fill(log, ["d", "e"])
    read = log.read(0, max_bytes=1000, end_offset=5, may_wait=False, lend_below=5)
    assert isinstance(read.records, FileRange)
    return log, read.records


def test_power_lost_in_a_cut_leaves_the_log_before_or_after_it() -> None:
    before, after = stamped("abc"), stamped("ab")
    for number in range(100):
        disk = SimDisk()
        log, part = log_with_a_range(disk)
        is_lost = lose_power_at(disk, number, lambda log=log: log.truncate_to(2))  # type: ignore[misc]  # bound now
        assert part.read() == stamped("abcde")
        disk.crash(random.Random(number))
        found = read_all(open_log(disk, replace(TINY, segment_bytes=4000)))
        if not is_lost:
            assert found == after
            break
        assert found.startswith(after)
        assert found == after or found.startswith(before)
        assert [one for one in disk.listdir(DIRECTORY) if "cleaned" in one] == []
    else:
        raise AssertionError("a cut has fewer operations")
    assert number > 5


def test_a_cut_above_the_lent_bytes_is_made_in_place() -> None:
    disk = SimDisk()
    log, part = log_with_a_range(disk)
    (path,) = [f"{DIRECTORY}/{one}" for one in disk.listdir(DIRECTORY) if one.endswith(".log")]
    identity = disk.identity(path)
    fill(log, ["f", "g"])
    log.truncate_to(6)
    assert disk.identity(path) == identity
    log.truncate_to(4)
    assert disk.identity(path) != identity
    assert read_all(log) == stamped("abcd")
    assert part.read() == stamped("abcde")
