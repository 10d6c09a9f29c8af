"""The limits of users' requests, and the refusal of a whole request or one topic in it.

A request that is too big is refused whole, before any work that grows with it (KAFKA-14996),
because decisions run on the event loop of the active controller and block other requests.
"""

from collections.abc import Iterable
from typing import Final

from quorumlog.metadata_quorum.controller.requests import Decision, TopicResults
from quorumlog.metadata_quorum.controller_client import NAMED_PER_REQUEST_MAX, TopicResult
from quorumlog.wire.codec.error_codes import ErrorCode

PARTITIONS_PER_REQUEST_MAX: Final = 10_000
RECORDS_PER_REQUEST_MAX: Final = 10_000


class TopicRefused(Exception):
    """The refusal of a request for one topic, which becomes its result."""

    def __init__(self, error_code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code

    def result_of(self, name: str) -> TopicResult:
        """Return the result of the topic `name`."""
        return TopicResult(name=name, error_code=self.error_code, error_message=str(self))


def check_named(count: int, what: str = "topics") -> None:
    """Raise TopicRefused if a request names too many."""
    if count > NAMED_PER_REQUEST_MAX:
        raise TopicRefused(
            ErrorCode.POLICY_VIOLATION,
            f"A request may name at most {NAMED_PER_REQUEST_MAX} {what}",
        )


def check_partitions(count: int) -> None:
    """Raise TopicRefused if a request would make too many partitions, over all its topics."""
    if count > PARTITIONS_PER_REQUEST_MAX:
        raise TopicRefused(
            ErrorCode.POLICY_VIOLATION,
            f"A request may create at most {PARTITIONS_PER_REQUEST_MAX} partitions",
        )


def check_records(count: int) -> None:
    """Raise TopicRefused if a request would write too many records."""
    if count > RECORDS_PER_REQUEST_MAX:
        raise TopicRefused(
            ErrorCode.POLICY_VIOLATION,
            f"A request may create at most {RECORDS_PER_REQUEST_MAX} records",
        )


def unknown_topic() -> TopicRefused:
    """Return the refusal of a name that no topic has."""
    return TopicRefused(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
    )


def duplicate_topic() -> TopicRefused:
    """Return the refusal of a topic that the request names more than once."""
    return TopicRefused(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")


def refused_whole(refusal: TopicRefused, names: Iterable[str]) -> Decision[TopicResults]:
    """Return the same refusal for every topic of a request."""
    return Decision(response=TopicResults(results=tuple(map(refusal.result_of, names))))
