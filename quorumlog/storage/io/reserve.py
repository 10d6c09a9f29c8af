"""Reserved space for the small files of a log directory, for when the disk is full.

A vote, a checkpoint or the marker of a clean shutdown replaces a file of a few hundred bytes: it
needs space for the new file beside the old one. So each log directory holds a file of zeros. It is
cut by a step when a small file finds no space, and is refilled as soon as there is space.
docs/decisions/0021-disk-errors.md
"""

from contextlib import closing
from typing import TYPE_CHECKING, Final

from quorumlog.storage.errors import NO_ROOM

if TYPE_CHECKING:
    from quorumlog.storage.io.disk import Disk

RESERVE_FILE: Final = ".reserve"
RESERVE_BYTES: Final = 1 << 20
STEP_BYTES: Final = 64 << 10  # a larger file gets no reserve


def keep_reserve(disk: "Disk", log_dir: str) -> None:
    """Fill the reserve of a log directory as far as there is space. Raises OSError, but no ENOSPC.

    It writes the zeros, because a sparse file reserves no space.
    """
    try:
        with closing(disk.open(f"{log_dir}/{RESERVE_FILE}", create=True)) as file:
            if file.size() > RESERVE_BYTES:  # two threads filled it at once
                file.truncate(RESERVE_BYTES)
            while (missing := RESERVE_BYTES - file.size()) > 0:
                file.append([bytes(min(missing, STEP_BYTES))])
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise


def has_made_room(disk: "Disk", path: str, size: int, error: OSError) -> bool:
    """Release a step of the reserve for a file of `size` bytes; False if that cannot help.

    `error`: why its write failed. Raises OSError.
    """
    if error.errno not in NO_ROOM or size > STEP_BYTES:
        return False
    log_dir, left = _reserve_above(disk, path)
    if log_dir is None or left == 0:
        return False
    with closing(disk.open(f"{log_dir}/{RESERVE_FILE}")) as file:
        file.truncate(max(0, left - STEP_BYTES))
    return True


def refill_reserve(disk: "Disk", path: str) -> None:
    """Refill the reserve of this file's log directory, if a step of it was released."""
    log_dir, size = _reserve_above(disk, path)
    if log_dir is not None and size < RESERVE_BYTES:
        keep_reserve(disk, log_dir)


def _reserve_above(disk: "Disk", path: str) -> tuple[str | None, int]:
    """Return the log directory of `path` and the size of its reserve; None: it has no reserve.

    A small file lies in a log directory, or in a subdirectory of one.
    """
    for _ in range(2):
        path = path.rpartition("/")[0]
        try:
            return path, disk.size(f"{path}/{RESERVE_FILE}")
        except (FileNotFoundError, NotADirectoryError):
            continue
    return None, 0
