"""Latencies in buckets, and records as the logs have them beside their outcomes."""

import math
import random

import pytest

from quorumlog.bench.histogram import Histogram, drawn, edges_of
from quorumlog.bench.load import ACKNOWLEDGED, FAILED, UNKNOWN, Kept, ProduceLoad, compare


def filled(values: list[float]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram


def test_percentiles_are_exact_to_one_percent() -> None:
    rng = random.Random(1)
    values = sorted(rng.lognormvariate(1, 1.5) for _ in range(5_000))
    histogram = filled(values)
    for percent in (1, 50, 95, 99, 99.9, 100):
        exact = values[math.ceil(len(values) * percent / 100) - 1]
        assert histogram.percentile_ms(percent) == pytest.approx(exact, rel=0.011)
    assert histogram.average_ms == pytest.approx(sum(values) / len(values))
    assert (histogram.min_ms, histogram.max_ms) == (values[0], values[-1])


def test_a_histogram_without_latencies_has_zeros_and_no_picture() -> None:
    empty = Histogram()
    assert set(empty.as_json().values()) == {0}
    assert list(drawn(empty)) == []


def test_a_latency_below_zero_counts_as_zero() -> None:
    histogram = filled([-3.0, 0.0])
    assert (histogram.count, histogram.min_ms, histogram.max_ms) == (2, 0.0, 0.0)
    assert histogram.percentile_ms(99) == 0.0
    assert sum(histogram.over(edges_of(0.0, 0.0))) == 2


def test_ranges_hold_every_latency_once() -> None:
    histogram = filled([0.5, 1.3, 1.4, 40.0, 900.0])
    edges = edges_of(histogram.min_ms, histogram.max_ms)
    assert edges[0] <= 0.5
    assert edges[-1] > 900
    counts = histogram.over(edges)
    assert (len(counts), sum(counts)) == (len(edges) - 1, 5)
    assert histogram.over([0.1, 1, 10, 100]) == [1, 2, 2]
    lines = list(drawn(histogram))
    assert len(lines) == len(counts)
    assert max(lines, key=lambda line: line.count("█")).endswith("2")


def test_copies_are_compared_with_outcomes() -> None:
    outcomes = bytearray([ACKNOWLEDGED, ACKNOWLEDGED, ACKNOWLEDGED, FAILED, FAILED, UNKNOWN])
    copies = bytearray([1, 0, 3, 0, 1, 1])
    assert compare(outcomes, copies) == Kept(stored=6, lost=1, duplicates=2, failed_stored=1)


def test_copies_of_another_load_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        compare(bytearray(3), bytearray(2))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({}, "the number of messages, or the duration"),
        ({"messages": 1, "duration_s": 1.0}, "the number of messages, or the duration"),
        ({"messages": 1, "size": 7}, "at least 8 bytes"),
        ({"duration_s": 1.0, "keeps_outcomes": True}, "not of a duration"),
    ],
)
def test_a_load_that_has_no_sense_is_refused(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ProduceLoad(topic="t", **wrong)  # type: ignore[arg-type]  # as a caller's mistake
