"""Errors of clients as values."""

import pickle
from collections.abc import Callable
from copy import copy

import pytest

from quorumlog.client import ErrorCode, KafkaError
from quorumlog.client.errors import (
    AssignorError,
    DeserializationError,
    PositionLost,
    TopicDenied,
    TransactionError,
)
from tests.support.client.fake_cluster import T

ERRORS = [
    KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT, "group g", definite=False),
    TopicDenied("orders", "topic 'orders' needs READ"),
    TransactionError(ErrorCode.INVALID_TXN_STATE, "ended", definite=True, fatal=True),
    DeserializationError("value_deserializer", ValueError("no number"), (T, 7), b"x"),
    PositionLost("no such offset", T, offset=7, topic_id=bytes(16), truncated_to=5),
    AssignorError("range", "raised ValueError()"),
]


def pickled(error: KafkaError) -> KafkaError:
    made: KafkaError = pickle.loads(pickle.dumps(error))
    return made


@pytest.mark.parametrize("copied", [copy, pickled])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_passes_between_processes_with_all_it_has(
    error: KafkaError, copied: Callable[[KafkaError], KafkaError]
) -> None:
    """Such as from a worker of a ProcessPoolExecutor, which breaks on any other error."""
    other = copied(error)
    assert type(other) is type(error)
    assert other is not error
    assert (str(other), other.args, vars(other)) == (str(error), error.args, vars(error))
    assert other.fatal == error.fatal
