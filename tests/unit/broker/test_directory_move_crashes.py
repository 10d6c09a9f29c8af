"""A crash, a loss of power or a disk that fails at any step of a move: no record is lost."""

import errno
from contextlib import suppress
from itertools import count
from random import Random
from typing import Final

import pytest

from quorumlog.broker.partitions.log.log_directory import STRAY_SUFFIX
from quorumlog.broker.settings import BrokerSettings
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.core.settings import LogSettings
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.broker.moving import (
    AT,
    Metadata,
    append,
    broker,
    driver_of,
    names_in,
    until_in,
    values_of,
)
from tests.support.sizes import tries
from tests.support.waiting import loop_turns, until

SMALL = LogSettings(segment_bytes=300)
AT_FIRST = 8


class Dead(BaseException):
    """Not an Exception: a process that is gone handles nothing."""


class DyingDisk(SimDisk):
    """Dies at an operation that changes something, counted from `arm` on."""

    def __init__(self) -> None:
        super().__init__()
        self.left: int | None = None
        self.is_dead = False

    def arm(self, left: int) -> None:
        self.left = left

    def begin(self, operation: str, path: str) -> None:
        if self.is_dead:
            raise Dead
        if self.left is not None and operation not in {"pread", "listdir", "size", "space"}:
            self.left -= 1
            if self.left < 0:
                self.is_dead = True
                raise Dead
        super().begin(operation, path)

    def revive(self) -> None:
        self.is_dead, self.left = False, None


async def die_at(step: int, disk: DyingDisk, metadata: Metadata, *, loses_power: bool) -> list[int]:
    """Move while records are appended, until the disk dies; return what was acknowledged."""
    acknowledged: list[int] = []
    settings = BrokerSettings(log_flush_acks=loses_power)

    def note(value: int) -> None:
        with suppress(Dead):
            append(replicas, value).add_done_callback(
                lambda one: (
                    acknowledged.append(value)
                    if one.result().error_code is ErrorCode.NONE
                    else None
                )
            )

    async with broker(
        disk, metadata, settings=settings, log_settings=SMALL, stops=False
    ) as replicas:
        for value in range(AT_FIRST):
            note(value)
        await until(lambda: metadata.told == ["a"])
        disk.arm(step)
        with suppress(Dead):
            await replicas.moves.alter(AT, "/b")
        for value in range(AT_FIRST, AT_FIRST + 8):
            note(value)
            await loop_turns(3)
        await loop_turns(20)
        assert disk.is_dead or driver_of(replicas).log.directory == f"/b/{AT}"
    return acknowledged


def plain(disk: SimDisk) -> list[str]:
    return [name for name in "ab" for one in names_in(disk, name) if one == str(AT)]


async def live_on(disk: DyingDisk, metadata: Metadata, acknowledged: list[int], sees: str) -> None:
    """Start again, with metadata that may be old at first; append, die and start once more."""
    for _ in range(2):
        async with broker(
            disk, metadata, log_settings=SMALL, stops=False, first_sees=sees, lost_power=True
        ) as replicas:
            await until(lambda: AT in replicas.drivers)
            found = values_of(driver_of(replicas).log)
            assert [value for value in found if value in acknowledged] == acknowledged
            assert len({*found}) == len(found)
            value = max(found) + 1
            assert append(replicas, value).result().error_code is ErrorCode.NONE
            acknowledged.append(value)
        disk.kill()
    async with broker(disk, metadata, log_settings=SMALL) as replicas:
        await until(lambda: AT in replicas.drivers and not replicas.moves.table.sizes())
        await loop_turns()
        assert [one for one in values_of(driver_of(replicas).log) if one in acknowledged] == (
            acknowledged
        )
        assert len(plain(disk)) == 1
        names = names_in(disk, "a") + names_in(disk, "b")  # between the renames there are two logs
        assert [one for one in names if not one.endswith(STRAY_SUFFIX)] == [str(AT)]
        assert metadata.directory == plain(disk)[0]


@pytest.mark.parametrize("loses_power", [False, True])
@pytest.mark.parametrize("sees", ["a", "b"])
async def test_a_crash_at_any_step_loses_nothing(loses_power: bool, sees: str) -> None:
    for step in count(0, 5 - tries(4)):
        disk, metadata = DyingDisk(), Metadata()
        acknowledged = await die_at(step, disk, metadata, loses_power=loses_power)
        has_ended = not disk.is_dead  # the move came to its end first: these are all steps
        if loses_power:
            disk.crash(Random(step))
        else:
            disk.kill()
        disk.revive()
        await live_on(disk, metadata, acknowledged, sees)
        if has_ended:
            assert step > 50
            return


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
            assert not driver_of(replicas).is_swapping_log
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


async def test_a_directory_that_keeps_the_old_log_is_not_used_any_more() -> None:
    """Else its next start would find two logs, of which the old has the partition's name."""
    disk, metadata = SimDisk(), Metadata()

    def keep_name(operation: str, path: str) -> None:
        if operation == "rename" and path == f"/a/{AT}":
            raise OSError(errno.EIO, "the rename is refused", path)

    async with broker(disk, metadata, log_settings=SMALL) as replicas:
        append(replicas, 0)
        await until(lambda: metadata.told == ["a"])
        disk.on_operation = keep_name
        await replicas.moves.alter(AT, "/b")
        await until_in(replicas, "b")
        assert [one.path for one in replicas._logs.online] == ["/b", "/c"]
        assert append(replicas, 1).result().base_offset == 1
        disk.on_operation = None


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
