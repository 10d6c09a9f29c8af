"""DescribeCluster (60) and UnregisterBroker (64, KIP-500), for admin clients.

Source: KIP-430, 700, 919, 1073. A request for the controllers is refused with Kafka's message.
Controllers have no Kafka listener: they speak another protocol
(docs/decisions/0004-quorum-protocol.md).
"""

from typing import Final

from quorumlog.broker.responses.cluster_view import (
    ALL_OF_CLUSTER,
    controller_for_clients,
    reachable,
)
from quorumlog.broker.responses.controller_answers import changed_cluster
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.metadata_quorum.cluster_changes import UnregisterBroker
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId
from quorumlog.wire.codec.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from quorumlog.wire.codec.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)

BROKERS: Final = 1  # of endpoint_type (KIP-919)
CONTROLLERS: Final = 2


@answers(DescribeClusterRequest, 0, 2)
def handle_describe(
    context: BrokerContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """List the brokers; fenced brokers only on request."""
    if request.endpoint_type not in {BROKERS, CONTROLLERS}:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"Unsupported endpoint type {request.endpoint_type}",
        )
    if request.endpoint_type == CONTROLLERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="The request was sent to an endpoint of type BROKER, but we wanted an "
            "endpoint of type CONTROLLER",
        )
    brokers = [
        DescribeClusterBroker(
            broker_id=broker.broker_id,
            host=host,
            port=port,
            rack=broker.rack,
            is_fenced=broker.fenced,
        )
        for broker, (host, port) in reachable(context)
        if request.include_fenced_brokers or not broker.fenced
    ]
    response = DescribeClusterResponse(
        cluster_id=context.cluster_id,
        controller_id=controller_for_clients(context),
        brokers=brokers,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = ALL_OF_CLUSTER
    return response


@answers(UnregisterBrokerRequest, 0, 0)
async def handle_unregister(
    context: BrokerContext, request: UnregisterBrokerRequest
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
