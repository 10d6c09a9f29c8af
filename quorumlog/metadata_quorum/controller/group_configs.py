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
from quorumlog.metadata_quorum.controller.configs import check_form, value_after
from quorumlog.metadata_quorum.controller.refusals import (
    TopicRefused,
    check_named,
    check_records,
    decide_each,
)
from quorumlog.metadata_quorum.image.records import GROUP_RESOURCE, Config, MetadataRecord
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.settings.groups import GROUP_SETTINGS, bounds_problem, unknown_name
from quorumlog.settings.kinds import BadValue
from quorumlog.wire.codec.error_codes import ErrorCode

GROUPS_MAX: Final = 10_000  # with settings, in a cluster


def decide_group_configs(
    cluster: ClusterReplay, request: AlterGroupConfigs, limits: Mapping[str, int]
) -> tuple[tuple[MetadataRecord, ...], tuple[Outcome, ...]]:
    """Alter each group on its own: the failure of one leaves the others. `limits`: this node's."""
    try:
        named = len(request.groups) + sum(len(group.changes) for group in request.groups)
        check_named(named, "groups and configurations")
    except TopicRefused as refusal:
        return (), (_outcome(refusal, ""),) * len(request.groups)
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
    after = {} if group.replaces_all else dict(before)
    for change in group.changes:
        value = value_after(change, before.get(change.name), GROUP_SETTINGS)
        if value is None:
            after.pop(change.name, None)
        else:
            after[change.name] = _kept(change.name, value)
    problem = bounds_problem({name: int(text) for name, text in after.items()}, limits)
    if problem is not None:
        raise TopicRefused(ErrorCode.INVALID_CONFIG, problem)
    records: list[MetadataRecord] = [
        Config(
            resource_type=GROUP_RESOURCE, resource_name=group.name, name=name, value=after.get(name)
        )
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]
    return records


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
