"""Faults of a machine's disk: full, failing, slow, and damage to files while a broker is down.

A successful fsync is always durable. The damage spares the files of the metadata quorum: losses of
a voter are another subject (decision 2).
"""

import errno
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from quorumlog.chaos.faults.copies import KINDS
from quorumlog.chaos.faults.disks import NAMES, READS, SYNCS, WRITES, SlowDisk
from quorumlog.chaos.node_simulation.process import OWNER
from quorumlog.chaos.simulation.kernel.sim_disk import DirectoryCopy, SimDisk
from quorumlog.storage.io.checkpoints import decode_partition_metadata
from quorumlog.wire.codec.identifiers import TopicId

METADATA_FILE: Final = "partition.metadata"
QUORUM_DIRECTORY: Final = "__cluster_metadata-0"
OF_PARTITION: Final = re.compile(rf"/(?!{QUORUM_DIRECTORY}/)[^/]+-\d+/[^/]+$")
"""Matches the path of a file in a partition's directory."""

_FILES: Final = {
    "log": re.compile(r"\.log$"),
    "metadata": re.compile(r"/partition\.metadata$"),
    "checkpoint": re.compile(r"checkpoint$"),
    "index": re.compile(r"\.(index|timeindex|txnindex|snapshot)$"),
}
"""First word of a kind -> the files that it damages."""


def damage(disk: SimDisk, directories: Sequence[str], kind: int, rng: Random) -> str:
    """Damage one file below `directories`; return a description, or "" if there is no such file.

    kind: an index of KINDS in faults/copies.py.
    """
    of, how = KINDS[kind].split("_")
    paths = [
        (path, len(content))
        for path, content in disk.files()
        if _FILES[of].search(path)
        and (path.rpartition("/")[0] in directories or OF_PARTITION.search(path))
    ]
    if how != "gone":
        paths = [(path, size) for path, size in paths if size]
    if not paths:
        return ""
    path, size = rng.choice(paths)
    match how:
        case "bit":
            return f"{path}: a bit of byte {disk.flip_bit(path, rng)} of {size} is flipped"
        case "cut":
            kept = rng.randrange(size)
            disk.cut(path, kept)
            return f"{path} is cut to {kept} of {size} bytes"
        case _:
            disk.lose(path)
            return f"{path} is gone"


def put_back(disk: SimDisk, directory: str, copy: DirectoryCopy) -> None:
    """Replace a log directory by a copy, except for the metadata quorum's files in it."""
    of_quorum = f"{directory}/{QUORUM_DIRECTORY}"
    kept = disk.copied(of_quorum)
    disk.put_back(directory, copy)
    if kept:
        disk.put_back(of_quorum, kept)


def is_identified(disk: SimDisk, path: str, topic_id: TopicId) -> bool:
    """Return whether a partition's directory has a valid `partition.metadata` of this topic id."""
    content = disk.copied(path).get("", {}).get(METADATA_FILE, b"")
    try:
        return decode_partition_metadata(content).topic_id == topic_id
    except ValueError:
        return False


HEALTHY: Final = SlowDisk(min_us=100, spread_us=3_000)
_KINDS: Final = {
    "pread": READS, "listdir": READS, "append": WRITES, "truncate": WRITES, "fsync": SYNCS,
    "fsync_dir": SYNCS, "open": NAMES, "mkdir": NAMES, "rename": NAMES, "unlink": NAMES,
    "rmdir": NAMES,
}  # fmt: skip
"""A SimDisk's call that can fail -> its kind in faults/disks.py."""


