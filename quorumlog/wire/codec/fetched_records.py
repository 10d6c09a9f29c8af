"""The usual Fetch response, encoded and decoded by hand: records or offsets, and no error.

Equal to `encode_response` and `decode_whole_response` of the same FetchResponse, from version 13
on: a property test compares them. Source: KIP-516 (topic ids), KIP-482.
"""

from collections.abc import Sequence
from itertools import groupby
from struct import Struct as Packer
from typing import Any, Final, Protocol, cast

from quorumlog.wire.codec.decoder import DECODING_ERRORS
from quorumlog.wire.codec.encoder import COPY_BELOW_BYTES
from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.message import Buffer, EncodedResponse, Sendable, contents
from quorumlog.wire.codec.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from quorumlog.wire.codec.varint import UVARINT_LIMIT, UVARINTS, encode_uvarint, finish_uvarint

SINCE_VERSION: Final = 13
_NO_PREFERRED_REPLICA: Final = -1
_SEVERAL_BYTES: Final = 0x80  # a first byte of a compact length from here on is not the only one
# Size, correlation id, tagged fields of the header, throttle time, error code, session id.
_HEAD: Final = Packer(">iibihi")
_HEAD_SIZE: Final = _HEAD.size - 4
_RESPONSE: Final = Packer(">ibihi")  # the same without the size
# A response with one partition, up to the count of its records; the bytes behind them.
_OF_ONE: Final = Packer(">iibihiB16sBihqqqBi")
_DECODED_ONE: Final = Packer(">ibihiB16sBihqqqBiB")  # and its first byte, without the size
_NO_TAGGED_FIELDS: Final = bytes(3)  # of the partition, the topic, the response
_OF_ONE_SIZE: Final = _OF_ONE.size - 4 + len(_NO_TAGGED_FIELDS)
_ONE: Final = 2  # the compact encoding of a count of one
# Index, error code, high watermark, last stable offset, log start offset, count of aborted
# transactions and 1 (0: null), preferred replica.
_PARTITION: Final = Packer(">ihqqqBi")


class UsualPartition(Protocol):
    """The answer for one partition: without an error, a divergence or a preferred replica."""

    @property
    def high_watermark(self) -> int: ...  # noqa: D102 - as in PartitionData
    @property
    def last_stable_offset(self) -> int: ...  # noqa: D102 - as in PartitionData
    @property
    def log_start_offset(self) -> int: ...  # noqa: D102 - as in PartitionData
    @property
    def records(self) -> Sequence[Sendable]:
        """Whole batches, in order."""

    @property
    def aborted(self) -> Sequence[object] | None:
        """The aborted transactions, an empty list; None: there is no list."""


class FetchedRecords(EncodedResponse):
    """A FetchResponse of usual partitions; neighbours of one topic share an entry.

    `keys`: of each partition, the id of its topic, and its index.
    """

    __slots__ = ("keys", "partitions", "session_id")
    API_KEY = FetchResponse.API_KEY
    VERSIONS = range(SINCE_VERSION, FetchResponse.VERSIONS.stop)
    FLEXIBLE_SINCE = FetchResponse.FLEXIBLE_SINCE

    def __init__(
        self, session_id: int, keys: Sequence[tuple[Any, int]], partitions: Sequence[UsualPartition]
    ) -> None:
        self.session_id = session_id
        self.keys = keys
        self.partitions = partitions

    def frame(self, correlation_id: int) -> list[Sendable]:
        """Return the frame with its length, to be sent in order. The first chunk is bytes."""
        keys, partitions = self.keys, self.partitions
        if len(partitions) == 1:
            return _frame_of_one(correlation_id, self.session_id, *keys[0], partitions[0])
        found = zip(keys, partitions, strict=True)
        topics = [(topic_id, [*run]) for topic_id, run in groupby(found, lambda one: one[0][0])]
        chunks: list[Sendable] = []
        parts: list[Buffer] = [_count(len(topics))]
        for topic_id, run in topics:
            parts += (topic_id, _count(len(run)))
            for (_, index), partition in run:
                parts = _add(index, partition, chunks, parts)
            parts.append(b"\0")  # the topic has no tagged fields
        parts.append(b"\0")  # nor has the response
        chunks.append(b"".join(parts))
        size = _HEAD_SIZE + sum(map(len, chunks))
        head = _HEAD.pack(size, correlation_id, 0, 0, 0, self.session_id)
        chunks[0] = head + cast(bytes, chunks[0])
        return chunks


def _frame_of_one(
    correlation_id: int, session_id: int, topic_id: bytes, index: int, found: UsualPartition
) -> list[Sendable]:
    """Return the frame of a response with one partition, as most are."""
    records = found.records
    records_size = len(records[0]) if len(records) == 1 else sum(map(len, records))
    count = _count(records_size)
    head = _OF_ONE.pack(
        _OF_ONE_SIZE + len(count) + records_size,
        correlation_id,
        0,  # no tagged fields
        0,  # no throttle
        0,  # no error
        session_id,
        _ONE,
        topic_id,
        _ONE,
        index,
        0,  # no error
        found.high_watermark,
        found.last_stable_offset,
        found.log_start_offset,
        found.aborted is not None,
        _NO_PREFERRED_REPLICA,
    )
    if records_size < COPY_BELOW_BYTES:
        return [b"".join((head, count, *contents(records), _NO_TAGGED_FIELDS))]
    return [head + count, *records, _NO_TAGGED_FIELDS]


