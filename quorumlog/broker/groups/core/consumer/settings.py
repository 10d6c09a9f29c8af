"""The settings `group.consumer.*` of a coordinator, with Kafka's defaults."""

from dataclasses import dataclass

from quorumlog.broker.settings import BrokerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupSettings:
    """Limits and intervals of groups of the consumer protocol.

    `assignors`: their names; the first one serves groups whose members name none.
    `migration_policy`: whether groups may change their protocol while they have members.
    """

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5000
    max_size: int = (1 << 31) - 1
    assignors: tuple[str, ...] = ("uniform", "range")
    migration_policy: str = "bidirectional"

    @property
    def may_upgrade(self) -> bool:
        """Whether a classic group with members may become a consumer group."""
        return self.migration_policy in {"bidirectional", "upgrade"}

    @property
    def may_downgrade(self) -> bool:
        """Whether a consumer group with classic members alone becomes a classic group."""
        return self.migration_policy in {"bidirectional", "downgrade"}


def consumer_group_settings(settings: BrokerSettings) -> ConsumerGroupSettings:
    """Return what the settings of a broker say."""
    return ConsumerGroupSettings(
        session_timeout_ms=settings.group_consumer_session_timeout_ms,
        heartbeat_interval_ms=settings.group_consumer_heartbeat_interval_ms,
        max_size=settings.group_consumer_max_size,
        assignors=tuple(settings.group_consumer_assignors.split(",")),
        migration_policy=settings.group_consumer_migration_policy,
    )
