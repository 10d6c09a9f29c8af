"""Records in outline, as the oracles compare them."""

from typing import Final, NamedTuple

from quorumlog.wire.codec.records import Record, decode_batch, iterate_headers

CONTROL: Final = b"LeaderChange"
_LEADER_CHANGE_KEY: Final = b"\0\0\0\2"


class Entry(NamedTuple):
    """One record. `content` is its value, which no other record of the run has."""

    epoch: int
    content: bytes
    position: int  # in its batch


def entries_of(records: bytes) -> list[Entry]:
    """Return the records of whole batches."""
    entries: list[Entry] = []
    for position, header in iterate_headers(records):
        entries += [
            Entry(header.leader_epoch, _content(record), index)
            for index, record in enumerate(decode_batch(records, position))
        ]
    return entries


def _content(record: Record) -> bytes:
    """Return the value; a LeaderChange is told by its epoch alone."""
    return CONTROL if record.key == _LEADER_CHANGE_KEY else record.value or b""
