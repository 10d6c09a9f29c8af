"""What the controller answers to a request that it cannot decide because of a bug of ours.

Every request has an answer of its own kind, so that the caller sees UNKNOWN_SERVER_ERROR at once
and does not repeat the request, to this controller and then to the next.
"""

from typing import Final, assert_never

from quorumlog.metadata_quorum.controller.requests import (
    AllocateProducerIds,
    AlterPartitions,
    AlterTopicConfigs,
    ControllerRequest,
    CreateTopics,
    DeleteTopics,
    GrowTopic,
    IsrResults,
    ProducerIdsReply,
    TopicResults,
)
from quorumlog.metadata_quorum.controller_client import (
    BrokerHeartbeat,
    BrokerRegistration,
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
        case CreateTopics(topics=topics):
            response = _topic_results(*(topic.name for topic in topics))
        case DeleteTopics(names=names):
            response = _topic_results(*names)
        case GrowTopic(name=name) | AlterTopicConfigs(name=name):
            response = _topic_results(name)
        case AlterPartitions():
            response = IsrResults(error_code=_CODE)
        case AllocateProducerIds():
            response = ProducerIdsReply(error_code=_CODE)
        case _:
            assert_never(request)
    return response


def _topic_results(*names: str) -> TopicResults:
    return TopicResults(
        results=tuple(
            TopicResult(name=name, error_code=_CODE, error_message=_MESSAGE) for name in names
        )
    )
