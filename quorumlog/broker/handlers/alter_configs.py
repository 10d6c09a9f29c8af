"""AlterConfigs (33): what is not named goes back to its default. Source: KIP-133."""

from quorumlog.broker.handlers.config_alterations import Resource, alter_resources
from quorumlog.broker.server.api import ApiHandler, BrokerContext
from quorumlog.metadata_quorum.controller_client import ConfigChange
from quorumlog.wire.codec.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader


async def handle(
    context: BrokerContext, header: RequestHeader, request: AlterConfigsRequest
) -> AlterConfigsResponse:
    """Replace the configuration of each resource."""
    del header
    outcomes = await alter_resources(
        context, list(map(_resource, request.resources)), validate_only=request.validate_only
    )
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResourceResponse(
                error_code=outcome.error_code,
                error_message=outcome.error_message,
                resource_type=outcome.resource_type,
                resource_name=outcome.resource_name,
            )
            for outcome in outcomes
        ]
    )


def _resource(asked: AlterConfigsResource) -> Resource:
    return Resource(
        resource_type=asked.resource_type,
        name=asked.resource_name,
        changes=tuple(
            ConfigChange(name=config.name, value=config.value) for config in asked.configs
        ),
        replaces_all=True,
    )


HANDLER = ApiHandler(
    api_key=AlterConfigsRequest.API_KEY, min_version=0, max_version=2, handle=handle
)
