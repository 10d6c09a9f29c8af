"""AddRaftVoter (80): makes a controller a voter of the quorum. Source: KIP-853, KIP-1186."""

from quorumlog.addresses import address_text
from quorumlog.broker.responses.controller_answers import changed_voters
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.metadata_quorum.controller_client import NewVoter
from quorumlog.storage.io.checkpoints import uuid_to_text
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId
from quorumlog.wire.codec.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse
from quorumlog.wire.codec.schemas import RequestHeader


@answers(AddRaftVoterRequest, 0, 1)
async def handle(
    context: BrokerContext, header: RequestHeader, request: AddRaftVoterRequest
) -> AddRaftVoterResponse:
    """Send the change to the leader, which answers by its own timeout, not `timeout_ms`.

    Only the first listener is used: a node has one control listener, under any name.
    """
    if request.cluster_id not in {None, context.cluster_id}:
        return AddRaftVoterResponse(
            error_code=ErrorCode.INCONSISTENT_CLUSTER_ID,
            error_message=f"this is cluster {context.cluster_id}",
        )
    if not request.listeners:
        return AddRaftVoterResponse(
            error_code=ErrorCode.INVALID_REQUEST, error_message="the voter has no listener"
        )
    listener = request.listeners[0]
    voter = NewVoter(
        voter_id=BrokerId(request.voter_id),
        directory_id=uuid_to_text(request.voter_directory_id),
        address=address_text(listener.host, listener.port),
    )
    result = await changed_voters(
        context.controller.add_voter(voter, ack_when_committed=request.ack_when_committed),
        doubt="the voter may have been added",
    )
    return AddRaftVoterResponse(error_code=result.error_code, error_message=result.error_message)
