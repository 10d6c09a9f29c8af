"""The settings `group.consumer.*` of a coordinator, with Kafka's defaults, and of single groups."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from quorumlog.broker.settings import BrokerSettings
from quorumlog.settings.groups import HEARTBEAT, SESSION, GroupSetting, group_limits


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupSettings:
    """Limits and intervals of groups of the consumer protocol.

    `assignors`: their names; the first is the default, for groups whose members name no assignor.
    `classic_max_size`: the most members of a consumer group that becomes a classic group.
    `migration_policy`: whether groups may change their protocol while they have members.
    `limits`: the bounds of the settings of single groups, by the names of the bounds.
    """

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5000
    max_size: int = (1 << 31) - 1
    classic_max_size: int = (1 << 31) - 1
    assignors: tuple[str, ...] = ("uniform", "range")
    migration_policy: str = "bidirectional"
    limits: Mapping[str, int] = field(default_factory=lambda: group_limits(BrokerSettings()))

    @property
    def may_upgrade(self) -> bool:
        """Whether a classic group with members may become a consumer group."""
        return self.migration_policy in {"bidirectional", "upgrade"}

    @property
    def may_downgrade(self) -> bool:
        """Whether a consumer group with classic members alone becomes a classic group."""
        return self.migration_policy in {"bidirectional", "downgrade"}


def consumer_group_settings(settings: BrokerSettings) -> ConsumerGroupSettings:
    """Return the settings of consumer groups from the settings of a broker."""
    return ConsumerGroupSettings(
        session_timeout_ms=settings.group_consumer_session_timeout_ms,
        heartbeat_interval_ms=settings.group_consumer_heartbeat_interval_ms,
        max_size=settings.group_consumer_max_size,
        classic_max_size=settings.group_max_size,
        assignors=tuple(settings.group_consumer_assignors.split(",")),
        migration_policy=settings.group_consumer_migration_policy,
        limits=group_limits(settings),
    )


@dataclass(frozen=True, slots=True)
class GroupTimes:
    """The session timeouts and heartbeat intervals of consumer groups.

    A group's own value is clamped to the bounds of this broker: the controller that accepted it may
    have other bounds.
    """

    _settings: ConsumerGroupSettings
    _own: Mapping[str, Mapping[str, str]]  # the present settings of single groups

    def session_timeout_ms(self, group_id: str) -> int:
        """Return the session timeout of the group's members."""
        return self._in_force(group_id, SESSION, self._settings.session_timeout_ms)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """Return the heartbeat interval that responses give to the group's members."""
        return self._in_force(group_id, HEARTBEAT, self._settings.heartbeat_interval_ms)

    def _in_force(self, group_id: str, setting: GroupSetting, default: int) -> int:
        text = self._own.get(group_id, {}).get(setting.name)
        if text is None:
            return default
        limits = self._settings.limits
        return max(limits[setting.least], min(int(text), limits[setting.most]))
