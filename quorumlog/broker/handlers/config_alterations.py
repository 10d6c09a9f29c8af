"""What AlterConfigs and IncrementalAlterConfigs have in common: which resources can be altered.

Topics can. Brokers, groups, loggers and client metrics are refused with a word on why. Sources:
KIP-133, KIP-226, KIP-339.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from quorumlog.broker.controller_requests.image_watch import SEEN_HERE_MS
from quorumlog.broker.handlers.error_messages import shortened
from quorumlog.broker.handlers.unanswered import unanswered
from quorumlog.broker.server.api import BrokerContext
from quorumlog.metadata_quorum.controller_client import (
    ConfigChange,
    ConfigResult,
    ControllerUnavailable,
    TopicConfigChanges,
)
from quorumlog.metadata_quorum.image import ClusterImage
from quorumlog.wire.codec.error_codes import ErrorCode

TOPIC: Final = 2
_AT_START: Final = (
    "a broker's configuration is not altered while it runs: change its properties file, its "
    "environment or its flags, and start it again"
)
REFUSALS: Final = MappingProxyType(
    {
        4: _AT_START,
        8: "log levels are not altered while a broker runs",
        16: "this broker takes no client metrics",
        32: "groups have no configuration here",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One resource of a request. `problem`: why its changes cannot be understood."""

    resource_type: int
    name: str
    changes: tuple[ConfigChange, ...] = ()
    replaces_all: bool = False
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one resource, in the words of both responses."""

    resource_type: int
    resource_name: str
    error_code: ErrorCode
    error_message: str | None


async def alter_resources(
    context: BrokerContext, resources: Sequence[Resource], *, validate_only: bool
) -> list[Outcome]:
    """Alter each on its own; answered once this broker knows of it, too, or after SEEN_HERE_MS."""
    outcomes = {place: _refuse(resource) for place, resource in enumerate(resources)}
    wanted = [place for place, outcome in outcomes.items() if outcome is None]
    if wanted:
        topics = [resources[place] for place in wanted]
        results = await _alter_topics(context, topics, validate_only=validate_only)
        for place, result in zip(wanted, results, strict=True):
            outcomes[place] = _outcome(resources[place], result.error_code, result.error_message)
    return [outcome for outcome in outcomes.values() if outcome is not None]


def _refuse(resource: Resource) -> Outcome | None:
    problem = resource.problem
    if problem is None and resource.resource_type != TOPIC:
        unknown = f"Unknown resource type {resource.resource_type}"
        problem = REFUSALS.get(resource.resource_type, unknown)
    return None if problem is None else _outcome(resource, ErrorCode.INVALID_REQUEST, problem)


def _outcome(resource: Resource, error_code: ErrorCode, message: str | None) -> Outcome:
    return Outcome(
        resource_type=resource.resource_type,
        resource_name=resource.name,
        error_code=error_code,
        error_message=shortened(message),
    )


async def _alter_topics(
    context: BrokerContext, topics: Sequence[Resource], *, validate_only: bool
) -> list[ConfigResult]:
    changes = [
        TopicConfigChanges(name=topic.name, changes=topic.changes, replaces_all=topic.replaces_all)
        for topic in topics
    ]
    try:
        results = await context.controller.alter_configs(changes, validate_only=validate_only)
    except ControllerUnavailable as error:
        error_code, message = unanswered(error, "the configuration may have been altered")
        return [
            ConfigResult(name=topic.name, error_code=error_code, error_message=message)
            for topic in topics
        ]
    altered = [result for result in results if result.error_code is ErrorCode.NONE]
    if altered and not validate_only:
        await context.metadata.wait_until(
            lambda image: all(_is_seen(image, result) for result in altered),
            timeout_ms=SEEN_HERE_MS,
        )
    return results


def _is_seen(image: ClusterImage, result: ConfigResult) -> bool:
    topic = image.topics.get(result.name)
    return topic is None or topic.configs == result.configs
