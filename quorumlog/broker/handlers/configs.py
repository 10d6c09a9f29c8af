"""DescribeConfigs (32), ListConfigResources (74): topics, groups, brokers, metrics of clients.

Source: KIP-133, KIP-226, KIP-569, KIP-1142. In version 0 the second API was
ListClientMetricsResources (KIP-714), and lists only client metrics.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from quorumlog.broker.responses.config_entries import (
    ConfigEntry,
    ResourceType,
    broker_entries,
    client_metrics_entries,
    cluster_entries,
    group_entries,
    topic_entries,
)
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.settings.servers import BrokerConfig
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from quorumlog.wire.codec.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from quorumlog.wire.codec.schemas import RequestHeader
from quorumlog.wire.codec.topic_names import topic_name_error


class _Refusal(NamedTuple):
    """The error of a resource that cannot be described."""

    error_code: ErrorCode
    message: str | None = None


@answers(DescribeConfigsRequest, 1, 4)
def handle_describe(
    context: BrokerContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Describe each resource; without keys (null or empty): all its entries."""
    broker = context.config  # read once: it checks each altered value
    return DescribeConfigsResponse(
        results=[_describe(context, broker, resource, request) for resource in request.resources]
    )


def _describe(
    context: BrokerContext,
    broker: BrokerConfig,
    resource: DescribeConfigsResource,
    request: DescribeConfigsRequest,
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    found = _entries(context, broker, resource)
    if isinstance(found, _Refusal):
        result.error_code, result.error_message = found
        return result
    wanted = resource.configuration_keys
    result.configs = [
        _shown(entry, request) for entry in found if not wanted or entry.name in wanted
    ]
    return result


UNNAMED: Final[Mapping[int, str]] = MappingProxyType(
    {
        ResourceType.GROUP: "Group name must not be empty",
        ResourceType.CLIENT_METRICS: "Client metrics subscription name must not be empty",
    }
)


def _entries(
    context: BrokerContext, broker: BrokerConfig, resource: DescribeConfigsResource
) -> Iterable[ConfigEntry] | _Refusal:
    name = resource.resource_name
    match resource.resource_type:
        case ResourceType.TOPIC:
            return _topic_entries(context, broker, name)
        case ResourceType.BROKER if name == str(context.broker_id):
            return broker_entries(broker)
        case ResourceType.BROKER if not name:
            return cluster_entries(context.image.broker_config(None))
        case ResourceType.GROUP if name:
            return group_entries(broker, context.image.group_configs.get(name, {}))
        case ResourceType.CLIENT_METRICS if name:
            return client_metrics_entries(context.image.client_metrics.get(name, {}))
        case kind:
            message = UNNAMED.get(kind) or (
                f"this is broker {context.broker_id}: it describes topics, groups, client metrics "
                "and itself"
            )
            return _Refusal(ErrorCode.INVALID_REQUEST, message)


def _topic_entries(
    context: BrokerContext, broker: BrokerConfig, name: str
) -> Iterable[ConfigEntry] | _Refusal:
    topic = context.image.topics.get(name)
    if topic is not None:
        return topic_entries(broker, topic.configs)
    problem = topic_name_error(name)
    if problem is None:
        return _Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return _Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)


def _shown(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    levels = entry.levels if request.include_synonyms else []
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        config_type=entry.config_type,
        documentation=entry.documentation if request.include_documentation else None,
        synonyms=[
            DescribeConfigsSynonym(
                name=level.name,
                value=None if entry.is_sensitive else level.value,
                source=level.source,
            )
            for level in levels
        ],
    )


FIRST_VERSION_WITH_TYPES: Final = 1


@answers(ListConfigResourcesRequest, 0, 1)
def handle_list(
    context: BrokerContext, header: RequestHeader, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """List the resources of each requested type; without types: of all.

    Groups and subscriptions to metrics are listed if they have a configuration. An unknown type is
    UNSUPPORTED_VERSION.
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
    if resource_type == ResourceType.CLIENT_METRICS:
        return sorted(context.image.client_metrics)
    # DEVIATION: Kafka lists the brokers as BROKER_LOGGER, too. Ours have no log levels to describe.
    # docs/decisions/0009-feature-levels.md
    if resource_type == ResourceType.BROKER:
        brokers = sorted(context.image.brokers.items())
        return [str(broker_id) for broker_id, broker in brokers if not broker.fenced]
    return []
