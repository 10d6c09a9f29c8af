"""One of the two disks fails at any step of a move: the other one has all that was acknowledged."""

import errno
from itertools import count
from typing import Final

import pytest

from quorumlog.broker.settings import BrokerSettings
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.broker.moving import AT, Metadata, append, broker, driver_of, values_of
from tests.support.sizes import tries
from tests.support.waiting import loop_turns, until
from tests.unit.broker.test_directory_move_crashes import SMALL

READS: Final = {"pread", "listdir", "size", "space"}


class FailingDisk(SimDisk):
    """What is mounted at `path` refuses all changes from one of them on."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self.left: int | None = None

    def begin(self, operation: str, path: str) -> None:
        if self.left is not None and path.startswith(self._path) and operation not in READS:
            self.left -= 1
            if self.left < 0:
                raise OSError(errno.EIO, f"{operation} is refused", path)
        super().begin(operation, path)

    @property
    def has_failed(self) -> bool:
        return self.left is not None and self.left < 0


async def fails_at(step: int, failing: str) -> bool:
    """Let a disk fail at this step; return whether the move goes on as long."""
    disk, metadata = FailingDisk(f"/{failing}"), Metadata()
    acknowledged: list[int] = []
    async with broker(disk, metadata, log_settings=SMALL, stops=False) as replicas:
        for value in range(8):
            append(replicas, value)
            acknowledged.append(value)
        await until(lambda: metadata.told == ["a"])
        disk.left = step
        answer = await replicas.moves.alter(AT, "/b")
        assert answer in {ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR}
        for value in range(8, 20):
            outcome = append(replicas, value)
            await loop_turns(4)
            if outcome.done() and outcome.result().error_code is ErrorCode.NONE:
                acknowledged.append(value)
        await loop_turns()
        has_failed = disk.has_failed
        home = replicas.descriptions.directory_of(AT)
        if AT in replicas.drivers:  # what is left goes on, and the controller knows where
            assert not driver_of(replicas).is_exchanging
            assert metadata.directory == home
            if home != failing:
                assert append(replicas, 20).result().error_code is ErrorCode.NONE
                acknowledged.append(20)
        else:
            assert metadata.directory == failing  # where it is, or was before or after
    disk.kill()
    disk.left = None  # the disk is back
    async with broker(disk, metadata, log_settings=SMALL) as replicas:
        await until(lambda: AT in replicas.drivers)
        found = values_of(driver_of(replicas).log)
        assert [one for one in found if one in acknowledged] == acknowledged
    return has_failed


@pytest.mark.parametrize("failing", ["a", "b"])
async def test_a_disk_that_fails_at_any_step_loses_nothing(failing: str) -> None:
    for step in count(0, 5 - tries(4)):
        if not await fails_at(step, failing):
            assert step > 10
            return


@pytest.mark.jumping_time
async def test_a_full_disk_only_delays_a_move() -> None:
    """ENOSPC says nothing of the files: the move is tried again, from the beginning."""
    disk, metadata = SimDisk(), Metadata()
    settings = BrokerSettings()
    async with broker(disk, metadata, settings=settings, log_settings=SMALL) as replicas:
        for value in range(8):
            append(replicas, value)
        await until(lambda: metadata.told == ["a"])
        disk.capacity_bytes = disk.bytes_used() + 200
        assert await replicas.moves.alter(AT, "/b") is ErrorCode.NONE
        await loop_turns()
        assert driver_of(replicas).log.directory == f"/a/{AT}"
        disk.capacity_bytes = None
        await until(lambda: driver_of(replicas).log.directory == f"/b/{AT}")
        assert values_of(driver_of(replicas).log) == [*range(8)]
