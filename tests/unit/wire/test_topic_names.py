"""Names of topics."""

import pytest

from quorumlog.wire.codec.topic_names import NAME_LENGTH_MAX, topic_name_error


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * NAME_LENGTH_MAX, "..."])
def test_a_legal_name_has_no_error(name: str) -> None:
    assert topic_name_error(name) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "empty string"),
        (".", "'.' or '..'"),
        ("..", "'.' or '..'"),
        ("a b", "'a b' contains one or more characters other than"),
        ("ä", "other than ASCII alphanumerics"),
        ("x" * (NAME_LENGTH_MAX + 1), f"{'x' * 250}' is longer than the max allowed length 249"),
    ],
)
def test_the_error_is_that_of_kafka(name: str, why: str) -> None:
    assert why in (topic_name_error(name) or "")


def test_the_error_of_a_long_name_fits_into_a_response() -> None:
    for name in ("x" * 32_767, "\N{GRINNING FACE}" * 8_000):
        error = topic_name_error(name) or ""
        assert "is longer than" in error
        assert len(error.encode()) < 32_767
