"""Alters the settings of single groups: set, delete, or replace all. Source: KIP-848, KIP-1043.

A group may have settings before it exists, and keeps them after its deletion, as in Kafka. It
refuses unknown names, bad values, values beyond the bounds of this node, a group that a request
repeats, and more groups with settings than a cluster may hold.
"""

from collections.abc import Mapping
from typing import Final

from quorumlog.metadata_quorum.cluster_changes import (
    DONE,
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
from quorumlog.metadata_quorum.image.records import GROUP_RESOURCE, MetadataRecord
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.settings.groups import GROUP_SETTINGS, bounds_problem, unknown_name
from quorumlog.settings.kinds import BadValue
from quorumlog.wire.codec.error_codes import ErrorCode

GROUPS_MAX: Final = 10_000  # with settings, in a cluster


def decide_group_configs(
    cluster: ClusterReplay, request: AlterGroupConfigs, limits: Mapping[str, int]
) -> tuple[tuple[MetadataRecord, ...], tuple[Outcome, ...]]:
    """Alter each group on its own: the failure of one leaves the others. `limits`: this node's.

    Raises TopicRefused: the request names too many of them.
    """
    named = len(request.groups) + sum(len(group.changes) for group in request.groups)
    check_named(named, "groups and configurations")
    groups_with_settings = {*cluster.group_configs}

    def alter(group: ConfigChanges, written: int) -> tuple[list[MetadataRecord], Outcome]:
        records = _alter(cluster, group, limits)
        check_records(written + len(records))
        if records:
            groups_with_settings.add(group.name)
        if len(groups_with_settings) > GROUPS_MAX:
            groups_with_settings.remove(group.name)
            message = f"A cluster holds configurations of at most {GROUPS_MAX} groups"
            raise TopicRefused(ErrorCode.POLICY_VIOLATION, message)
        return records, DONE

    twice = "Each resource must appear at most once."
    records, outcomes = decide_each(request.groups, alter, _outcome, twice=twice)
    return () if request.validate_only else records, outcomes


def _alter(
    cluster: ClusterReplay, group: ConfigChanges, limits: Mapping[str, int]
) -> list[MetadataRecord]:
    if not group.name:
        message = "Default group resources are not allowed."
        raise TopicRefused(ErrorCode.INVALID_REQUEST, message)
    check_form(group)
    before = cluster.group_configs.get(group.name, {})
    after = altered(group, before, GROUP_SETTINGS, _kept)
    problem = bounds_problem({name: int(text) for name, text in after.items()}, limits)
    if problem is not None:
        raise TopicRefused(ErrorCode.INVALID_CONFIG, problem)
    return records_between(GROUP_RESOURCE, group.name, before, after)


def _kept(name: str, value: str) -> str:
    """Return the normal form of a value."""
    setting = GROUP_SETTINGS.get(name)
    if setting is None:
        raise TopicRefused(ErrorCode.INVALID_CONFIG, unknown_name(name))
    try:
        return setting.kind.normalize(value)
    except BadValue as error:
        message = f"Invalid value {value} for configuration {name}: {error}"
        raise TopicRefused(ErrorCode.INVALID_CONFIG, message) from None


def _outcome(refusal: TopicRefused, _: str) -> Outcome:
    return refused(refusal.error_code, str(refusal))
