"""Damage by the system or a person to the files of a log, and its repair by a person.

Power is lost again and again before the first flush (docs/decisions, 115). A segment is gone after
a clean stop (116). The system loses bytes that were written to a file, and the
error with them, while the file is not open (107).
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from quorumlog.broker.partitions.log.log_directory import OrphanedRecords
from quorumlog.chaos.simulation.kernel.machine import Machine
from quorumlog.chaos.simulation.kernel.randomness import Rng
from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.storage.errors import LacksRecords, StorageError
from quorumlog.storage.io.checkpoints import write_partition_metadata
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.records import BatchHeader, iterate_headers, validate_batch


class Damage:
    """Of the log of one machine, in `directory`."""

    def __init__(self, machine: Machine, rng: Rng, directory: str) -> None:
        self._machine: Final = machine
        self._rng: Final = rng
        self._directory: Final = directory
        self._taken: tuple[str, bytes] | None = None  # the path and the content of a segment

    def lose_power_soon(self, within_us: int) -> None:
        """Lose the power at a time that is drawn."""
        self._machine.later(
            self._rng.randrange(1, within_us),
            lambda: self._machine.stop(within_us, loses_power=True),
        )

    def maybe_take_segment(self, *, may_have_gaps: bool) -> None:
        """Take a segment away from a log that was closed cleanly, or none.

        `may_have_gaps`: nobody could notice that one between two others is gone.
        """
        self._taken = None
        paths = [path for path, _ in self._machine.disk.files()]
        segments = [path for path in paths if path.endswith(".log")]
        if segments and self._rng.random() < 0.5:
            place = self._rng.choice((0, -1))
            if len(segments) > 2 and not may_have_gaps and self._rng.random() < 0.5:
                place = self._rng.randrange(1, len(segments) - 1)
            path = segments[place]
            with _undisturbed(self._machine.disk) as disk:
                file = disk.open(path)
                self._taken = path, file.pread(file.size(), 0)
                disk.unlink(path)
                disk.fsync_dir(self._directory)

    def lose_handles(self) -> None:
        """Lose the unfsynced bytes of the segments; no later fsync reports it."""
        self._machine.disk.lose_handles(lambda path: path.endswith(".log"))

    def repair(self, error: StorageError) -> None:
        """Follow the error message: restore the missing file, or name the topic of the records.

        A person may be late: the node starts once more before.
        """
        if self._rng.random() < 0.5:
            return
        with _undisturbed(self._machine.disk) as disk:
            if isinstance(error, OrphanedRecords):
                with suppress(OSError):  # after a disk error the next start fails in the same way
                    write_partition_metadata(disk, error.path, error.topic_id)
            elif isinstance(error, LacksRecords) and self._taken is not None:
                path, content = self._taken
                file = disk.open(path, create=True)
                file.append([content])
                file.fsync()
                disk.fsync_dir(self._directory)
                self._taken = None


def records_on_disk(disk: SimDisk, directory: str) -> int:
    """Count the records of the whole batches with which a log begins, in its first segment."""
    ends = [int(header.next_offset) for _, header in _batches_on_disk(disk, directory)]
    return ends[-1] if ends else 0


def _batches_on_disk(disk: SimDisk, directory: str) -> Iterator[tuple[bytes, BatchHeader]]:
    """Yield the whole batches with which a log begins, in its first segment."""
    content = dict(disk.files()).get(f"{directory}/{0:020d}.log", b"")
    end_offset = 0
    with suppress(CorruptBatch):
        for position, header in iterate_headers(content):
            validate_batch(content, position, header)
            if header.base_offset != end_offset:
                return
            end_offset = header.next_offset
            yield content[position : position + header.size_in_bytes], header


@contextmanager
def _undisturbed(disk: SimDisk) -> Iterator[SimDisk]:
    """Use the disk while its faults wait."""
    faults, disk.on_operation = disk.on_operation, None
    try:
        yield disk
    finally:
        disk.on_operation = faults
