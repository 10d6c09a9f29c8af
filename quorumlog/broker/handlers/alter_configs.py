"""AlterConfigs (33), IncrementalAlterConfigs (44): topics, groups and brokers.

The first replaces a configuration: omitted keys get their default. The second sets, deletes,
appends and subtracts; the rest stays. Sources: KIP-133, KIP-339.
"""

from quorumlog.broker.responses.config_alterations import Resource, alter_resources
from quorumlog.broker.responses.config_entries import ResourceType
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.metadata_quorum.cluster_changes import ConfigChange, ConfigChanges, ConfigOperation
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages import alter_configs as whole
from quorumlog.wire.codec.messages import incremental_alter_configs as incremental


@answers(whole.AlterConfigsRequest, 0, 2)
async def handle(
    context: BrokerContext, request: whole.AlterConfigsRequest
) -> whole.AlterConfigsResponse:
    """Replace the configuration of each resource."""
    resources = list(map(_replacement, request.resources))
    kind = whole.AlterConfigsResourceResponse
    altered = alter_resources(context, resources, kind, validate_only=request.validate_only)
    return whole.AlterConfigsResponse(responses=await altered)


def _replacement(asked: whole.AlterConfigsResource) -> Resource:
    changes = tuple(ConfigChange(name=config.name, value=config.value) for config in asked.configs)
    wanted = ConfigChanges(name=asked.resource_name, changes=changes, replaces_all=True)
    return Resource(resource_type=asked.resource_type, wanted=wanted)


@answers(incremental.IncrementalAlterConfigsRequest, 0, 1)
async def handle_incremental(
    context: BrokerContext, request: incremental.IncrementalAlterConfigsRequest
) -> incremental.IncrementalAlterConfigsResponse:
    """Alter the configuration of each resource."""
    resources = list(map(_alteration, request.resources))
    kind = incremental.AlterConfigsResourceResponse
    altered = alter_resources(context, resources, kind, validate_only=request.validate_only)
    return incremental.IncrementalAlterConfigsResponse(responses=await altered)


def _alteration(asked: incremental.AlterConfigsResource) -> Resource:
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
