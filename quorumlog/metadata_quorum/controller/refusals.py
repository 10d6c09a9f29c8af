"""The limits of users' requests, and the refusal of a whole request or of one topic in it.

An oversized request is refused whole, before any work that grows with it (KAFKA-14996), because
decisions run on the active controller's event loop and block other requests.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar, assert_never

from quorumlog.metadata_quorum.cluster_changes import (
    ClusterChange,
    ConfigChanges,
    ConfigResult,
    Outcome,
    Outcomes,
    parts_of,
    refused,
)
from quorumlog.metadata_quorum.controller_client import (
    NAMED_PER_REQUEST_MAX,
    BrokerHeartbeat,
    BrokerRegistration,
    ElectionResult,
    HeartbeatReply,
    NewPartitions,
    NewTopic,
    Reassignment,
    ReassignmentResult,
    RegistrationReply,
    TopicResult,
)
from quorumlog.metadata_quorum.controller_requests import (
    AllocateProducerIds,
    AlterConfigs,
    AlterPartitions,
    AlterReassignments,
    AssignReplicas,
    ConfigResults,
    ControllerRequest,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ElectionResults,
    ElectLeaders,
    FindTopics,
    IsrResults,
    ProducerIdsReply,
    ReassignmentResults,
    ReportLogs,
    ReportReply,
    TopicResults,
    UserRequest,
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


def check_named(count: int, items: str) -> None:
    """Raise TopicRefused if a request names more than NAMED_PER_REQUEST_MAX items."""
    _check_most(count, NAMED_PER_REQUEST_MAX, "name", items)


def check_partitions(count: int) -> None:
    """Raise TopicRefused if a request would create too many partitions in all its topics."""
    _check_most(count, PARTITIONS_PER_REQUEST_MAX, "create", "partitions")


def check_records(count: int) -> None:
    """Raise TopicRefused if a request would write too many records."""
    _check_most(count, RECORDS_PER_REQUEST_MAX, "create", "records")


def _check_most(count: int, most: int, verb: str, items: str) -> None:
    if count > most:
        raise TopicRefused(
            ErrorCode.POLICY_VIOLATION, f"A request may {verb} at most {most} {items}"
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


_BUG: Final = TopicRefused(
    ErrorCode.UNKNOWN_SERVER_ERROR,
    "The controller could not decide this request; see the controller's log",
)


def failure_response(request: ControllerRequest, refusal: TopicRefused = _BUG) -> object:
    """Return the response to `request`, of its own type, with the code and message of `refusal`.

    So after a bug the caller gets UNKNOWN_SERVER_ERROR at once, and does not retry at this
    controller and then at the next.
    """
    response: object
    code = refusal.error_code
    match request:
        case BrokerRegistration():
            response = RegistrationReply(error_code=code, error_message=str(refusal))
        case BrokerHeartbeat():
            response = HeartbeatReply(error_code=code)
        case AlterPartitions():
            response = IsrResults(error_code=code)
        case AssignReplicas() | ReportLogs():
            response = ReportReply(error_code=code)
        case AllocateProducerIds():
            response = ProducerIdsReply(error_code=code)
        case _:
            response = _response_to_a_user(request, refusal)
    return response


def _response_to_a_user(request: UserRequest, refusal: TopicRefused) -> object:
    response: object
    if isinstance(request, ClusterChange):
        outcome = refused(refusal.error_code, str(refusal))
        return Outcomes(results=(outcome,) * parts_of(request))
    match request:
        case CreateTopics() | CreatePartitions():
            topics = tuple(refusal.result_of(topic.name) for topic in request.topics)
            response = TopicResults(results=topics)
        case FindTopics(names=names):
            response = TopicResults(results=tuple(map(refusal.result_of, names)))
        case DeleteTopics(topic_ids=topic_ids):
            response = TopicResults(results=tuple(map(refusal.result_by_id, topic_ids)))
        case AlterConfigs(topics=altered):
            configs = tuple(refusal.config_result_of(topic.name) for topic in altered)
            response = ConfigResults(results=configs)
        case ElectLeaders(partitions=partitions):
            elections = tuple(map(refusal.election_result_of, partitions))
            response = ElectionResults(results=elections)
        case AlterReassignments(wanted=wanted):
            reassignments = tuple(map(refusal.reassignment_result_of, wanted))
            response = ReassignmentResults(results=reassignments)
        case _:
            assert_never(request)
    return response
