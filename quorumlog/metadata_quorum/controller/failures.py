"""The response to a request whose decision failed because of a bug.

The response has the request's own type, so that the caller gets UNKNOWN_SERVER_ERROR at once and
does not retry at this controller and then at the next.
"""

from typing import Final, assert_never

from quorumlog.metadata_quorum.cluster_changes import ClusterChange, Outcome, Outcomes, parts_of
from quorumlog.metadata_quorum.controller.refusals import TopicRefused
from quorumlog.metadata_quorum.controller.requests import (
    AllocateProducerIds,
    AlterConfigs,
    AlterPartitions,
    AlterReassignments,
    AssignmentReply,
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
from quorumlog.metadata_quorum.controller_client import (
    BrokerHeartbeat,
    BrokerRegistration,
    HeartbeatReply,
    RegistrationReply,
)
from quorumlog.wire.codec.error_codes import ErrorCode

_CODE: Final = ErrorCode.UNKNOWN_SERVER_ERROR
_MESSAGE: Final = "The controller could not decide this request; see the controller's log"
_REFUSAL: Final = TopicRefused(_CODE, _MESSAGE)


def failure_response(request: ControllerRequest) -> object:
    """Return the response to `request` with UNKNOWN_SERVER_ERROR."""
    response: object
    match request:
        case BrokerRegistration():
            response = RegistrationReply(error_code=_CODE, error_message=_MESSAGE)
        case BrokerHeartbeat():
            response = HeartbeatReply(error_code=_CODE)
        case AlterPartitions():
            response = IsrResults(error_code=_CODE)
        case AssignReplicas():
            response = AssignmentReply(error_code=_CODE)
        case ReportLogs():
            response = ReportReply(error_code=_CODE)
        case AllocateProducerIds():
            response = ProducerIdsReply(error_code=_CODE)
        case _:
            response = _response_to_a_user(request)
    return response


def _response_to_a_user(request: UserRequest) -> object:
    response: object
    if isinstance(request, ClusterChange):
        outcome = Outcome(error_code=_CODE, error_message=_MESSAGE)
        return Outcomes(results=(outcome,) * parts_of(request))
    match request:
        case CreateTopics() | CreatePartitions():
            topics = tuple(_REFUSAL.result_of(topic.name) for topic in request.topics)
            response = TopicResults(results=topics)
        case FindTopics(names=names):
            response = TopicResults(results=tuple(map(_REFUSAL.result_of, names)))
        case DeleteTopics(topic_ids=topic_ids):
            response = TopicResults(results=tuple(map(_REFUSAL.result_by_id, topic_ids)))
        case AlterConfigs(topics=altered):
            configs = tuple(_REFUSAL.config_result_of(topic.name) for topic in altered)
            response = ConfigResults(results=configs)
        case ElectLeaders(partitions=partitions):
            elections = tuple(map(_REFUSAL.election_result_of, partitions))
            response = ElectionResults(results=elections)
        case AlterReassignments(wanted=wanted):
            reassignments = tuple(map(_REFUSAL.reassignment_result_of, wanted))
            response = ReassignmentResults(results=reassignments)
        case _:
            assert_never(request)
    return response
