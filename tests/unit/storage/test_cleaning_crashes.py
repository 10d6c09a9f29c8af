"""A crash at any step of a cleaner's pass leaves a compacted log with every newest value."""

from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.io.log import Log
from tests.support.storage.batches import open_log
from tests.support.storage.cleaning import (
    TINY,
    append,
    begin,
    clean,
    log_of_writes,
    newest_values,
    rules,
)


class Crash(Exception):
    """The machine has lost its power."""


def log_of_small_segments(disk: SimDisk) -> Log:
    """Return a log whose next pass swaps in one segment for several: a pass has shrunk these."""
    log = log_of_writes(disk, count=30)
    clean(log, rules())
    for number in range(30):
        append(log, (f"k{number % 7}", f"w{number}"), ("other0", "y"))
    return log


def test_a_pass_swaps_in_one_segment_for_several_that_an_earlier_pass_has_shrunk() -> None:
    cleaning = begin(log_of_small_segments(SimDisk()), rules())
    assert max(len(cleaned.replaces) for cleaned in cleaning.run() if cleaned) > 2


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("new_log", [partial(log_of_writes, count=30), log_of_small_segments])
def test_after_a_crash_at_any_step_the_log_has_every_newest_value(
    new_log: Callable[[SimDisk], Log], seed: int
) -> None:
    steps = 0
    while True:
        disk = SimDisk()
        log = new_log(disk)
        log.flush()
        before, end = newest_values(log), log.log_end_offset
        left = steps

        def count_down(operation: str, _path: str) -> None:
            nonlocal left
            if operation in {"append", "truncate", "fsync", "rename", "unlink", "fsync_dir"}:
                left -= 1
                if left < 0:
                    raise Crash

        disk.on_operation = count_down
        try:
            clean(log, rules())
        except Crash:
            disk.on_operation = lambda _operation, _path: None
            disk.crash(Random(1000 * seed + steps))
            again = open_log(disk, TINY, recovery_point=end)
            assert (newest_values(again), again.log_end_offset) == (before, end)
            names = disk.listdir(again.directory)
            assert not [name for name in names if name.endswith((".swap", ".cleaned", ".deleted"))]
            again.close()
            steps += 1
        else:
            break
    assert steps > 20
