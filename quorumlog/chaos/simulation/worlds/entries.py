"""Records in outline, as the oracles compare them."""

from typing import Final, NamedTuple

from quorumlog.wire.codec.records import decode_batch, iterate_headers

CONTROL: Final = b"LeaderChange"


class Entry(NamedTuple):
    """One record. `content` is its value, which no other record of the run has."""

    epoch: int
    content: bytes
    position: int  # in its batch
    producer_id: int = -1  # of an idempotent producer


def entries_of(records: bytes) -> list[Entry]:
    """Return the records of whole batches."""
    entries: list[Entry] = []
    for position, header in iterate_headers(records):
        if header.is_control:
            entries.append(Entry(header.leader_epoch, CONTROL, 0))
            continue
        entries += [
            Entry(header.leader_epoch, record.value or b"", index, header.producer_id)
            for index, record in enumerate(decode_batch(records, position))
        ]
    return entries
