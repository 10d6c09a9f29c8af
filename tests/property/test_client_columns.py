"""Tables of `read_table` have the records of `read`: any batches, any portions, spoilt ones too."""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.client.core import columns
from quorumlog.client.core.chunk import Aborted, Chunk
from quorumlog.client.core.columns import SCHEMA, table_of
from quorumlog.client.records import ConsumerRecord
from quorumlog.wire.codec.errors import CorruptBatch
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.records import (
    CRC_END,
    HEADER_BYTES,
    Compression,
    Record,
    encode_batch,
    read_header,
)
from tests.property.test_wire_records import batches, compressions
from tests.support.native import each_lane
from tests.support.sizes import examples

T: Final = TopicPartition("t", 3)
pytestmark = pytest.mark.usefixtures(each_lane.__name__)
SETTINGS = examples(150)
_LARGE: Final = [Record(n, 7, b"k" * n, b"v" * (1 << n)) for n in range(15)]


@st.composite
def logs(draw: st.DrawFn) -> tuple[bytes, list[Aborted], int]:
    """Return batches, the aborted transactions in them, and an offset to begin at."""
    data, aborted, offset = [], [], 100
    for _ in range(draw(st.integers(0, 4))):
        records = draw(batches(base_offset=offset) | st.just(_at(_LARGE, offset)))
        producer = draw(st.sampled_from([-1, 5, 6]))
        batch = encode_batch(
            records,
            base_offset=offset,
            leader_epoch=draw(st.integers(-1, 9)),
            compression=draw(compressions),
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=0 if producer >= 0 else -1,
            is_transactional=producer >= 0,
        )
        offset = records[-1].offset + 1
        if draw(st.booleans()):
            batch = _with_append_time(batch)
        data.append(batch)
        if producer >= 0 and draw(st.booleans()):
            if is_abort := draw(st.booleans()):
                aborted.append(Aborted(read_header(batch).base_offset, producer))
            data.append(_marker(offset, producer, is_abort=is_abort))
            offset += 1
    return b"".join(data), aborted, draw(st.integers(90, offset))


def _at(records: Sequence[Record], base_offset: int) -> list[Record]:
    return [record._replace(offset=base_offset + record.offset) for record in records]


def _marker(offset: int, producer: int, *, is_abort: bool) -> bytes:
    key = b"\0\0\0\0" if is_abort else b"\0\0\0\1"
    return encode_batch(
        [Record(offset, 7, key, b"\0\0\0\0\0\0")],
        base_offset=offset,
        producer_id=producer,
        producer_epoch=0,
        is_control=True,
        is_transactional=True,
    )


def _with_append_time(batch: bytes) -> bytes:
    """Set the bit of the broker's clock, and the checksum."""
    spoilt = bytearray(batch)
    spoilt[CRC_END + 1] |= 0x08
    return _sealed(spoilt)


def _sealed(batch: bytearray) -> bytes:
    from crc32c import crc32c

    batch[CRC_END - 4 : CRC_END] = crc32c(bytes(batch[CRC_END:])).to_bytes(4, "big")
    return bytes(batch)


def rows(table: pa.Table) -> list[ConsumerRecord]:
    assert table.schema == SCHEMA
    table.validate(full=True)
    made = []
    for row in table.to_pylist():
        headers = tuple((one["key"], one["value"]) for one in row.pop("headers"))
        made.append(ConsumerRecord(**T._asdict(), headers=headers, **row))
    return made


def read_all(chunk: Chunk, calls: Sequence[tuple[bool, int]]) -> tuple[list[object], bool]:
    """Read the chunk by these calls, then to its end; return records and positions, and errors.

    calls: whether to read a table, and the most records.
    """
    seen: list[object] = []
    calls = [*calls, *[calls[-1]] * 10_000]
    for is_table, count in calls:
        if chunk.is_empty:
            return seen, False
        try:
            found = rows(chunk.read_table(count)) if is_table else chunk.read(count)
        except CorruptBatch:
            return seen, True
        assert len(found) <= count
        seen += found
        if found and not chunk.is_empty:
            assert chunk.next_offset > found[-1].offset
    raise AssertionError("it does not end")


