"""The response to a request that is refused whole, or whose decision failed because of a bug.

The response has the request's own type. So after a bug the caller gets UNKNOWN_SERVER_ERROR at
once, and does not retry at this controller and then at the next.
"""

from typing import Final, assert_never

from quorumlog.metadata_quorum.cluster_changes import ClusterChange, Outcomes, parts_of, refused
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

_BUG: Final = TopicRefused(
    ErrorCode.UNKNOWN_SERVER_ERROR,
    "The controller could not decide this request; see the controller's log",
)


def failure_response(request: ControllerRequest, refusal: TopicRefused = _BUG) -> object:
    """Return the response to `request` with the code and the message of `refusal`."""
    response: object
    code = refusal.error_code
    match request:
        case BrokerRegistration():
            response = RegistrationReply(error_code=code, error_message=str(refusal))
        case BrokerHeartbeat():
            response = HeartbeatReply(error_code=code)
        case AlterPartitions():
            response = IsrResults(error_code=code)
        case AssignReplicas():
            response = AssignmentReply(error_code=code)
        case ReportLogs():
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