def decode_fetched(frame: memoryview) -> tuple[int, FetchResponse] | None:
    """Return correlation id and response, as `decode_response` does; None: it is not the usual one.

    Its records are views into `frame`. A damaged frame is not the usual one.
    """
    try:
        return _decode_one(frame) or _decode_several(frame)
    except (*DECODING_ERRORS, MalformedFrame):
        return None


def _decode_one(frame: memoryview) -> tuple[int, FetchResponse] | None:
    """Return a response with one partition, as most are; None: it is another."""
    fields = _DECODED_ONE.unpack_from(frame)
    correlation_id, tags, throttle_ms, code, session_id, topics, topic_id, count = fields[:8]
    if tags or topics != _ONE or count != _ONE:
        return None
    aborted, preferred, size = fields[13:]
    at = _DECODED_ONE.size
    if size >= _SEVERAL_BYTES:
        size, at = finish_uvarint(frame, at, size)
    stop = at + size - 1
    if size == 0 or aborted > 1 or frame[stop : stop + 3] != _NO_TAGGED_FIELDS:
        return None
    index, error_code, high_watermark, stable, log_start = fields[8:13]
    partition = PartitionData(
        partition_index=index,
        error_code=error_code,
        high_watermark=high_watermark,
        last_stable_offset=stable,
        log_start_offset=log_start,
        aborted_transactions=[] if aborted else None,
        preferred_read_replica=preferred,
        records=frame[at:stop],
    )
    topic = FetchableTopicResponse(topic_id=topic_id, partitions=[partition])
    response = FetchResponse(
        throttle_time_ms=throttle_ms, error_code=code, session_id=session_id, responses=[topic]
    )
    return correlation_id, response


def _decode_several(frame: memoryview) -> tuple[int, FetchResponse] | None:
    """Return a response with any number of partitions; None: one is not usual."""
    correlation_id, tags, throttle_ms, error_code, session_id = _RESPONSE.unpack_from(frame)
    topics, at = frame[_RESPONSE.size], _RESPONSE.size + 1
    if tags or not 0 < topics < _SEVERAL_BYTES:
        return None
    response = FetchResponse(
        throttle_time_ms=throttle_ms, error_code=error_code, session_id=session_id
    )
    for _ in range(topics - 1):
        topic = FetchableTopicResponse(topic_id=bytes(frame[at : at + 16]), partitions=[])
        response.responses.append(topic)
        partitions, at = frame[at + 16], at + 17
        if not 0 < partitions < _SEVERAL_BYTES:
            return None
        for _ in range(partitions - 1):
            partition, at = _decode_partition(frame, at)
            if partition is None:
                return None
            topic.partitions.append(partition)
        if frame[at]:
            return None
        at += 1
    return (correlation_id, response) if frame[at] == 0 else None


def _decode_partition(frame: memoryview, at: int) -> tuple[PartitionData | None, int]:
    """Return the partition at `at`, and the position behind it; None: it is not the usual one."""
    *numbers, aborted, preferred = _PARTITION.unpack_from(frame, at)
    at += _PARTITION.size + 1
    size = frame[at - 1]
    if size >= _SEVERAL_BYTES:
        size, at = finish_uvarint(frame, at, size)
    stop = at + size - 1
    if size == 0 or aborted > 1 or frame[stop]:  # null, or a list, or tagged fields
        return None, at
    partition = _partition(numbers, aborted, preferred, frame[at:stop])
    return partition, stop + 1


def _partition(
    numbers: Sequence[int], aborted: int, preferred: int, records: memoryview
) -> PartitionData:
    index, error_code, high_watermark, stable, log_start = numbers
    return PartitionData(
        partition_index=index,
        error_code=error_code,
        high_watermark=high_watermark,
        last_stable_offset=stable,
        log_start_offset=log_start,
        aborted_transactions=[] if aborted else None,
        preferred_read_replica=preferred,
        records=records,
    )


def _add(
    index: int, found: UsualPartition, chunks: list[Sendable], parts: list[Buffer]
) -> list[Buffer]:
    """Add the bytes of a partition, large records uncopied; return the parts of the next chunk."""
    records = found.records
    size = sum(map(len, records))
    head = _PARTITION.pack(
        *(index, 0, found.high_watermark, found.last_stable_offset, found.log_start_offset),
        *(found.aborted is not None, _NO_PREFERRED_REPLICA),
    )
    parts += (head, _count(size))
    if size < COPY_BELOW_BYTES:
        parts += contents(records)
    else:
        chunks.append(b"".join(parts))
        chunks += records
        parts = []
    parts.append(b"\0")  # the partition has no tagged fields
    return parts


def _count(size: int) -> bytes:
    """Return the compact encoding of a length."""
    return UVARINTS[size + 1] if size + 1 < UVARINT_LIMIT else encode_uvarint(size + 1)
