"""The records of a positions topic: read back as written, and refused if no mirror wrote them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.mirror.core.offset_runs import OffsetRun
from quorumlog.mirror.core.position_records import (
    CHECKPOINT_KEY,
    GENERATION_KEY,
    BadPositionRecord,
    Checkpoint,
    Content,
    Generation,
    Position,
    RecordKey,
    Translation,
    decode_content,
    decode_key,
    encode_content,
    encode_key,
)
from quorumlog.wire.codec.identifiers import TopicPartition

PLACE = TopicPartition("orders", 3)
ids = st.binary(min_size=16, max_size=16)
offsets = st.integers(0, 2**63 - 1)
runs = st.lists(st.builds(OffsetRun, offsets, offsets, offsets), max_size=4).map(tuple)
texts = st.text(max_size=8)
SPOILT: list[Any] = [None, True, 1.5, [[1, 2]], [[1, 2, -3]], {}, "?", ...]
names = st.lists(texts, max_size=3).map(tuple)
contents: dict[str, st.SearchStrategy[Content]] = {
    "position": st.builds(
        Position, offset=offsets, topic_id=ids, copy_id=ids, leader_epoch=offsets, runs=runs
    ),
    "runs": st.builds(Translation, ids, ids, runs),
    "generation": st.builds(
        Generation,
        instance=texts,
        started_ms=offsets,
        source_cluster=st.none() | texts,
        target_cluster=st.none() | texts,
        topics=names,
        exclude=names,
        prefix=texts,
    ),
    "checkpoint": st.builds(
        Checkpoint, time_ms=offsets, groups=offsets, stopped=st.dictionaries(texts, texts)
    ),
}


@given(st.sampled_from(sorted(contents)), st.data())
def test_contents_are_read_as_written(kind: str, data: st.DataObject) -> None:
    content = data.draw(contents[kind])
    assert decode_content(kind, encode_content(content)) == content


@pytest.mark.parametrize(
    "key", [GENERATION_KEY, CHECKPOINT_KEY, RecordKey("position", PLACE), RecordKey("runs", PLACE)]
)
def test_keys_are_read_as_written(key: RecordKey) -> None:
    assert decode_key(encode_key(key)) == key


def test_a_value_reads_as_in_the_documentation() -> None:
    position = Position(offset=9, leader_epoch=2, runs=(OffsetRun(4, 1, 5),))
    assert json.loads(encode_content(position)) == {
        "topic_id": "A" * 22,
        "copy_id": "A" * 22,
        "runs": [[4, 1, 5]],
        "offset": 9,
        "leader_epoch": 2,
    }


def test_a_kind_of_a_newer_mirror_is_passed_over() -> None:
    assert decode_content("lease", b"{}") is None


@pytest.mark.parametrize(
    "key", [None, b"", b"\xff", b"[]", b'{"kind":1}', b'{"kind":"runs","topic":"t"}', b"x"]
)
def test_a_foreign_key_is_refused(key: bytes | None) -> None:
    with pytest.raises(BadPositionRecord):
        decode_key(key)


@given(st.sampled_from(sorted(contents)), st.data())
def test_a_value_without_a_field_or_with_a_wrong_one_is_refused(
    kind: str, data: st.DataObject
) -> None:
    fields = json.loads(encode_content(data.draw(contents[kind])))
    name = data.draw(st.sampled_from(sorted(fields)))
    spoilt = data.draw(st.sampled_from(SPOILT))
    if spoilt is ...:
        del fields[name]
    else:
        fields[name] = spoilt
    try:
        decode_content(kind, json.dumps(fields).encode())
    except BadPositionRecord as error:
        assert str(error)  # noqa: PT017 - some wrong values are right for some fields
