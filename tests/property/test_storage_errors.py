"""The disk refuses once, at any operation, and life goes on: nothing that was flushed is lost.

Either the log refuses further use, or it is what the disk holds: its records, and where its leader
epochs start.
"""

import errno
from random import Random

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.core.settings import LogSettings
from quorumlog.storage.errors import StorageError
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.records import decode_batches
from tests.support.sizes import tries
from tests.support.storage.batches import batch, open_log, read_all

SETTINGS = LogSettings(segment_bytes=300, index_interval_bytes=0)
STEPS = 25
SEEDS = tries(8)
Written = tuple[int, str]  # leader epoch, value


class Life:
    """One process whose disk refuses operation `number`; what it wrote, and what is flushed."""

    def __init__(self, disk: SimDisk, number: int, code: int, rng: Random) -> None:
        self.disk = disk
        self.rng = rng
        self.written: list[Written] = []
        self.flushed = self.recovery_point = self.epoch = 0
        self.left = number
        self.code = code
        self.log = open_log(disk, SETTINGS)
        disk.on_operation = self.refuse

    @property
    def was_refused(self) -> bool:
        return self.left <= 0

    def refuse(self, operation: str, path: str) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError(self.code, f"planted in {operation}", path)

    def live(self) -> None:
        for step in range(STEPS):
            try:
                self.do_something(step)
            except StorageError:
                if self.log.failure is not None:
                    return
                if self.rng.random() < 0.5:  # the new epoch is not known here, and never will be
                    self.epoch = max(0, self.log.epochs.latest_epoch)

    def do_something(self, step: int) -> None:
        log, what = self.log, self.rng.random()
        if what < 0.6:
            value = f"{step}-" + "x" * self.rng.choice((3, 30, 120))
            log.append_as_leader(batch(value), leader_epoch=self.epoch, wall_ms=0)
            self.written.append((self.epoch, value))
        elif what < 0.7:
            self.epoch += 1
        elif what < 0.8:
            self.epoch += 1
            log.epochs.assign(self.epoch, log.log_end_offset)
        elif what < 0.9:
            end = max(0, len(self.written) - self.rng.randrange(4))
            self.flushed = min(self.flushed, end)
            try:
                log.truncate_to(end)
            finally:
                del self.written[log.log_end_offset :]
                self.recovery_point = min(self.recovery_point, log.flushed_offset)
        else:
            log.flush()
            self.flushed = len(self.written)
            self.recovery_point = log.flushed_offset

    def check(self, log: Log, *, at_least: int) -> None:
        found = [
            (header.leader_epoch, (record.value or b"").decode())
            for header, records in decode_batches(read_all(log))
            for record in records
        ]
        assert len(found) >= at_least
        assert found == self.written[: len(found)]
        epochs = [epoch for epoch, _ in found]
        starts = {epoch: epochs.index(epoch) for epoch in epochs}
        held = {epoch: start for epoch, start in log.epochs.entries if start < log.log_end_offset}
        assert held == starts


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_log_that_was_refused_once_goes_on_truly_or_not_at_all(code: int) -> None:
    lives = 0
    for seed in range(SEEDS):
        number = 1
        while True:
            rng = Random(seed)
            life = Life(SimDisk(), number, code, rng)
            life.live()
            life.disk.on_operation = None
            if not life.was_refused:
                break
            if life.log.failure is None:
                life.check(life.log, at_least=len(life.written))
            if rng.random() < 0.5:
                life.disk.crash(rng)
            else:
                life.disk.kill()
            log = open_log(life.disk, SETTINGS, recovery_point=life.recovery_point)
            life.check(log, at_least=life.flushed)
            number, lives = number + 1, lives + 1
    assert lives > 50 * SEEDS
