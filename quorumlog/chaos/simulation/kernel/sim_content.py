"""The content of a simulated file: written, durable, and after a power loss."""

from random import Random
from typing import Final, NamedTuple


class Overwrite(NamedTuple):
    """Bytes that take the place of others."""

    position: int
    data: bytes


FAR_FUTURE_MS: Final = 1 << 62
Change = bytes | int | Overwrite  # appended bytes, or the size the file was cut to, or bytes within


class SimContent:
    """The content of a file. `changes` lead from `durable` to `written`."""

    def __init__(self, number: int) -> None:
        self.number: Final = number
        self.durable = bytearray()
        self.written = bytearray()
        self.changes: list[Change] = []
        self.has_lost_pages = False
        self.written_ms = FAR_FUTURE_MS

    # A LentFile: it is in memory, and outlives its names and handles.

    def fileno(self) -> int:
        """Return no descriptor: a simulated transport reads the bytes."""
        return -1

    def pread(self, size: int, position: int) -> bytes:
        """Return the bytes as they are now."""
        return bytes(self.written[position : position + size])

    def is_cached(self, size: int, position: int) -> bool:
        """Return True."""
        return position + size <= len(self.written)

    def append(self, data: bytes) -> None:
        """Write at the end."""
        self.written += data
        self.changes.append(data)

    def truncate(self, size: int) -> None:
        """Cut, or fill up with zeros."""
        _cut(self.written, size)
        self.changes.append(size)

    def overwrite(self, data: bytes, position: int) -> None:
        """Write within the file."""
        if position + len(data) > len(self.written):
            raise ValueError(f"{position + len(data)} is behind the end, {len(self.written)}")
        change = Overwrite(position, data)
        _apply(self.written, change)
        self.changes.append(change)

    def fsync(self) -> None:
        """Make all changes durable."""
        for change in self.changes:
            _apply(self.durable, change)
        self.changes.clear()

    def lose_pages(self) -> None:
        """Drop the unsynced changes, but keep them visible to reads: an fsync has failed."""
        self.has_lost_pages = True
        self.changes = [
            bytes(len(change)) if isinstance(change, bytes) else change
            for change in self.changes
            if not isinstance(change, Overwrite)  # the disk keeps its own bytes there
        ]

    def forget_pages(self, *, keeps_size: bool = True) -> None:
        """Let reads see the bytes of the disk: with the unsynced sizes, or without."""
        self.has_lost_pages = False
        if keeps_size:
            self.fsync()
        self.changes.clear()
        self.written = bytearray(self.durable)

    def crash(self, rng: Random) -> None:
        """Keep a random beginning of the changes; perhaps tear the next one."""
        kept = rng.randint(0, len(self.changes))
        for change in self.changes[:kept]:
            _apply(self.durable, change)
        if kept < len(self.changes):
            torn = self.changes[kept]
            if isinstance(torn, bytes) and torn and rng.random() < 0.5:
                self.durable += _torn(torn, rng)
            elif isinstance(torn, Overwrite) and rng.random() < 0.5:
                part = _torn(torn.data, rng)  # missing bytes: the old ones, zeros, or garbage
                _apply(self.durable, Overwrite(torn.position, part))
        self.written = bytearray(self.durable)
        self.changes.clear()
        self.has_lost_pages = False


def _apply(content: bytearray, change: Change) -> None:
    if isinstance(change, int):
        _cut(content, change)
    elif isinstance(change, Overwrite):
        content[change.position : change.position + len(change.data)] = change.data
    else:
        content += change


def _cut(content: bytearray, size: int) -> None:
    if size <= len(content):
        del content[size:]
    else:
        content += bytes(size - len(content))


def _torn(data: bytes, rng: Random) -> bytes:
    """Return a part of an append; perhaps its size was recorded, and not all of its bytes."""
    cut = rng.randrange(len(data))
    match rng.randrange(3):
        case 0:
            return data[:cut]
        case 1:
            return data[:cut] + bytes(len(data) - cut)
        case _:
            return data[:cut] + rng.randbytes(len(data) - cut)
