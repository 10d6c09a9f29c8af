"""The feature levels that this cluster announces: only implemented features.

Source: KIP-584 (features), KIP-853 (kraft.version), KIP-848 (group.version), KIP-890
(transaction.version), KIP-966 (eligible.leader.replicas.version).
docs/decisions/0009-feature-levels.md lists the announced features.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from quorumlog.broker.server.api import BrokerContext
from quorumlog.metadata_quorum.image import ClusterImage, features
from quorumlog.metadata_quorum.image.features import SUPPORTED, first_level
from quorumlog.settings import releases
from quorumlog.wire.codec.messages.api_versions import FinalizedFeatureKey, SupportedFeatureKey

# Clients of older versions refuse a range that begins at 0 (KAFKA-17011).
FIRST_VERSION_WITH_LEVEL_ZERO: Final = 4


class Feature(NamedTuple):
    """Levels [min_level, max_level] are supported; `max_level` is in force, from the start on.

    Except for kraft.version, whose level the quorum decides.
    """

    name: str
    min_level: int
    max_level: int


KRAFT_VERSION: Final = features.KRAFT_FEATURE
KRAFT_VERSION_MAX: Final = features.KRAFT_VERSION_MAX

FEATURES: Final = (
    Feature("eligible.leader.replicas.version", 1, 1),  # always on
    Feature(KRAFT_VERSION, 0, KRAFT_VERSION_MAX),  # 1: the voters can change
    # DEVIATION: Kafka's level numbers its metadata formats. This one names a release: 4.1-IV1.
    # docs/decisions/0009-feature-levels.md
    Feature("metadata.version", 27, 27),
)


def _ours() -> list[tuple[str, int, int]]:
    """Return the name and the levels of each feature whose level is in metadata records."""
    return [(name, least, greatest) for name, (least, greatest) in sorted(SUPPORTED.items())]


def kraft_version_problem(image: ClusterImage, level: int) -> str | None:
    """Return the problem of a registered broker that cannot read this kraft.version.

    None: all can. A broker whose release does not announce the feature reads version 0 only.
    """
    for broker_id, broker in sorted(image.brokers.items()):
        least, greatest = broker.features.get(KRAFT_VERSION, (0, 0))
        if not least <= level <= greatest:
            return f"Broker {broker_id} does not support {KRAFT_VERSION} {level}."
    return None


def _as_release(context: BrokerContext, levels: Mapping[str, int]) -> Mapping[str, int]:
    """Return the levels, at most those of the release that this broker answers as.

    Without the features that this release lacks.
    """
    release = context.settings.as_version
    if release == releases.NEWEST:
        return levels
    highest = releases.feature_levels(release)
    return {name: min(level, highest[name]) for name, level in levels.items() if name in highest}


def supported_features(context: BrokerContext, version: int) -> list[SupportedFeatureKey]:
    """Return the features for a response to ApiVersions of this version."""
    least = 0 if version >= FIRST_VERSION_WITH_LEVEL_ZERO else 1
    constant = [(feature.name, feature.min_level, feature.max_level) for feature in FEATURES]
    ranges = (*constant, *_ours())
    highest = _as_release(context, {name: high for name, _, high in ranges})
    return [
        SupportedFeatureKey(
            name=name, min_version=max(min(low, highest[name]), least), max_version=highest[name]
        )
        for name, low, _ in ranges
        if name in highest
    ]


def finalized_features(context: BrokerContext) -> list[FinalizedFeatureKey]:
    """Return the finalized features; level 0 means "off" and is left out, as in Kafka."""
    levels = {feature.name: feature.max_level for feature in FEATURES}
    levels[KRAFT_VERSION] = context.controller.kraft_version
    levels |= {
        name: context.image.features.get(name, first_level(name)) for name in sorted(SUPPORTED)
    }
    return [
        FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
        for name, level in _as_release(context, levels).items()
        if level > 0
    ]


GROUP_FEATURE: Final = "group.version"
LEVEL_OF_CONSUMER_GROUPS: Final = 1


def consumer_groups_problem(context: BrokerContext) -> str | None:
    """Return why groups of the consumer protocol are not served; None: they are."""
    levels = _as_release(context, context.image.features)
    if levels.get(GROUP_FEATURE, 0) < LEVEL_OF_CONSUMER_GROUPS:
        return (
            "this cluster does not have the consumer group protocol (KIP-848) yet: set "
            f"group.protocol=classic, or let {GROUP_FEATURE} be {LEVEL_OF_CONSUMER_GROUPS}"
        )
    if "consumer" not in context.settings.group_coordinator_rebalance_protocols.split(","):
        return (
            "this broker does not serve the consumer group protocol: it is not in "
            "group.coordinator.rebalance.protocols; set group.protocol=classic"
        )
    return None
