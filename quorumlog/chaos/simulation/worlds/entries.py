"""Records in outline, as the oracles compare them."""

from typing import Final, NamedTuple

from quorumlog.wire.codec.records import decode_batch, iterate_headers

CONTROL: Final = b"LeaderChange"
VOTERS: Final = b"Voters "  # and the value of the record
_LEADER_CHANGE_KEY: Final = b"\0\0\0\2"
_VOTERS_KEY: Final = b"\0\0\0\6"


class Entry(NamedTuple):
    """One record. `content` is its value, which no other record of the run has."""

    epoch: int
    content: bytes
    position: int  # in its batch


def entries_of(records: bytes) -> list[Entry]:
    """Return the records of whole batches."""
    return [
        Entry(header.leader_epoch, content_of(record.key, record.value or b""), index)
        for position, header in iterate_headers(records)
        for index, record in enumerate(decode_batch(records, position))
    ]


def content_of(key: bytes | None, value: bytes) -> bytes:
    """Return the content of the entry of a record."""
    if key == _LEADER_CHANGE_KEY:
        return CONTROL
    return VOTERS + value if key == _VOTERS_KEY else value
