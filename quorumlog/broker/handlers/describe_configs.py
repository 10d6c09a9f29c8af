"""DescribeConfigs (32): of topics, and of this broker. Source: KIP-133, KIP-226, KIP-569."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from enum import IntEnum
from typing import Final

from quorumlog.broker.handlers.topic_configs import TOPIC_CONFIGS, ConfigType, broker_default
from quorumlog.broker.server.api import ApiHandler, BrokerContext
from quorumlog.broker.settings import BrokerSettings
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

TOPIC: Final = 2
BROKER: Final = 4


class ConfigSource(IntEnum):
    """Where a value comes from."""

    DYNAMIC_TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5


def handle(
    context: BrokerContext, header: RequestHeader, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Describe each resource; without keys (null or none): all of it."""
    del header
    return DescribeConfigsResponse(
        results=[
            _describe(context, resource, request.include_synonyms) for resource in request.resources
        ]
    )


def _describe(
    context: BrokerContext, resource: DescribeConfigsResource, with_synonyms: bool
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    name = resource.resource_name
    if resource.resource_type == TOPIC:
        topic = context.image.topics.get(name)
        if topic is None:
            is_name = is_topic_name(name)
            result.error_code = (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if is_name
                else ErrorCode.INVALID_TOPIC_EXCEPTION
            )
            return result
        configs = topic_configs(context.settings, topic.configs)
    elif resource.resource_type == BROKER and not name:
        return result  # what all brokers are told at run time: nothing, so far
    elif resource.resource_type == BROKER and name == str(context.broker_id):
        configs = _broker_configs(context)
    else:
        result.error_code = ErrorCode.INVALID_REQUEST
        result.error_message = f"this is broker {context.broker_id}: it describes topics and itself"
        return result
    wanted = resource.configuration_keys
    result.configs = [config for config in configs if not wanted or config.name in wanted]
    if with_synonyms:
        for config in result.configs:
            own = DescribeConfigsSynonym(
                name=config.name, value=config.value, source=config.config_source
            )
            config.synonyms = [own]
    return result


def topic_configs(
    settings: BrokerSettings, given: Mapping[str, str]
) -> Iterator[DescribeConfigsResourceResult]:
    """Yield every setting of a topic that is `given` these, as DescribeConfigs shows it."""
    for name in sorted({*TOPIC_CONFIGS, *given}):
        config_type, default = TOPIC_CONFIGS.get(name, (ConfigType.STRING, ""))
        is_given = name in given
        yield DescribeConfigsResourceResult(
            name=name,
            value=given[name] if is_given else broker_default(settings, name, default),
            config_source=ConfigSource.DYNAMIC_TOPIC if is_given else ConfigSource.DEFAULT,
            config_type=config_type,
        )


def _broker_configs(context: BrokerContext) -> Iterator[DescribeConfigsResourceResult]:
    settings, broker = context.settings, context.image.brokers.get(context.broker_id)
    if broker is not None:
        yield DescribeConfigsResourceResult(
            name="advertised.listeners",
            value=f"PLAINTEXT://{broker.host}:{broker.port}",
            read_only=True,
            config_source=ConfigSource.STATIC_BROKER,
            config_type=ConfigType.LIST,
        )
    for field in sorted(fields(settings), key=lambda field: field.name):
        value = getattr(settings, field.name)
        is_default = value == field.default
        is_flag = isinstance(value, bool)
        yield DescribeConfigsResourceResult(
            name=field.name.replace("_", "."),
            value=str(value).lower() if is_flag else str(value),
            read_only=True,
            config_source=ConfigSource.DEFAULT if is_default else ConfigSource.STATIC_BROKER,
            config_type=ConfigType.BOOLEAN if is_flag else ConfigType.LONG,
        )


HANDLER = ApiHandler(
    api_key=DescribeConfigsRequest.API_KEY, min_version=1, max_version=4, handle=handle
)
