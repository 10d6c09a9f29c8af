"""DescribeCluster (60): the brokers, for admin clients. Source: KIP-700, KIP-919, KIP-1073."""

from typing import Final

from quorumlog.broker.handlers.api import ApiHandler
from quorumlog.broker.handlers.cluster_view import controller_for_clients
from quorumlog.broker.io.context import BrokerContext
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader

BROKER_ENDPOINTS: Final = 1


def handle(
    context: BrokerContext, header: RequestHeader, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """List brokers; the fenced ones only when asked for."""
    del header
    if request.endpoint_type != BROKER_ENDPOINTS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="this is a broker: ask it for brokers",
            cluster_id=context.cluster_id,
        )
    brokers = [
        DescribeClusterBroker(
            broker_id=broker.broker_id,
            host=broker.host,
            port=broker.port,
            rack=broker.rack,
            is_fenced=broker.fenced,
        )
        for _, broker in sorted(context.image.brokers.items())
        if request.include_fenced_brokers or not broker.fenced
    ]
    return DescribeClusterResponse(
        cluster_id=context.cluster_id,
        controller_id=controller_for_clients(context.image, context.broker_id),
        brokers=brokers,
    )


HANDLER = ApiHandler(
    api_key=DescribeClusterRequest.API_KEY, min_version=0, max_version=2, handle=handle
)
