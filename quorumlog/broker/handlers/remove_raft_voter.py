"""RemoveRaftVoter (81): makes a voter of the quorum an observer. Source: KIP-853."""

from quorumlog.broker.responses.controller_answers import changed_voters
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.storage.io.checkpoints import uuid_to_text
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId
from quorumlog.wire.codec.messages.remove_raft_voter import (
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader


@answers(RemoveRaftVoterRequest, 0, 0)
async def handle(
    context: BrokerContext, header: RequestHeader, request: RemoveRaftVoterRequest
) -> RemoveRaftVoterResponse:
    """Send the change to the leader; it answers after the commit."""
    if request.cluster_id not in {None, context.cluster_id}:
        return RemoveRaftVoterResponse(
            error_code=ErrorCode.INCONSISTENT_CLUSTER_ID,
            error_message=f"this is cluster {context.cluster_id}",
        )
    result = await changed_voters(
        context.controller.remove_voter(
            BrokerId(request.voter_id), uuid_to_text(request.voter_directory_id)
        ),
        doubt="the voter may have been removed",
    )
    return RemoveRaftVoterResponse(error_code=result.error_code, error_message=result.error_message)
