"""Regular expressions of topics: what clients may write, and what would take too long."""

import pytest

from quorumlog.broker.groups.core.consumer.topics import InvalidRegularExpression
from quorumlog.broker.groups.io import topic_expressions
from quorumlog.broker.groups.io.topic_expressions import Re2Matcher, topic_matcher

NAMES = "|".join(f"customers-{index * 7919 % 10_000}" for index in range(300))


@pytest.mark.parametrize(
    ("expression", "matching", "other"),
    [
        ("t", "t", "tt"),
        ("(logs|events)-([0-9]+)", "logs-17", "logs-"),
        ("(a+)+$", "a" * 249, "a" * 248 + "b"),
        ("(.?)" * 150, "a" * 150, "a" * 151),
        ("(?i)ORDERS.*", "orders-eu", "other"),
        (r"[\pL]+", "t", "t1"),
        (NAMES, "customers-7919", "customers-"),
    ],
)
def test_a_whole_name_matches(expression: str, matching: str, other: str) -> None:
    is_match = Re2Matcher().compile(expression)
    assert is_match(matching)
    assert not is_match(other)


@pytest.mark.parametrize(
    "expression",
    ["(.?){1000}(.?){1000}(.?){1000}", "(.?)" * 3000, "(?:a?){900}(?:a?){1000}a{1000}", "x" * 2001],
)
def test_an_expression_that_would_hold_up_others_is_refused(expression: str) -> None:
    with pytest.raises(InvalidRegularExpression, match="too large"):
        Re2Matcher().compile(expression)


@pytest.mark.parametrize(
    "expression", ["[", "*", "(?P<x>", "(?=a)", r"(a)\1", "x{1001}", "(((a{100}){100}){100})"]
)
def test_what_is_no_expression_of_re2_is_refused(expression: str) -> None:
    with pytest.raises(InvalidRegularExpression):
        Re2Matcher().compile(expression)


def test_without_the_library_every_expression_is_refused_with_the_extra_that_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic_matcher.cache_clear()
    monkeypatch.setattr(topic_expressions, "re2", None)
    try:
        with pytest.raises(InvalidRegularExpression, match=r"google-re2: pip install '.*\[re2\]'"):
            topic_matcher().compile("t")
    finally:
        topic_matcher.cache_clear()
