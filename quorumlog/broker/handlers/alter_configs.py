"""AlterConfigs (33): replaces a configuration; omitted keys get their default. Source: KIP-133."""

from quorumlog.broker.responses.config_alterations import Resource, alter_resources
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.metadata_quorum.cluster_changes import ConfigChange, ConfigChanges
from quorumlog.wire.codec.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader


@answers(AlterConfigsRequest, 0, 2)
async def handle(
    context: BrokerContext, header: RequestHeader, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    """Replace the configuration of each resource."""
    resources = list(map(_resource, request.resources))
    responses = await alter_resources(
        context, resources, AlterConfigsResourceResponse, validate_only=request.validate_only
    )
    return AlterConfigsResponse(responses=responses)


def _resource(asked: AlterConfigsResource) -> Resource:
    changes = tuple(ConfigChange(name=config.name, value=config.value) for config in asked.configs)
    wanted = ConfigChanges(name=asked.resource_name, changes=changes, replaces_all=True)
    return Resource(resource_type=asked.resource_type, wanted=wanted)
