"""The common part of AlterConfigs and IncrementalAlterConfigs: the resources that can be altered.

These are topics, groups, subscriptions to metrics of clients, this broker, and the settings of all
brokers. Loggers are refused with a reason. Sources: KIP-133, KIP-226, KIP-339, KIP-714, KIP-848.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, TypeVar

from quorumlog.broker.controller_requests.image_watch import SEEN_HERE_MS
from quorumlog.broker.responses.config_entries import ResourceType
from quorumlog.broker.responses.controller_answers import changed_cluster, decided, shortened
from quorumlog.broker.server.api import BrokerContext
from quorumlog.metadata_quorum.cluster_changes import (
    AlterClientMetrics,
    AlterGroupConfigs,
    ConfigChanges,
    ConfigResult,
    Outcome,
    ResourceChange,
)
from quorumlog.metadata_quorum.controller_requests import AlterConfigs
from quorumlog.settings.kafka_names import nearest_name
from quorumlog.settings.servers import read_only_names, why_not_altered
from quorumlog.wire.codec.error_codes import ErrorCode

_logger = logging.getLogger(__name__)
R = TypeVar("R")

REFUSALS: Final[Mapping[int, str]] = MappingProxyType(
    {ResourceType.BROKER_LOGGER: "log levels are not altered while a broker runs"}
)
CONTROLLERS: Final = frozenset(
    {ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLIENT_METRICS}
)
"""The resource types whose changes the controller decides, under any resource name."""
ON_THEIR_OWN: Final[tuple[int, ...]] = (ResourceType.GROUP, ResourceType.CLIENT_METRICS)
"""Those that a request to the controller does not mix with other types."""
HINTS_MAX: Final = 20
"""How many unknown names of a request are logged and compared with existing names."""
DOUBT: Final = "the configuration may have been altered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One resource of a request. `problem`: why its changes are malformed."""

    resource_type: int
    wanted: ConfigChanges
    problem: tuple[ErrorCode, str] | None = None


async def alter_resources(
    context: BrokerContext,
    resources: Sequence[Resource],
    response: Callable[..., R],
    *,
    validate_only: bool,
) -> list[R]:
    """Alter each resource on its own; return a `response` of the API for each.

    It waits until this broker's image has the alterations, at most SEEN_HERE_MS.
    """
    problems = [_problem(context, resource) for resource in resources]
    valid = [one for one, problem in zip(resources, problems, strict=True) if problem is None]
    topics = [
        replace(resource.wanted, is_broker=resource.resource_type == ResourceType.BROKER)
        for resource in valid
        if resource.resource_type not in ON_THEIR_OWN
    ]
    altered = iter(await _alter_topics(context, topics, validate_only=validate_only))
    on_their_own = {
        kind: iter(await _alter(context, kind, valid, validate_only=validate_only))
        for kind in ON_THEIR_OWN
    }
    responses = []
    message: str | None
    for resource, problem in zip(resources, problems, strict=True):
        if problem is not None:
            error_code, message = problem
        else:
            result: ConfigResult | Outcome
            if resource.resource_type in ON_THEIR_OWN:
                result = next(on_their_own[resource.resource_type])
            else:
                result = next(altered)
            error_code, message = result.error_code, result.error_message
            if error_code is ErrorCode.NONE and not validate_only:
                _log_without_effect(context, resource)
        responses.append(
            response(
                error_code=error_code,
                error_message=shortened(message),
                resource_type=resource.resource_type,
                resource_name=resource.wanted.name,
            )
        )
    return responses


async def _alter_topics(
    context: BrokerContext, topics: Sequence[ConfigChanges], *, validate_only: bool
) -> Sequence[ConfigResult]:
    if not topics:
        return []
    return await decided(
        context,
        AlterConfigs(topics=tuple(topics), validate_only=validate_only),
        names=[topic.name for topic in topics],
        kind=ConfigResult,
        doubt=DOUBT,
        # A later request may have altered it again.
        is_seen=lambda image, result: image.end_offset >= result.end_offset,
        wait_ms=None if validate_only else SEEN_HERE_MS,
    )


async def _alter(
    context: BrokerContext, kind: int, resources: Sequence[Resource], *, validate_only: bool
) -> list[Outcome]:
    changes = tuple(one.wanted for one in resources if one.resource_type == kind)
    if not changes:
        return []
    change: ResourceChange
    if kind == ResourceType.GROUP:
        change = AlterGroupConfigs(groups=changes, validate_only=validate_only)
    else:
        change = AlterClientMetrics(subscriptions=changes, validate_only=validate_only)
    return await changed_cluster(context, change, doubt=DOUBT)


def _log_without_effect(context: BrokerContext, resource: Resource) -> None:
    """Log altered broker settings that have no effect; their values may be secret."""
    if resource.resource_type != ResourceType.BROKER:
        return
    table, name = context.static.table, resource.wanted.name
    whose = f"broker {name}" if name else "all brokers"
    names = resource.wanted.given_names
    ignored = sorted(name for name in names if name in table and table[name].without_effect)
    if ignored:
        _logger.warning(
            "these settings of Apache Kafka were altered for %s and have no effect here: %s",
            whose,
            ", ".join(ignored),
        )
    unknown = sorted(name for name in names if name not in table)
    if unknown:
        hints = [_with_hint(name, table) for name in unknown[:HINTS_MAX]]
        if len(unknown) > HINTS_MAX:
            hints.append(f"and {len(unknown) - HINTS_MAX} more")
        _logger.warning(
            "unknown settings altered for %s, without effect: %s", whose, ", ".join(hints)
        )


def _with_hint(name: str, known: Iterable[str]) -> str:
    near = nearest_name(name, known)
    return f"{name!r} (did you mean {near}?)" if near else repr(name)  # names may have any letters


def _problem(context: BrokerContext, resource: Resource) -> tuple[ErrorCode, str] | None:
    """Return why a resource cannot be altered; None: the controller decides about its changes."""
    name, broker_id = resource.wanted.name, context.broker_id
    if resource.resource_type == ResourceType.BROKER:
        if name not in {"", str(broker_id)}:
            message = (
                f"Unexpected broker id, expected {broker_id} or empty string, but received {name}"
            )
            return ErrorCode.INVALID_REQUEST, message
        if resource.problem is not None:
            return resource.problem
        read_only = read_only_names(context.static.table)
        why = why_not_altered(resource.wanted.given_names, read_only)
        return None if why is None else (ErrorCode.INVALID_REQUEST, why)
    if resource.problem is not None or resource.resource_type in CONTROLLERS:
        return resource.problem
    unknown = f"Unknown resource type {resource.resource_type}"
    return ErrorCode.INVALID_REQUEST, REFUSALS.get(resource.resource_type, unknown)
