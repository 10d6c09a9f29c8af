"""IncrementalAlterConfigs (44): set, delete, append, subtract; the rest stays. Source: KIP-339."""

from quorumlog.broker.responses.config_alterations import Resource, alter_resources
from quorumlog.broker.responses.config_entries import ResourceType
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.metadata_quorum.cluster_changes import ConfigChange, ConfigChanges, ConfigOperation
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader


@answers(IncrementalAlterConfigsRequest, 0, 1)
async def handle(
    context: BrokerContext, header: RequestHeader, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Alter the configuration of each resource."""
    resources = list(map(_resource, request.resources))
    responses = await alter_resources(
        context, resources, AlterConfigsResourceResponse, validate_only=request.validate_only
    )
    return IncrementalAlterConfigsResponse(responses=responses)


def _resource(asked: AlterConfigsResource) -> Resource:
    changes = []
    problem = None
    for config in asked.configs:
        try:
            operation = ConfigOperation(config.config_operation)
        except ValueError:
            # INVALID_REQUEST as in Kafka's broker; Kafka's controller fails with a null pointer.
            is_broker = asked.resource_type == ResourceType.BROKER
            code = ErrorCode.INVALID_REQUEST if is_broker else ErrorCode.UNKNOWN_SERVER_ERROR
            problem = code, f"Unknown operation type {config.config_operation}"
            break
        changes.append(ConfigChange(name=config.name, value=config.value, operation=operation))
    wanted = ConfigChanges(name=asked.resource_name, changes=tuple(changes))
    return Resource(resource_type=asked.resource_type, wanted=wanted, problem=problem)
