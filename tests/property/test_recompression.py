"""Batches that the broker compresses anew: the records, and all but the compression, stay."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quorumlog.broker.partitions.core import admission
from quorumlog.broker.partitions.core.admission import admit, topic_limits
from quorumlog.settings.topics import TopicConfig
from quorumlog.wire.codec.compression import Compression
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicPartition
from quorumlog.wire.codec.inspection import recompressed
from quorumlog.wire.codec.records import (
    BatchHeader,
    Record,
    decode_batch,
    encode_batch,
    read_header,
    validate_batch,
)
from tests.property.test_wire_records import NOW_MS, batches, set_timestamps
from tests.support.sizes import examples

AT = TopicPartition("t", 0)
SETTINGS = examples(80, database=None)
TYPES = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
LEVELS = {"gzip": [-1, 1, 9], "lz4": [1, 9, 12, 17], "zstd": [-131072, 0, 3, 22]}
PRODUCERS = st.sampled_from([(-1, -1, -1), (2**60, 9, 2**31 - 2)])


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, str]:
    """A compression.type, perhaps with a level, perhaps with times of the append."""
    compression_type = draw(st.sampled_from(sorted(TYPES)))
    configs = {
        "compression.type": compression_type,
        "message.timestamp.after.max.ms": str(2**63 - 1),
    }
    levels = LEVELS.get(compression_type)
    if levels is not None and draw(st.booleans()):
        configs[f"compression.{compression_type}.level"] = str(draw(st.sampled_from(levels)))
    if draw(st.booleans()):
        configs["message.timestamp.type"] = "LogAppendTime"
    return configs


@SETTINGS
@given(
    batches(with_gaps=False, times=set_timestamps),
    st.sampled_from(Compression),
    PRODUCERS,
    configurations(),
)
@example(
    [Record(0, NOW_MS, None, bytes(300_000))],
    Compression.ZSTD,
    (-1, -1, -1),
    {"compression.type": "lz4"},
)
def test_records_in_are_records_out(
    records: list[Record],
    compression: Compression,
    producer: tuple[int, int, int],
    configs: dict[str, str],
) -> None:
    producer_id, producer_epoch, base_sequence = producer
    batch = encode_batch(
        records,
        compression=compression,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_transactional=producer_id >= 0,
    )
    limits = topic_limits(TopicConfig(configs, {}), is_internal=False)
    admitted = admit(memoryview(batch), limits, NOW_MS, AT)
    assert admitted.error_code is ErrorCode.NONE
    stored = bytes(admitted.records)
    header, sent = read_header(stored), read_header(batch)
    assert header == admitted.header
    validate_batch(stored, 0, header)
    assert header.attributes & 7 == TYPES[configs["compression.type"]]
    assert header.is_transactional == sent.is_transactional
    same = "base_offset", "last_offset_delta", "base_timestamp", "record_count"
    of_producer = "producer_id", "producer_epoch", "base_sequence"
    for name in (*same, *of_producer):
        assert getattr(header, name) == getattr(sent, name), name
    time_ms = NOW_MS if "message.timestamp.type" in configs else None
    assert header.has_log_append_time == (time_ms is not None)
    expected = [
        record if time_ms is None else record._replace(timestamp_ms=time_ms) for record in records
    ]
    assert decode_batch(stored) == expected


def test_a_lost_sequence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def loses_sequence(header: BatchHeader, *args: Any) -> tuple[bytes, BatchHeader]:
        return recompressed(header._replace(base_sequence=-1), *args)

    monkeypatch.setattr(admission, "recompressed", loses_sequence)
    check = test_records_in_are_records_out.hypothesis.inner_test  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="base_sequence"):
        check(
            [Record(0, NOW_MS, None, b"v")],
            Compression.NONE,
            (7, 0, 5),
            {"compression.type": "zstd"},
        )
