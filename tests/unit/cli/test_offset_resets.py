"""Where a group is moved, and what of a reset is refused."""

from datetime import UTC, datetime, timedelta

import pytest

from quorumlog.cli.offset_resets import (
    LogEnds,
    Move,
    Reset,
    parse_datetime_ms,
    parse_topics,
    plan,
)
from quorumlog.cli.output import table
from quorumlog.client import TopicPartition

T, U = TopicPartition("t", 0), TopicPartition("t", 1)
ENDS = {T: LogEnds(10, 100, at_time=50), U: LogEnds(0, 0)}


@pytest.mark.parametrize(
    ("reset", "after"),
    [
        (Reset(target="earliest"), [10, 0]),
        (Reset(target="latest"), [100, 0]),
        (Reset(target="offset", value=60), [60, 0]),
        (Reset(target="offset", value=5), [10, 0]),  # no such record any more
        (Reset(target="offset", value=500), [100, 0]),  # none yet
        (Reset(target="time", value=1), [50, 0]),  # nothing that young: the end
    ],
)
def test_a_target_is_within_the_log(reset: Reset, after: list[int]) -> None:
    assert plan(reset, [U, T], {T: 40}, ENDS) == [Move(T, 40, after[0]), Move(U, None, after[1])]


@pytest.mark.parametrize(("shift", "after"), [(-5, 35), (5, 45), (-500, 10), (500, 100)])
def test_a_shift_starts_from_what_is_committed(shift: int, after: int) -> None:
    reset = Reset(target="shift", value=shift)
    assert plan(reset, [T], {T: 40}, ENDS) == [Move(T, 40, after)]
    with pytest.raises(ValueError, match="t-1 has no committed offset to shift"):
        plan(reset, [T, U], {T: 40}, ENDS)


def test_a_partition_that_does_not_exist_cannot_be_moved() -> None:
    with pytest.raises(ValueError, match="t-2 does not exist"):
        plan(Reset(target="latest"), [TopicPartition("t", 2)], {}, ENDS)


def test_a_time_is_utc_unless_it_says_otherwise() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    noon_ms = (noon - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    assert parse_datetime_ms("2026-01-31T12:00:00") == noon_ms
    assert parse_datetime_ms("2026-01-31T13:00:00.5+01:00") == noon_ms + 500
    with pytest.raises(ValueError, match="'yesterday' is no date and time: write it as"):
        parse_datetime_ms("yesterday")


def test_a_topic_may_name_its_partitions() -> None:
    assert parse_topics(["t", "u:0,12"]) == {"t": None, "u": [0, 12]}
    assert parse_topics(["t:3", "t:0,3"]) == {"t": [0, 3]}
    assert parse_topics(["t:3", "t", "t:1"]) == {"t": None}
    for wrong in ("t:", "t:a", "t:0,", "t:-1"):
        with pytest.raises(ValueError, match="write it as TOPIC or TOPIC:0,1,2"):
            parse_topics([wrong])


def test_a_table_lines_up() -> None:
    rows = [("orders", 0, 7, None), ("b", 11, -1, "x")]
    assert table(("TOPIC", "PARTITION", "LAG", "CLIENT"), rows) == [
        "TOPIC   PARTITION  LAG  CLIENT",
        "orders          0    7  -",
        "b              11   -1  x",
    ]
