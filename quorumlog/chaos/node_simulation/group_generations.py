"""Checks that a group's generation never decreases in the committed log of the offsets topic.

A new coordinator that has not loaded a group's generation begins again at 1; then members of an
older generation could commit offsets. A deleted group may begin again at 1.
"""

from typing import Final

from quorumlog.broker.groups.core.records import GroupRecord, decode
from quorumlog.storage.io.log import Log
from quorumlog.wire.codec.records import decode_batches

_READ_BYTES: Final = 1 << 20


class GroupGenerations:
    """The groups in the committed log of one partition.

    Each record is read once, from the first replica on which it is committed: that all replicas
    agree below the high watermark is a rule of its own.
    """

    def __init__(self) -> None:
        self._end_offset = 0
        self._generations: Final[dict[str, int]] = {}

    def take(self, log: Log, high_watermark: int) -> str:
        """Read the newly committed records; return a violation, or ""."""
        self._end_offset = max(self._end_offset, log.log_start_offset)
        while self._end_offset < high_watermark:
            read = log.read(self._end_offset, max_bytes=_READ_BYTES, end_offset=high_watermark)
            before = self._end_offset
            for header, records in decode_batches(read.records):
                self._end_offset = max(self._end_offset, header.next_offset)
                for record in () if header.is_control else records:
                    if record.key is not None and (wrong := self._wrong(record.key, record.value)):
                        return f"{wrong} (in the batch at offset {header.base_offset})"
            if self._end_offset == before:
                break  # the rest of a batch is not committed
        return ""

    def _wrong(self, key: bytes, value: bytes | None) -> str:
        found = decode(key, value)
        if not isinstance(found, GroupRecord):
            return ""
        if found.stored is None:
            self._generations.pop(found.group_id, None)
            return ""
        before = self._generations.get(found.group_id, 0)
        now = self._generations[found.group_id] = found.stored.generation_id
        return f"group {found.group_id} has generation {now} after {before}" if now < before else ""
