"""What a log gets of a condition that lasts."""

import logging

import pytest

from quorumlog.lasting_condition import LastingCondition

LOGGER = logging.getLogger("lasting")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records]


def test_a_condition_is_said_at_its_begin_once_a_minute_and_at_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    condition = LastingCondition(LOGGER)
    condition.end(0, "not there")
    for now_ms in range(0, 150_000, 500):
        condition.note(now_ms, "full")
    assert condition.lasts()
    condition.end(150_000, "room again")
    condition.end(150_000, "room again")
    assert lines(caplog) == [
        "full",
        "full (121 times in 60 s)",
        "full (241 times in 120 s)",
        "room again, after 150 s and 300 times",
    ]


def test_each_subject_is_said_once_and_the_end_when_all_have_ended(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    condition = LastingCondition(LOGGER)
    for now_ms in (0, 500, 1000):
        for subject in ("a", "b"):
            condition.note(now_ms, f"{subject} full", subject)
    condition.end(2000, "room", "a")
    assert lines(caplog) == ["a full", "b full"]
    condition.end(2000, "room", "b")
    assert lines(caplog)[2:] == ["room, after 2 s and 6 times"]


def test_a_subject_that_is_noted_no_more_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    condition = LastingCondition(LOGGER)
    condition.note(0, "full", "gone")
    condition.note(120_000, "full", "other")
    assert not condition.lasts("gone")
    assert lines(caplog) == ["full", "full"]
