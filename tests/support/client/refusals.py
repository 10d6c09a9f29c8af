"""Errors of a client that a test expects."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from quorumlog.client import ErrorCode, KafkaError


@contextmanager
def refused(
    match: str | None = None, *, definite: bool | None = None, code: ErrorCode | None = None
) -> Iterator[None]:
    """Expect a KafkaError whose text has `match`, and which is definite and has a code as given."""
    with pytest.raises(KafkaError, match=match) as caught:
        yield
    if definite is not None:
        assert caught.value.definite is definite
    if code is not None:
        assert caught.value.code == code
