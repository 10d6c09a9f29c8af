"""The committed batches of one log, and the prefix of them that the files of a copy hold."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from quorumlog.storage.io.batch_scan import BrokenSegment
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.records import BatchHeader, read_header, validate_checksum


class Batch(NamedTuple):
    """The identity of a batch: batches with equal fields hold the same records."""

    next_offset: int
    leader_epoch: int
    crc: int


class CommittedLog:
    """The committed batches of one log, from the first node on which each was committed."""

    def __init__(self) -> None:
        self.end_offset = 0
        self._batches: Final[dict[int, Batch]] = {}

    def take(
        self, headers: Iterable[BatchHeader], below: int, *, is_compacted: bool = False
    ) -> str:
        """Compare a node's committed batches; return the first difference or damage, or "".

        Batches that end above `below` are not compared.
        """
        try:
            for header in headers:
                if header.next_offset > below:
                    break
                if is_compacted and not header.record_count:
                    continue
                crc = 0 if is_compacted else header.crc
                batch = Batch(header.next_offset, header.leader_epoch, crc)
                known = self._batches.setdefault(header.base_offset, batch)
                if known != batch:
                    return f"at offset {header.base_offset}: {batch} where {known} was committed"
        except BrokenSegment as error:
            return str(error)
        self.end_offset = max(self.end_offset, below)
        return ""

    def cut(self, end_offset: int) -> None:
        """Drop the batches that end above `end_offset`: no copy holds them any more."""
        self.end_offset = end_offset
        for base_offset in [*self._batches]:
            if self._batches[base_offset].next_offset > end_offset:
                del self._batches[base_offset]

    def held_by(self, segments: Mapping[str, bytes], *, is_compacted: bool = False) -> int:
        """Return the end of the prefix of this log that a partition's files hold without a gap.

        Each batch must match its checksum and the committed batch; in a compacted topic, only its
        checksum.
        """
        names = sorted(name for name in segments if name.endswith(".log"))
        end = int(names[0].removesuffix(".log")) if names else 0
        for name in names:
            position, content = 0, segments[name]
            while position < len(content):
                try:
                    header = read_header(content, position)
                    validate_checksum(content, position, header)
                except CorruptBatch:
                    return min(end, self.end_offset)
                if not is_compacted:
                    batch = Batch(header.next_offset, header.leader_epoch, header.crc)
                    is_other = self._batches.get(header.base_offset, batch) != batch
                    if header.base_offset != end or is_other:
                        return min(end, self.end_offset)
                end = header.next_offset
                position += header.size_in_bytes
        return min(end, self.end_offset)