CALLS = st.lists(st.tuples(st.booleans(), st.sampled_from([1, 2, 5, 500])), min_size=1, max_size=6)


@SETTINGS
@given(logs(), st.booleans(), CALLS)
def test_tables_have_the_records_of_lists(
    log: tuple[bytes, list[Aborted], int], read_committed: bool, calls: list[tuple[bool, int]]
) -> None:
    data, aborted, start = log

    def chunk() -> Chunk:
        return Chunk(T, data, start_offset=start, aborted=aborted, read_committed=read_committed)

    plain, other = chunk(), chunk()
    assert read_all(other, calls) == read_all(plain, [(False, 500)])
    assert (other.next_offset, other.leader_epoch) == (plain.next_offset, plain.leader_epoch)


@SETTINGS
@given(logs(), st.data(), CALLS)
def test_spoilt_batches_are_refused_alike_after_the_records_before_them(
    log: tuple[bytes, list[Aborted], int], data: st.DataObject, calls: list[tuple[bool, int]]
) -> None:
    """A byte of one batch is changed; its checksum fits the new content, or does not."""
    whole = bytearray(log[0])
    places, position = [], 0
    while position < len(whole):
        places.append(position)
        position += read_header(whole, position).size_in_bytes
    if not places:
        return
    start = data.draw(st.sampled_from(places))
    end = start + read_header(whole, start).size_in_bytes
    at = data.draw(st.integers(start + HEADER_BYTES, end - 1))
    whole[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        whole[start:end] = _sealed(whole[start:end])
    try:
        plain, other = (Chunk(T, bytes(whole), start_offset=log[2]) for _ in range(2))
    except CorruptBatch:
        return
    assert read_all(other, calls) == read_all(plain, [(False, 500)])


@pytest.mark.parametrize("compression", Compression)
def test_usual_batches_are_decoded_at_once(
    compression: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the properties compare two decoders: null and empty contents, headers, large ones."""
    monkeypatch.delattr(columns, "_table_one_by_one")
    headers = (("a", b"1"), ("", None))
    many = [Record(n, 10**12 + n, None, b"%d" % n, headers[: n % 3]) for n in range(300)]
    for records in (many, _LARGE, [Record(0, 5, b"", None), Record(9, 4, None, b"")]):
        batch = encode_batch(records, compression=compression)
        chunk = Chunk(T, batch, start_offset=0)
        assert rows(chunk.read_table(500)) == Chunk(T, batch, start_offset=0).read(500)


@pytest.mark.parametrize("base_timestamp", [2**63 - 1, 2**63 - 2])
def test_a_timestamp_that_is_no_int64_is_corrupt(base_timestamp: int) -> None:
    header = read_header(encode_batch([Record(0, 1, None, None)]))
    header = header._replace(base_timestamp=base_timestamp)
    body = b"\x0c\0\2\0\1\1\0"  # one millisecond later
    if base_timestamp == 2**63 - 2:
        assert table_of([(header, body)], 0)["timestamp_ms"].to_pylist() == [2**63 - 1]
    else:
        with pytest.raises(CorruptBatch, match="no int64"):
            table_of([(header, body)], 0)


@pytest.mark.parametrize("delta", [0, 6])
def test_records_out_of_order_or_behind_their_batch_are_corrupt(delta: int) -> None:
    """Else a reader by portions would skip one, or read one again."""
    batch = bytearray(encode_batch([Record(n, 7, b"k", b"v") for n in range(3)]))
    at = batch.rindex(b"\4\2k")  # the offset of the last record
    batch[at] = 2 * delta
    sealed = _sealed(batch)
    for read in (Chunk.read, Chunk.read_table):
        with pytest.raises(CorruptBatch, match="ascend" if delta == 0 else "behind the end"):
            read(Chunk(T, sealed, start_offset=0), 500)
