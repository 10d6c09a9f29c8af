"""Disks that fail or lose their power at a chosen operation, and bytes with one bit flipped."""

import errno
import os
from collections.abc import Callable, Container, Iterator

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk

WRITES = frozenset({"append", "truncate", "fsync", "fsync_dir", "rename", "unlink"})


class PowerLost(Exception):
    """Not an OSError, so that no code of the product catches it."""


def lose_power_at(
    disk: SimDisk,
    number: int,
    act: Callable[[], object],
    operations: Container[str] | None = WRITES,
) -> bool:
    """Do `act`; the power goes at the operation of this number. False: it has ended before.

    `operations`: those that count; None: all. A test then calls `disk.crash`.
    """
    left = number

    def count(operation: str, path: str) -> None:
        nonlocal left
        left -= operations is None or operation in operations
        if left < 0:
            raise PowerLost(f"{operation} {path}")

    disk.on_operation = count
    try:
        act()
    except PowerLost:
        return True
    finally:
        disk.on_operation = None
    return False


def fail_on(operation: str, suffix: str = "", code: int = errno.EIO) -> Callable[[str, str], None]:
    """Let an operation on files of this suffix fail: a value for `disk.on_operation`."""

    def on_operation(called: str, path: str) -> None:
        if called == operation and path.endswith(suffix):
            raise OSError(code, os.strerror(code), path)

    return on_operation


def flipped_bits(content: bytes) -> Iterator[bytes]:
    """Yield the content with each of its bits flipped in turn."""
    for position in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[position // 8] ^= 1 << position % 8
        yield bytes(damaged)
