"""DescribeConfigs (32): of topics, groups and this broker. Source: KIP-133, KIP-226, KIP-569."""

from collections.abc import Iterable

from quorumlog.broker.handlers.config_entries import ConfigEntry, broker_entries, topic_entries
from quorumlog.broker.handlers.list_config_resources import ResourceType
from quorumlog.broker.server.api import ApiHandler, BrokerContext
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from quorumlog.wire.codec.schemas import RequestHeader
from quorumlog.wire.codec.topic_names import is_topic_name


class _Refused(Exception):
    """A resource cannot be described."""

    def __init__(self, error_code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message)
        self.error_code = error_code
        self.message = message


def handle(
    context: BrokerContext, header: RequestHeader, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Describe each resource; without keys (null or none): all of it."""
    del header
    return DescribeConfigsResponse(
        results=[_describe(context, resource, request) for resource in request.resources]
    )


def _describe(
    context: BrokerContext, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    wanted = resource.configuration_keys
    try:
        result.configs = [
            _shown(entry, request)
            for entry in _entries(context, resource)
            if not wanted or entry.name in wanted
        ]
    except _Refused as refusal:
        result.error_code, result.error_message = refusal.error_code, refusal.message
    return result


def _entries(context: BrokerContext, resource: DescribeConfigsResource) -> Iterable[ConfigEntry]:
    name = resource.resource_name
    match resource.resource_type:
        case ResourceType.TOPIC:
            topic = context.image.topics.get(name)
            if topic is not None:
                return topic_entries(context.static, topic.configs)
            if is_topic_name(name):
                raise _Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            raise _Refused(ErrorCode.INVALID_TOPIC_EXCEPTION)
        case ResourceType.BROKER if not name:
            return ()  # the settings that all brokers are given while they run: none can be
        case ResourceType.BROKER if name == str(context.broker_id):
            return broker_entries(context.static)
        case ResourceType.GROUP if name:
            return ()  # Kafka's are those of protocols that are not here
        case ResourceType.GROUP:
            raise _Refused(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        case _:
            message = f"this is broker {context.broker_id}: it describes topics, groups and itself"
            raise _Refused(ErrorCode.INVALID_REQUEST, message)


def _shown(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    levels = entry.levels if request.include_synonyms else []
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        config_type=entry.config_type,
        documentation=entry.documentation if request.include_documentation else None,
        synonyms=[
            DescribeConfigsSynonym(name=level.name, value=level.value, source=level.source)
            for level in levels
        ],
    )


HANDLER = ApiHandler(
    api_key=DescribeConfigsRequest.API_KEY, min_version=1, max_version=4, handle=handle
)
