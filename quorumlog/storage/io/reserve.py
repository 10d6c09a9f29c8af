"""A reserve of room for the small files of a log directory, on a disk that is full.

A vote, a checkpoint or the mark of a clean stop replaces a file of a few hundred bytes: it needs
room for the new one beside the old one. So each log directory holds a file of zeros, which is cut
by a step when a small file finds no room, and is filled up again as soon as there is some.
docs/decisions/0150-a-voter-without-room-refuses-and-lives.md
"""

from typing import TYPE_CHECKING, Final

from quorumlog.storage.errors import NO_ROOM

if TYPE_CHECKING:
    from quorumlog.storage.io.disk import Disk

RESERVE_FILE: Final = ".reserve"
RESERVE_BYTES: Final = 1 << 20
STEP_BYTES: Final = 64 << 10  # a larger file gets nothing


def keep_reserve(disk: "Disk", log_dir: str) -> None:
    """Fill the reserve of a log directory as far as there is room. Raises OSError, but no ENOSPC.

    It is written, because a file that is only long may have no room of its own.
    """
    try:
        file = disk.open(f"{log_dir}/{RESERVE_FILE}", create=True)
        try:
            if file.size() > RESERVE_BYTES:  # two threads have filled it
                file.truncate(RESERVE_BYTES)
            while (missing := RESERVE_BYTES - file.size()) > 0:
                file.append([bytes(min(missing, STEP_BYTES))])
        finally:
            file.close()
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise


def has_made_room(disk: "Disk", path: str, size: int, error: OSError) -> bool:
    """Give up a step of the reserve for a file of `size` bytes that found no room; False: none.

    Raises OSError.
    """
    if error.errno not in NO_ROOM or size > STEP_BYTES:
        return False
    log_dir, left = _reserve_above(disk, path)
    if log_dir is None or left == 0:
        return False
    file = disk.open(f"{log_dir}/{RESERVE_FILE}")
    try:
        file.truncate(max(0, left - STEP_BYTES))
    finally:
        file.close()
    return True


def refill_reserve(disk: "Disk", path: str) -> None:
    """Fill up the reserve that is meant for this file, if a step of it was given up."""
    log_dir, size = _reserve_above(disk, path)
    if log_dir is not None and size < RESERVE_BYTES:
        keep_reserve(disk, log_dir)


def _reserve_above(disk: "Disk", path: str) -> tuple[str | None, int]:
    """Return the log directory with the reserve, and its size; None: there is no reserve.

    A small file lies in a log directory, or in a directory there.
    """
    for _ in range(2):
        path = path.rpartition("/")[0]
        try:
            return path, disk.size(f"{path}/{RESERVE_FILE}")
        except (FileNotFoundError, NotADirectoryError):
            continue
    return None, 0