class DiskFaults:
    """The state of one machine's disk. Set `disk` when the disk is replaced.

    `fails_below`: only calls on paths with this prefix fail; "": all. With several log
    directories, it is the last one.

    `evicts_pages`: pages that a failed fsync has dropped may leave the page cache when the process
    ends; else the machine reboots then, with the content of its disk.

    Invariants:
      1. An fsync fails only if `may_lose_memory` allows the loss of unsynced writes; where losses
         are judged, it always does.
      2. `has_failed`: the process got an error, and may have given up the log directory.
         `has_lost_pages`: an fsync has failed, and reads show pages that the disk lacks.
    """

    def __init__(
        self,
        rng: Random,
        *,
        may_lose_memory: Callable[[], bool],
        pages_lost: Callable[[], None],
        happened: Callable[[str], None],
    ) -> None:
        self.disk = SimDisk()
        self.has_failed = self.has_lost_pages = False
        self.fails_below = ""
        self.evicts_pages = False
        self._rng: Final = rng
        self._may_lose_memory: Final = may_lose_memory
        self._pages_lost: Final = pages_lost
        self._happened: Final = happened
        self._failing = 0  # bits of faults/disks.py
        self._fails_next_fsync = self._fails_next_flush = False
        self._slow = HEALTHY
        self._fsyncs = 0  # since the last `took_s`

    @property
    def is_broken(self) -> bool:
        """True while calls fail: the process may end at any time. On a full disk it must not."""
        return bool(self._failing)

    # --- operations of a nemesis ---

    def fill(self, left_bytes: int) -> None:
        """Limit the disk to `left_bytes` more than it holds."""
        self._happened(f"fill {left_bytes}")
        self.disk.capacity_bytes = self.disk.bytes_used() + left_bytes

    def free(self) -> None:
        """Remove the limit of the disk's capacity."""
        self._happened("free")
        self.disk.capacity_bytes = None

    def fail(self, calls: int) -> None:
        """Let these kinds of calls fail, as bits of faults/disks.py; 0: none."""
        self._happened(f"fail {calls}")
        self._failing = calls

    def fail_next_fsync(self) -> None:
        """Let the next fsync fail at which the machine may lose its memory."""
        self._fails_next_fsync = True

    def fail_next_flush(self) -> None:
        """Let the next such fsync of a partition's log fail."""
        self._fails_next_flush = True

    def spare_next_fsync(self) -> None:
        """Cancel the failure of the next fsync, if it is still pending."""
        self._fails_next_fsync = self._fails_next_flush = False

    def slow(self, spread_us: int) -> None:
        """Let each fsync take up to `spread_us`, beyond a healthy disk's least time."""
        self._happened(f"fsyncs {spread_us}")
        self._slow = replace(HEALTHY, spread_us=spread_us)

    # --- for the machine ---

    def process_began(self) -> None:
        """Reset `has_failed`, which is about the process before."""
        self.has_failed = False

    def memory_lost(self) -> None:
        """Reset `has_lost_pages`: the page cache is gone, and reads show the disk's content."""
        self.has_lost_pages = False

    def on_operation(self, operation: str, path: str) -> None:
        """Raise OSError if the operation is to fail; see SimDisk."""
        if OWNER.get() is None:
            return  # the oracle's reads never fail
        kind = _KINDS.get(operation, 0)
        if operation == "fsync":
            self._fsyncs += 1
        failing = self._failing if path.startswith(self.fails_below) else 0
        fails = kind & failing or (operation == "fsync" and self._fails_once(path))
        if not fails or (kind == SYNCS and not (self.has_lost_pages or self._may_lose_memory())):
            return
        if kind == SYNCS:
            self.spare_next_fsync()
            self.has_lost_pages = True
            self._pages_lost()
        self.has_failed = True
        self._happened(f"EIO {operation} {path}")
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def _fails_once(self, path: str) -> bool:
        is_log = path.endswith(".log") and OF_PARTITION.search(path) is not None
        return self._fails_next_fsync or (self._fails_next_flush and is_log)

    def took_s(self) -> float:
        """Draw the time of the fsyncs since the last call, in s."""
        fsyncs, self._fsyncs = self._fsyncs, 0
        taken_us = 0.0
        for _ in range(fsyncs):
            fraction = self._rng.random()
            taken_us += self._slow.min_us
            taken_us += self._slow.spread_us * fraction * fraction * fraction
        return taken_us / 1e6
