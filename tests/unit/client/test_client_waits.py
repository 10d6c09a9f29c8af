"""When a request that has no good answer is logged, by a clock that the test sets."""

import pytest

from quorumlog.client.core import waits
from quorumlog.client.core.absences import REPORT_AFTER_MS, REPORT_AGAIN_MS
from quorumlog.client.core.waits import (
    NEEDS_CONTROLLER,
    OVERDUE_AFTER_MS,
    Attempt,
    Wait,
    Waits,
)
from quorumlog.wire.codec.messages import APIS


def texts(of: Waits, now_ms: float) -> list[str]:
    return [notice.text for notice in of.step(now_ms)]


def opened(of: Waits, now_ms: float, subject: str | None = None) -> Wait:
    wait = Wait(subject, now_ms)
    of.begin(wait)
    return wait


def sent(wait: Wait, now_ms: float, api: str = "ListGroups", expected_ms: float = 0) -> Attempt:
    attempt = Attempt(
        api=api, began_ms=now_ms, expected_ms=expected_ms, broker="broker 1 at h:1", is_sent=True
    )
    wait.begin(attempt)
    return attempt


def test_a_request_without_an_answer_is_reported_after_three_seconds_and_rarely_again() -> None:
    of, said = Waits(), []
    wait = opened(of, 0)
    sent(wait, 0)
    for now_ms in range(0, 2 * REPORT_AGAIN_MS, 500):
        said += [(now_ms, text) for text in texts(of, now_ms)]
    text = "broker 1 at h:1 does not answer ListGroups"
    assert REPORT_AFTER_MS == 3_000
    assert said == [(3_000, f"{text} (for 3 s)"), (63_000, f"{text} (for 63 s)")]
    over = of.end(wait, is_answered=True)
    assert [(one.text, one.is_over) for one in over] == [("ListGroups: answered", True)]


def test_attempts_that_fail_fast_are_one_wait() -> None:
    of = Waits()
    wait = opened(of, 0, "a producer id")
    for now_ms in range(0, REPORT_AFTER_MS, 100):
        attempt = sent(wait, now_ms, "InitProducerId")
        assert texts(of, now_ms) == []
        wait.end(attempt)
        wait.fail("COORDINATOR_LOAD_IN_PROGRESS")
    expected = "a producer id: COORDINATOR_LOAD_IN_PROGRESS (for 3 s)"
    assert texts(of, REPORT_AFTER_MS) == [expected]


def test_a_request_that_may_wait_by_its_own_terms_is_no_news() -> None:
    of = Waits()
    sent(opened(of, 0), 0, "JoinGroup", expected_ms=10_000)
    assert texts(of, 10_000) == []
    assert of.next_ms(10_000) == 10_000 + waits.RECHECK_MS
    assert texts(of, 10_000 + OVERDUE_AFTER_MS) != []


def test_waits_for_the_same_are_reported_once_and_end_together() -> None:
    of = Waits()
    first, second = opened(of, 0), opened(of, 10)
    sent(first, 0)
    sent(second, 10)
    assert len(texts(of, REPORT_AFTER_MS)) == 1
    assert texts(of, REPORT_AFTER_MS + 10) == []
    assert of.end(first, is_answered=True) == []
    assert len(of.end(second, is_answered=True)) == 1


def test_a_caller_that_gives_up_has_no_answer() -> None:
    of = Waits()
    wait = opened(of, 0)
    sent(wait, 0)
    assert len(texts(of, REPORT_AFTER_MS)) == 1
    assert of.end(wait, is_answered=False) == []
    assert of.next_ms(REPORT_AFTER_MS) == float("inf")


@pytest.mark.parametrize(
    ("broker", "is_sent", "api", "expected"),
    [
        (None, False, "ListGroups", "no broker accepts a connection for ListGroups"),
        ("broker 2", False, "ListGroups", "broker 2 does not answer a connection attempt"),
        ("broker 2", True, "ListGroups", "broker 2 does not answer ListGroups"),
        (
            "broker 2",
            True,
            "CreateTopics",
            "broker 2 does not answer CreateTopics, for which it needs the active controller",
        ),
    ],
)
def test_the_cause_says_how_far_the_request_is(
    broker: str | None, is_sent: bool, api: str, expected: str
) -> None:
    attempt = Attempt(api=api, began_ms=0, broker=broker, is_sent=is_sent)
    assert attempt.lack() == expected


def test_the_requests_that_need_the_controller_are_apis() -> None:
    assert {api.name for api in APIS.values()} >= NEEDS_CONTROLLER
