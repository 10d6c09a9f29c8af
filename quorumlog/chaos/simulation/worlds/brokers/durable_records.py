"""The records of a log that survive a power loss, read from the disk itself."""

from collections.abc import Iterator
from contextlib import suppress

from quorumlog.chaos.simulation.kernel.sim_disk import SimDisk
from quorumlog.chaos.simulation.worlds.brokers.disk_queue import LOG_DIR
from quorumlog.chaos.simulation.worlds.entries import Entry, entries_of
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.records import iterate_headers, validate_batch


def durable_entries(disk: SimDisk, at: TopicPartition, start: int) -> list[Entry]:
    """Return the durable records of a log from offset `start` on, up to the first gap."""
    entries: list[Entry] = []
    with suppress(CorruptBatch):
        for segment in _durable_segments(disk, f"{LOG_DIR}/{at}", start):
            for position, header in iterate_headers(segment):
                if header.next_offset <= start:
                    continue
                if header.base_offset != start + len(entries):
                    return entries
                validate_batch(segment, position, header)
                entries += entries_of(segment[position : position + header.size_in_bytes])
    return entries


def _durable_segments(disk: SimDisk, directory: str, start: int) -> Iterator[bytes]:
    """Yield the durable content of the segments that may hold offsets from `start` on."""
    if not disk.exists(directory):
        return
    names = [name for name in disk.listdir(directory) if name.endswith(".log")]
    first = sum(1 for name in names[1:] if int(name.removesuffix(".log")) <= start)
    for name in names[first:]:
        content = disk.durable_bytes(f"{directory}/{name}")
        if content is None:
            return
        yield content
