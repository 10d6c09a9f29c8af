"""ListConfigResources (74): the resources of DescribeConfigs. Source: KIP-1142; v0: KIP-714.

In version 0 the API was ListClientMetricsResources, and lists only client metrics.
"""

from typing import Final

from quorumlog.broker.responses.config_entries import ResourceType
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader

FIRST_VERSION_WITH_TYPES: Final = 1


@answers(ListConfigResourcesRequest, 0, 1)
def handle(
    context: BrokerContext, header: RequestHeader, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """List the resources of each requested type; without types: of all.

    There are no client metrics to list. Groups are listed if they have a configuration. An unknown
    type is UNSUPPORTED_VERSION.
    """
    known = [*ResourceType]
    if header.api_version < FIRST_VERSION_WITH_TYPES:
        known = [ResourceType.CLIENT_METRICS]
    wanted = set(request.resource_types or known)
    if not wanted <= {*known}:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=resource_type)
            for resource_type in sorted(wanted)
            for name in _names(context, resource_type)
        ]
    )


def _names(context: BrokerContext, resource_type: int) -> list[str]:
    if resource_type == ResourceType.TOPIC:
        return sorted(context.image.topics)
    if resource_type == ResourceType.GROUP:
        return sorted(context.image.group_configs)
    # DEVIATION: Kafka lists the brokers as BROKER_LOGGER, too. Ours have no log levels to describe.
    # docs/decisions/0009-feature-levels.md
    if resource_type == ResourceType.BROKER:
        brokers = sorted(context.image.brokers.items())
        return [str(broker_id) for broker_id, broker in brokers if not broker.fenced]
    return []
