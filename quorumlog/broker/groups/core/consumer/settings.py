"""The settings `group.consumer.*` that a single group may have of its own."""

from collections.abc import Mapping
from dataclasses import dataclass

from quorumlog.settings.groups import HEARTBEAT, SESSION, GroupSetting


@dataclass(frozen=True, slots=True)
class GroupTimes:
    """The session timeouts and heartbeat intervals of consumer groups.

    A group's own value is clamped to the bounds of this broker: the controller that accepted it may
    have other bounds.
    """

    _limits: Mapping[str, int]  # of this broker: the defaults and bounds, see `group_limits`
    _own: Mapping[str, Mapping[str, str]]  # the present settings of single groups

    def session_timeout_ms(self, group_id: str) -> int:
        """Return the session timeout of the group's members."""
        return self._in_force(group_id, SESSION)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """Return the heartbeat interval that responses give to the group's members."""
        return self._in_force(group_id, HEARTBEAT)

    def _in_force(self, group_id: str, setting: GroupSetting) -> int:
        text = self._own.get(group_id, {}).get(setting.name)
        if text is None:
            return self._limits[setting.server]
        return max(self._limits[setting.least], min(int(text), self._limits[setting.most]))
