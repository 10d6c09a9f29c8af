"""Alters the settings of groups and of subscriptions to metrics: set, delete, or replace all.

A group may have settings before it exists, and keeps them after its deletion, as in Kafka. A
subscription (KIP-714) exists while it has settings. Refused: unknown names, bad values, values
beyond the bounds of this node, a resource that a request repeats, and more resources with settings
than a cluster may hold. Source: KIP-848, KIP-1043.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from quorumlog.metadata_quorum.cluster_changes import (
    DONE,
    AlterClientMetrics,
    AlterGroupConfigs,
    ConfigChanges,
    Outcome,
    refused,
)
from quorumlog.metadata_quorum.controller.configs import altered, check_form, records_between
from quorumlog.metadata_quorum.controller.refusals import (
    TopicRefused,
    check_named,
    check_records,
    decide_each,
)
from quorumlog.metadata_quorum.image.records import (
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    MetadataRecord,
)
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.settings.client_metrics import CLIENT_METRICS, interval_problem
from quorumlog.settings.groups import GROUP_SETTINGS, bounds_problem, unknown_name
from quorumlog.settings.kinds import BadValue
from quorumlog.settings.servers import ServerSetting
from quorumlog.wire.codec.error_codes import ErrorCode

GROUPS_MAX: Final = 10_000  # with settings, in a cluster
SUBSCRIPTIONS_MAX: Final = 100  # each is compared with each client

Decided = tuple[tuple[MetadataRecord, ...], tuple[Outcome, ...]]


def decide_group_configs(
    cluster: ClusterReplay, request: AlterGroupConfigs, limits: Mapping[str, int]
) -> Decided:
    """Alter each group on its own: the failure of one leaves the others. `limits`: this node's.

    Raises TopicRefused: the request names too many of them.
    """
    records, outcomes = _decide(
        request.groups,
        {*cluster.group_configs},
        lambda group: _alter(cluster, group, limits),
        most=(GROUPS_MAX, "configurations of at most {} groups"),
    )
    return () if request.validate_only else records, outcomes


def decide_client_metrics(cluster: ClusterReplay, request: AlterClientMetrics) -> Decided:
    """Alter each subscription on its own. Raises TopicRefused: the request names too many."""
    records, outcomes = _decide(
        request.subscriptions,
        {*cluster.client_metrics},
        lambda subscription: _subscribe(cluster, subscription),
        most=(SUBSCRIPTIONS_MAX, "at most {} subscriptions to metrics of clients"),
    )
    return () if request.validate_only else records, outcomes


def _decide(
    resources: Sequence[ConfigChanges],
    configured: set[str],
    alter_one: Callable[[ConfigChanges], list[MetadataRecord]],
    *,
    most: tuple[int, str],
) -> Decided:
    named = len(resources) + sum(len(one.changes) for one in resources)
    check_named(named, "resources and configurations")
    limit, limited = most

    def alter(resource: ConfigChanges, written: int) -> tuple[list[MetadataRecord], Outcome]:
        records = alter_one(resource)
        check_records(written + len(records))
        if records:
            configured.add(resource.name)
        if len(configured) > limit:
            configured.remove(resource.name)
            message = f"A cluster holds {limited.format(limit)}"
            raise TopicRefused(ErrorCode.POLICY_VIOLATION, message)
        return records, DONE

    twice = "Each resource must appear at most once."
    return decide_each(resources, alter, _outcome, twice=twice)


def _alter(
    cluster: ClusterReplay, group: ConfigChanges, limits: Mapping[str, int]
) -> list[MetadataRecord]:
    if not group.name:
        message = "Default group resources are not allowed."
        raise TopicRefused(ErrorCode.INVALID_REQUEST, message)
    check_form(group)
    before = cluster.group_configs.get(group.name, {})
    after = altered(group, before, GROUP_SETTINGS, partial(_kept, GROUP_SETTINGS, unknown_name))
    problem = bounds_problem({name: int(text) for name, text in after.items()}, limits)
    if problem is not None:
        raise TopicRefused(ErrorCode.INVALID_CONFIG, problem)
    return records_between(GROUP_RESOURCE, group.name, before, after)


def _subscribe(cluster: ClusterReplay, subscription: ConfigChanges) -> list[MetadataRecord]:
    if not subscription.name:
        message = "Default client metrics resources are not allowed."
        raise TopicRefused(ErrorCode.INVALID_REQUEST, message)
    check_form(subscription)
    unknown = sorted({*subscription.given_names} - CLIENT_METRICS.keys())
    if unknown:
        message = f"Unknown client metrics configuration: {unknown[0]}"
        raise TopicRefused(ErrorCode.INVALID_REQUEST, message)
    before = cluster.client_metrics.get(subscription.name, {})
    after = altered(subscription, before, CLIENT_METRICS, partial(_kept, CLIENT_METRICS, str))
    problem = interval_problem(after)
    if problem is not None:
        raise TopicRefused(ErrorCode.INVALID_REQUEST, problem)
    return records_between(CLIENT_METRICS_RESOURCE, subscription.name, before, after)


def _kept(
    settings: Mapping[str, ServerSetting[Any]], unknown: Callable[[str], str], name: str, value: str
) -> str:
    """Return the normal form of a value. `unknown`: the message for a name without a row."""
    setting = settings.get(name)
    if setting is None:
        raise TopicRefused(ErrorCode.INVALID_CONFIG, unknown(name))
    try:
        return setting.kind.normalize(value)
    except BadValue as error:
        message = f"Invalid value {value} for configuration {name}: {error}"
        raise TopicRefused(ErrorCode.INVALID_CONFIG, message) from None


def _outcome(refusal: TopicRefused, _: str) -> Outcome:
    return refused(refusal.error_code, str(refusal))
