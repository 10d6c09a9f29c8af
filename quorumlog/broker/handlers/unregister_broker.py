"""UnregisterBroker (64): removes a broker that will not come back. Source: KIP-500."""

from quorumlog.broker.responses.controller_answers import changed_cluster
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.metadata_quorum.cluster_changes import UnregisterBroker
from quorumlog.wire.codec.identifiers import BrokerId
from quorumlog.wire.codec.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader


@answers(UnregisterBrokerRequest, 0, 0)
async def handle(
    context: BrokerContext, header: RequestHeader, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    """Unregister the broker; answer once this broker's image has removed it."""
    [outcome] = await changed_cluster(
        context,
        UnregisterBroker(broker_id=BrokerId(request.broker_id)),
        doubt="the broker may be unregistered",
    )
    return UnregisterBrokerResponse(
        error_code=outcome.error_code, error_message=outcome.error_message
    )
