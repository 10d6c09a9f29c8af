"""The usual Fetch response, encoded without message objects: records or offsets, and no error.

Equal, byte for byte, to `encode_response` of the same FetchResponse, from version 13 on: a property
test compares them. Source: KIP-516 (topic ids), KIP-482.
"""

from collections.abc import Sequence
from struct import Struct as Packer
from typing import Final, NamedTuple

from quorumlog.wire.codec.encoder import COPY_BELOW_BYTES
from quorumlog.wire.codec.message import Buffer, EncodedResponse
from quorumlog.wire.codec.messages.fetch import FetchResponse
from quorumlog.wire.codec.varint import UVARINT_LIMIT, UVARINTS, encode_uvarint

SINCE_VERSION: Final = 13
_NO_PREFERRED_REPLICA: Final = -1
# Size, correlation id, tagged fields of the header, throttle time, error code, session id.
_HEAD: Final = Packer(">iibihi")
_HEAD_SIZE: Final = _HEAD.size - 4
# Index, error code, high watermark, last stable offset, log start offset, count of aborted
# transactions and 1 (0: null), preferred replica.
_PARTITION: Final = Packer(">ihqqqBi")


class UsualPartition(NamedTuple):
    """One partition without an error, a divergence or a preferred replica.

    `records`: whole batches, in order. `is_read_committed`: the response has a list of aborted
    transactions, an empty one.
    """

    topic_id: bytes
    partition_index: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    is_read_committed: bool
    records: Sequence[Buffer]


class FetchedRecords(EncodedResponse):
    """A FetchResponse of usual partitions; neighbours of one topic share an entry."""

    __slots__ = ("partitions", "session_id")
    API_KEY = FetchResponse.API_KEY
    VERSIONS = range(SINCE_VERSION, FetchResponse.VERSIONS.stop)
    FLEXIBLE_SINCE = FetchResponse.FLEXIBLE_SINCE

    def __init__(self, session_id: int, partitions: Sequence[UsualPartition]) -> None:
        self.session_id = session_id
        self.partitions = partitions

    def frame(self, correlation_id: int) -> list[Buffer]:
        """Return the frame with its length, as buffers to be sent in order."""
        partitions = self.partitions
        topics = _runs_of_topics(partitions)
        chunks: list[Buffer] = []
        parts: list[Buffer] = [_count(len(topics))]
        at = 0
        for length in topics:
            parts += (partitions[at].topic_id, _count(length))
            for partition in partitions[at : at + length]:
                parts = _add(partition, chunks, parts)
            parts.append(b"\0")  # the topic has no tagged fields
            at += length
        parts.append(b"\0")  # nor has the response
        chunks.append(b"".join(parts))
        size = _HEAD_SIZE + sum(map(len, chunks))
        chunks[0] = _HEAD.pack(size, correlation_id, 0, 0, 0, self.session_id) + chunks[0]
        return chunks


def _runs_of_topics(partitions: Sequence[UsualPartition]) -> list[int]:
    """Return the lengths of the runs of partitions with the same topic."""
    runs: list[int] = []
    last = None
    for partition in partitions:
        if partition.topic_id == last:
            runs[-1] += 1
        else:
            last = partition.topic_id
            runs.append(1)
    return runs


def _add(partition: UsualPartition, chunks: list[Buffer], parts: list[Buffer]) -> list[Buffer]:
    """Add the bytes of a partition, large records uncopied; return the parts of the next chunk."""
    _, index, high_watermark, last_stable_offset, log_start, is_read_committed, records = partition
    size = sum(map(len, records))
    head = _PARTITION.pack(
        *(index, 0, high_watermark, last_stable_offset, log_start),
        *(int(is_read_committed), _NO_PREFERRED_REPLICA),
    )
    parts += (head, _count(size))
    if size < COPY_BELOW_BYTES:
        parts += records
    else:
        chunks.append(b"".join(parts))
        chunks += records
        parts = []
    parts.append(b"\0")  # the partition has no tagged fields
    return parts


def _count(size: int) -> bytes:
    """Return the compact encoding of a length."""
    return UVARINTS[size + 1] if size + 1 < UVARINT_LIMIT else encode_uvarint(size + 1)
