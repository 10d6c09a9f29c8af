"""Raises and lowers feature levels. Source: KIP-584, KIP-778; Kafka's `FeatureControlManager`.

It refuses levels that a registered broker or this node does not support, and a lower level while
the metadata has records that this level lacks.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from quorumlog.metadata_quorum.cluster_changes import (
    DONE,
    FeatureUpdate,
    Outcome,
    UpdateFeatures,
    UpgradeType,
    refused,
)
from quorumlog.metadata_quorum.controller.min_insync_replicas import around_level
from quorumlog.metadata_quorum.controller_client import NAMED_PER_REQUEST_MAX, BrokerRegistration
from quorumlog.metadata_quorum.image.access import AccessImage
from quorumlog.metadata_quorum.image.features import (
    LEVEL_OF_ACCESS,
    LEVEL_OF_CLIENT_METRICS,
    LEVEL_OF_DIRECTORIES,
    LEVEL_OF_GROUP_CONFIGS,
    LEVEL_OF_LAST_KNOWN_ELR,
    METADATA_FEATURE,
    NEW_CLUSTER_LEVELS,
    SUPPORTED,
    first_level,
    level_problem,
)
from quorumlog.metadata_quorum.image.records import FeatureLevel, MetadataRecord
from quorumlog.metadata_quorum.image.replay import ClusterReplay
from quorumlog.wire.codec.error_codes import ErrorCode

_REFUSAL: Final = ErrorCode.INVALID_UPDATE_VERSION


def decide_feature_levels(
    cluster: ClusterReplay, request: UpdateFeatures
) -> tuple[tuple[MetadataRecord, ...], tuple[Outcome, ...]]:
    """Change all levels or none (KIP-1022); the outcome has the first problem, or TopicRefused."""
    if len(request.updates) > NAMED_PER_REQUEST_MAX:
        message = f"A request may name at most {NAMED_PER_REQUEST_MAX} features"
        return (), (refused(_REFUSAL, message),)
    records: list[MetadataRecord] = []
    counts = Counter(update.name for update in request.updates)
    twice = next((name for name, count in counts.items() if count > 1), None)
    if twice is not None:
        return (), (refused(_REFUSAL, f"The feature {twice} is in the request twice"),)
    for update in request.updates:
        problem = _problem(cluster, update)
        if problem is not None:
            message = f"Invalid update version {update.level} for feature {update.name}. {problem}"
            return (), (refused(_REFUSAL, message),)
        is_set = cluster.was_level_requested(update.name)
        if not is_set or update.level != cluster.features[update.name]:
            record = FeatureLevel(name=update.name, level=update.level)
            records += around_level(cluster, record)
    return () if request.validate_only else tuple(records), (DONE,)


def levels_of_new_cluster(
    cluster: ClusterReplay, features: Mapping[str, tuple[int, int]]
) -> tuple[FeatureLevel, ...]:
    """Return the records to write before the first registration, of a broker with `features`.

    They set the newest levels that this broker supports. Empty if the cluster is not new.
    """
    if not cluster.is_new:
        return ()
    levels = {
        name: min(newest, features.get(name, (0, 0))[1])
        for name, newest in sorted(NEW_CLUSTER_LEVELS.items())
    }
    return tuple(
        FeatureLevel(name=name, level=level, is_automatic=True)
        for name, level in levels.items()
        if level > first_level(name)
    )


def level_for(
    cluster: ClusterReplay, needed: int, newcomer: BrokerRegistration | None = None
) -> tuple[FeatureLevel | None, Outcome | None]:
    """Return (record that raises the level to `needed`, refusal), at most one of which is set.

    Both are None if the level is in force. A level that a request has set stays. Any other level
    rises by itself, once every registered broker supports it. `newcomer`: a registration to count
    in place of the broker's earlier one.
    """
    level = cluster.feature_level(METADATA_FEATURE)
    if level >= needed:
        return None, None
    if cluster.was_level_requested(METADATA_FEATURE):
        problem: str | None = (
            f"{level} is in force, and stays until a request raises it: "
            f"quorumlog features upgrade {METADATA_FEATURE}={needed}"
        )
    else:
        problem = _broker_problem(cluster, METADATA_FEATURE, needed, newcomer)
    if problem is None:
        return FeatureLevel(name=METADATA_FEATURE, level=needed, is_automatic=True), None
    message = f"It needs level {needed} of {METADATA_FEATURE}. {problem}"
    return None, refused(ErrorCode.UNSUPPORTED_VERSION, message)


def _broker_problem(
    cluster: ClusterReplay, name: str, level: int, newcomer: BrokerRegistration | None = None
) -> str | None:
    supported = {broker.broker_id: broker.features for broker in cluster.brokers.values()}
    if newcomer is not None:
        supported[newcomer.broker_id] = newcomer.features
    for broker_id, features in supported.items():
        if level_problem(features, name, level) is not None:
            return f"Broker {broker_id} does not support this level."
    return None


def _problem(cluster: ClusterReplay, update: FeatureUpdate) -> str | None:
    if update.name not in SUPPORTED:
        return "The controller does not support this feature."
    least, greatest = SUPPORTED[update.name]
    if not least <= update.level <= greatest:
        return f"The controller only supports versions {least}-{greatest}"
    problem = _broker_problem(cluster, update.name, update.level)
    if problem is not None:
        return problem
    level = cluster.feature_level(update.name)
    if update.level > level and update.upgrade_type != UpgradeType.UPGRADE:
        return "Can't downgrade to a newer level."
    if update.level < level:
        return _downgrade_problem(cluster, update)
    return None


def _downgrade_problem(cluster: ClusterReplay, update: FeatureUpdate) -> str | None:
    if update.upgrade_type == UpgradeType.UPGRADE:
        return "Can't downgrade the level of this feature without setting the upgrade type."
    if update.upgrade_type == UpgradeType.UNSAFE_DOWNGRADE:
        return "Unsafe metadata downgrade is not supported in this version."
    if update.name != METADATA_FEATURE:
        return None  # a protocol's level: its stored records are readable at any level
    return _lost_by(cluster, update.level)


def _lost_by(cluster: ClusterReplay, level: int) -> str | None:
    """Return a message about metadata that a lower level cannot express, or None."""
    if level < LEVEL_OF_LAST_KNOWN_ELR and _has_last_known_elrs(cluster):
        return "There are replicas that may lack records: wait until they are in sync again."
    if level < LEVEL_OF_GROUP_CONFIGS and cluster.group_configs:
        return "There are configurations of groups, which it lacks: delete them first."
    if level < LEVEL_OF_CLIENT_METRICS and cluster.client_metrics:
        return "There are subscriptions to metrics of clients, which it lacks: delete them first."
    if level < LEVEL_OF_DIRECTORIES and _has_directories(cluster):
        return "There are brokers with several log directories, or replicas in them."
    if level < LEVEL_OF_ACCESS and cluster.access.freeze() != AccessImage():
        return "There are ACLs, client quotas or credentials, which it lacks: delete them first."
    return None


def _has_directories(cluster: ClusterReplay) -> bool:
    return any(broker.log_dirs for broker in cluster.brokers.values()) or any(
        partition.directories
        for name in cluster.topic_names()
        for partition in cluster.partitions(name)
    )


def _has_last_known_elrs(cluster: ClusterReplay) -> bool:
    return any(
        partition.last_known_elr
        for name in cluster.topic_names()
        for partition in cluster.partitions(name)
    )
