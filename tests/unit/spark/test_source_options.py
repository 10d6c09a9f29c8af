"""The data source's options and ranges, without Spark and without a cluster."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.client.records import TopicPartition
from quorumlog.spark.options import EARLIEST, LATEST, has_headers, parse_options
from quorumlog.spark.ranges import between, document_of, limited, offsets_of, resolve

GIVEN = {"bootstrap.servers": "h:1", "subscribe": "a"}
A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_a_batch_reads_everything_and_a_stream_what_comes() -> None:
    batch, stream = (parse_options(GIVEN, is_stream=value) for value in (False, True))
    assert (batch.bootstrap, batch.topics, batch.partitions) == ("h:1", ("a",), {})
    assert (batch.starting, batch.ending) == (EARLIEST, LATEST)
    assert stream.starting == LATEST
    assert batch.fail_on_data_loss
    assert not batch.has_headers


def test_names_are_those_of_sparks_kafka_source_in_any_case() -> None:
    options = parse_options(
        {
            "Kafka.Bootstrap.Servers": "h:1",
            "assign": '{"a": [0, 1]}',
            "STARTINGOFFSETS": '{"a": {"0": 5, "1": -2}}',
            "maxoffsetspertrigger": "10",
            "kafka.isolation.level": "read_committed",
            "kafka.fetch.max.bytes": "1000",
        },
        is_stream=True,
    )
    assert options.partitions == {"a": [0, 1]}
    assert options.starting == {"a": {0: 5, 1: EARLIEST}}
    assert options.rows_per_trigger == 10
    assert options.client == {"isolation_level": "read_committed", "fetch_max_bytes": 1000}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"subscribe": None}, 'one of the options "subscribe" and "assign"'),
        ({"assign": '{"a": [0]}'}, 'one of the options "subscribe" and "assign"'),
        ({"subscribe": " ,"}, "it names no topic"),
        ({"bootstrap.servers": None}, "bootstrap.servers"),
        ({"startingOffset": "earliest"}, "did you mean startingOffsets"),
        ({"startingOffsets": "now"}, "neither JSON"),
        ({"startingOffsets": '{"a": {"x": 1}}'}, "write it as"),
        ({"startingOffsets": '{"a": {"0": -3}}'}, "write it as"),
        ({"endingOffsets": "earliest"}, "no record lies before it"),
        ({"maxOffsetsPerTrigger": "5"}, "is not for a batch"),
        ({"failOnDataLoss": "no"}, "true or false"),
        ({"maxRecordsPerPartition": "0"}, "above 0"),
        ({"kafka.group.id": "g"}, "has no option 'kafka.group.id'"),
    ],
)
def test_what_cannot_be_done_is_refused(changes: dict[str, str | None], said: str) -> None:
    options = {name: value for name, value in {**GIVEN, **changes}.items() if value is not None}
    with pytest.raises(ValueError, match=said):
        parse_options(options, is_stream=False)


def test_the_schema_depends_on_one_option() -> None:
    assert has_headers({"IncludeHeaders": "true"})
    assert not has_headers({})


def test_places_are_resolved_for_exactly_the_partitions_that_are_read() -> None:
    beginnings, ends = {A0: 1, A1: 2}, {A0: 10, A1: 20}
    assert resolve(EARLIEST, beginnings, ends) == beginnings
    assert resolve(LATEST, beginnings, ends) == ends
    assert resolve({"a": {0: EARLIEST, 1: 7}}, beginnings, ends) == {A0: 1, A1: 7}
    with pytest.raises(ValueError, match="a-1"):
        resolve({"a": {0: 5}}, beginnings, ends)


def test_a_range_is_cut_into_tasks() -> None:
    parts = between({A0: 0, A1: 5}, {A0: 7, A1: 5, B0: 2}, rows_per_task=3)
    assert [tuple(part) for part in parts] == [(A0, 0, 3), (A0, 3, 6), (A0, 6, 7), (B0, 0, 2)]


COUNTS = st.lists(st.integers(0, 50), min_size=1, max_size=6)


@given(COUNTS, st.integers(1, 120))
def test_a_limit_is_kept_and_reached_and_the_order_of_offsets_stays(
    counts: list[int], rows: int
) -> None:
    start = {TopicPartition("a", number): 3 for number in range(len(counts))}
    end = {one: 3 + count for one, count in zip(start, counts, strict=True)}
    found = limited(start, end, rows)
    taken = sum(found[one] - start[one] for one in start)
    assert all(start[one] <= found[one] <= end[one] for one in start)
    assert taken <= rows
    assert taken > 0 or not any(counts)
    if sum(counts) <= rows:
        assert found == end


def test_offsets_are_kept_as_sparks_own_source_keeps_them() -> None:
    offsets = {B0: 3, A1: 2, A0: 1}
    document = document_of(offsets)
    assert document == {"a": {"0": 1, "1": 2}, "b": {"0": 3}}
    assert offsets_of(document) == offsets
