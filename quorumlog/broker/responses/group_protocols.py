"""The group protocols that are served (KIP-848): by the feature and by a setting."""

from typing import Final

from quorumlog.broker.server.api import BrokerContext

GROUP_FEATURE: Final = "group.version"
LEVEL_OF_CONSUMER_GROUPS: Final = 1


def consumer_groups_problem(context: BrokerContext) -> str | None:
    """Return why groups of the consumer protocol are not served; None: they are."""
    if context.image.features.get(GROUP_FEATURE, 0) < LEVEL_OF_CONSUMER_GROUPS:
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
