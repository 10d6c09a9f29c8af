"""The answer to a request that the controller cannot decide because of a bug of ours.

The answer is of the request's own kind, so that the caller sees UNKNOWN_SERVER_ERROR at once and
does not repeat the request, to this controller and then to the next.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, assert_never

from quorumlog.metadata_quorum.controller.requests import (
    AllocateProducerIds,
    AlterPartitions,
    AlterTopicConfigs,
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
    TopicResults,
)
from quorumlog.metadata_quorum.controller_client import (
    BrokerHeartbeat,
    BrokerRegistration,
    ConfigResult,
    ElectionResult,
    HeartbeatReply,
    RegistrationReply,
    TopicResult,
)
from quorumlog.wire.codec.error_codes import ErrorCode

_CODE: Final = ErrorCode.UNKNOWN_SERVER_ERROR
_MESSAGE: Final = "The controller could not decide this request; its log says why"


def failure_response(request: ControllerRequest) -> object:
    """Return the response to `request` that says UNKNOWN_SERVER_ERROR."""
    response: object
    match request:
        case BrokerRegistration():
            response = RegistrationReply(error_code=_CODE, error_message=_MESSAGE)
        case BrokerHeartbeat():
            response = HeartbeatReply(error_code=_CODE)
        case AlterPartitions():
            response = IsrResults(error_code=_CODE)
        case AllocateProducerIds():
            response = ProducerIdsReply(error_code=_CODE)
        case _:
            response = _response_to_a_user(request)
    return response


def _response_to_a_user(
    request: CreateTopics
    | FindTopics
    | DeleteTopics
    | CreatePartitions
    | AlterTopicConfigs
    | ElectLeaders,
) -> object:
    response: object
    match request:
        case CreateTopics(topics=topics):
            response = _topic_results(topic.name for topic in topics)
        case CreatePartitions(topics=topics):
            response = _topic_results(topic.name for topic in topics)
        case FindTopics(names=names):
            response = _topic_results(names)
        case DeleteTopics(topic_ids=topic_ids):
            unknown = TopicResult(name="", error_code=_CODE, error_message=_MESSAGE)
            response = TopicResults(results=tuple(replace(unknown, topic_id=i) for i in topic_ids))
        case AlterTopicConfigs(topics=topics):
            refused = ConfigResult(name="", error_code=_CODE, error_message=_MESSAGE)
            response = ConfigResults(results=tuple(replace(refused, name=t.name) for t in topics))
        case ElectLeaders(partitions=partitions):
            response = ElectionResults(
                results=tuple(
                    ElectionResult(
                        topic=name, partition=index, error_code=_CODE, error_message=_MESSAGE
                    )
                    for name, index in partitions
                )
            )
        case _:
            assert_never(request)
    return response


def _topic_results(names: Iterable[str]) -> TopicResults:
    return TopicResults(
        results=tuple(
            TopicResult(name=name, error_code=_CODE, error_message=_MESSAGE) for name in names
        )
    )
