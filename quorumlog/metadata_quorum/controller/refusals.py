"""The limits of users' requests, and the refusal of a whole request or of one topic in it.

An oversized request is refused whole, before any work that grows with it (KAFKA-14996), because
decisions run on the active controller's event loop and block other requests.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from quorumlog.metadata_quorum.cluster_changes import ConfigChanges, ConfigResult, Outcome
from quorumlog.metadata_quorum.controller_client import (
    NAMED_PER_REQUEST_MAX,
    ElectionResult,
    NewPartitions,
    NewTopic,
    Reassignment,
    ReassignmentResult,
    TopicResult,
)
from quorumlog.metadata_quorum.image.records import MetadataRecord
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import TopicId

TopicT = TypeVar("TopicT", NewTopic, NewPartitions, ConfigChanges)
ResultT = TypeVar("ResultT", TopicResult, ConfigResult, Outcome)

PARTITIONS_PER_REQUEST_MAX: Final = 10_000
RECORDS_PER_REQUEST_MAX: Final = 10_000


class TopicRefused(Exception):
    """The refusal of a request, or of one topic in it; it becomes a result."""

    def __init__(self, error_code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code

    def result_of(self, name: str) -> TopicResult:
        """Return the result for the topic `name`."""
        return TopicResult(name=name, error_code=self.error_code, error_message=str(self))

    def result_by_id(self, topic_id: TopicId) -> TopicResult:
        """Return the result for a topic that the request names by its id."""
        return replace(self.result_of(""), topic_id=topic_id)

    def config_result_of(self, name: str) -> ConfigResult:
        """Return the result for the configuration of the topic `name`."""
        return ConfigResult(name=name, error_code=self.error_code, error_message=str(self))

    def election_result_of(self, at: tuple[str, int]) -> ElectionResult:
        """Return the result for the election of a partition."""
        topic, partition = at
        code, message = self.error_code, str(self)
        return ElectionResult(
            topic=topic, partition=partition, error_code=code, error_message=message
        )

    def reassignment_result_of(self, wanted: Reassignment) -> ReassignmentResult:
        """Return the result for the reassignment of a partition."""
        return ReassignmentResult(
            topic=wanted.topic,
            partition=wanted.partition,
            error_code=self.error_code,
            error_message=str(self),
        )


def check_named(count: int, what: str = "topics") -> None:
    """Raise TopicRefused if a request names more than NAMED_PER_REQUEST_MAX items."""
    if count > NAMED_PER_REQUEST_MAX:
        raise TopicRefused(
            ErrorCode.POLICY_VIOLATION, f"A request may name at most {NAMED_PER_REQUEST_MAX} {what}"
        )


def check_partitions(count: int) -> None:
    """Raise TopicRefused if a request would create too many partitions in all its topics."""
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
    """Return the refusal of an unknown topic name."""
    return TopicRefused(
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
    )


def decide_each(
    topics: Sequence[TopicT],
    decide: Callable[[TopicT, int], tuple[list[MetadataRecord], ResultT]],
    refused: Callable[[TopicRefused, str], ResultT],
    *,
    twice: str,
) -> tuple[tuple[MetadataRecord, ...], tuple[ResultT, ...]]:
    """Decide each topic on its own; return all records, and a result per topic.

    `decide` gets the number of records so far. A topic that it refuses gets the result of
    `refused` and no records; so does a duplicate topic, with the message `twice`.
    """
    counts = Counter(topic.name for topic in topics)
    records: list[MetadataRecord] = []
    results = []
    for topic in topics:
        if counts[topic.name] > 1:
            duplicate = TopicRefused(ErrorCode.INVALID_REQUEST, twice)
            results.append(refused(duplicate, topic.name))
            continue
        try:
            new_records, result = decide(topic, len(records))
        except TopicRefused as refusal:
            results.append(refused(refusal, topic.name))
            continue
        records += new_records
        results.append(result)
    return tuple(records), tuple(results)
