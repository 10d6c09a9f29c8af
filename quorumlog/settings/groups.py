"""The settings of a single consumer group (KIP-848). Source: Kafka 4.2's GroupConfig.

For a setting that a group does not set, the node's setting `server` of the row applies. Two more
settings of nodes bound it: the controller refuses values beyond its own bounds, and a coordinator
clamps values to its own bounds.

# DEVIATION: Kafka 4.3 has consumer.assignment.interval.ms and consumer.assignor.offload.enable.
# docs/decisions/0041-settings.md
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from quorumlog.settings import kinds
from quorumlog.settings.kinds import INT_MAX, ConfigType
from quorumlog.settings.servers import ServerSetting, texts_of


def _server(name: str, default: int, documentation: str) -> ServerSetting[int]:
    kind = kinds.whole(ConfigType.INT, 1, INT_MAX)
    return ServerSetting(name=name, kind=kind, default=str(default), documentation=documentation)


SESSION_TIMEOUT: Final = _server(
    "group.consumer.session.timeout.ms",
    45_000,
    "Time without a heartbeat after which a consumer group removes a member.",
)
SESSION_TIMEOUT_MIN: Final = _server(
    "group.consumer.min.session.timeout.ms",
    45_000,
    "Minimum of consumer.session.timeout.ms of a group.",
)
SESSION_TIMEOUT_MAX: Final = _server(
    "group.consumer.max.session.timeout.ms",
    60_000,
    "Maximum of consumer.session.timeout.ms of a group.",
)
HEARTBEAT_INTERVAL: Final = _server(
    "group.consumer.heartbeat.interval.ms",
    5000,
    "Interval between the heartbeats of a consumer group's members.",
)
HEARTBEAT_INTERVAL_MIN: Final = _server(
    "group.consumer.min.heartbeat.interval.ms",
    5000,
    "Minimum of consumer.heartbeat.interval.ms of a group.",
)
HEARTBEAT_INTERVAL_MAX: Final = _server(
    "group.consumer.max.heartbeat.interval.ms",
    15_000,
    "Maximum of consumer.heartbeat.interval.ms of a group.",
)
_LIMITS: Final = frozenset(
    row.name
    for row in (
        *(SESSION_TIMEOUT, SESSION_TIMEOUT_MIN, SESSION_TIMEOUT_MAX),
        *(HEARTBEAT_INTERVAL, HEARTBEAT_INTERVAL_MIN, HEARTBEAT_INTERVAL_MAX),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSetting(ServerSetting[int]):
    """One row. `server`, `least`, `most`: names of the node's settings for default and bounds."""

    server: str
    least: str
    most: str


def _behind(
    server: ServerSetting[int], least: ServerSetting[int], most: ServerSetting[int]
) -> GroupSetting:
    return GroupSetting(
        name=server.name.removeprefix("group."),
        kind=server.kind,
        default=server.default,
        documentation=server.documentation,
        server=server.name,
        least=least.name,
        most=most.name,
    )


SESSION: Final = _behind(SESSION_TIMEOUT, SESSION_TIMEOUT_MIN, SESSION_TIMEOUT_MAX)
HEARTBEAT: Final = _behind(HEARTBEAT_INTERVAL, HEARTBEAT_INTERVAL_MIN, HEARTBEAT_INTERVAL_MAX)
GROUP_SETTINGS: Final[Mapping[str, GroupSetting]] = MappingProxyType(
    {setting.name: setting for setting in (HEARTBEAT, SESSION)}
)
"""Every row, by the name of its setting."""


_ABSENT: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "share.assignment.interval.ms",
                "share.assignor.offload.enable",
                "share.auto.offset.reset",
                "share.delivery.count.limit",
                "share.heartbeat.interval.ms",
                "share.isolation.level",
                "share.partition.max.record.locks",
                "share.record.lock.duration.ms",
                "share.renew.acknowledge.enable",
                "share.session.timeout.ms",
            ),
            "share groups (KIP-932)",
        ),
        **dict.fromkeys(
            (
                "streams.assignment.interval.ms",
                "streams.assignor.offload.enable",
                "streams.heartbeat.interval.ms",
                "streams.initial.rebalance.delay.ms",
                "streams.num.standby.replicas",
                "streams.session.timeout.ms",
            ),
            "streams groups (KIP-1071)",
        ),
        **dict.fromkeys(
            ("consumer.assignment.interval.ms", "consumer.assignor.offload.enable"),
            "delayed and offloaded assignments (KIP-1263)",
        ),
    }
)


def unknown_name(name: str) -> str:
    """Return the error message for a setting without a row, by Kafka 4.3's names."""
    subject = _ABSENT.get(name)
    if subject is None:
        return f"Unknown group config name: {name}"
    return f"{name} is a setting of {subject}, which this cluster does not have"


def group_limits(reader: object) -> Mapping[str, int]:
    """Return the defaults and bounds of groups' settings from an object that reads settings."""
    return {name: int(text) for name, text in texts_of(reader).items() if name in _LIMITS}


def bounds_problem(
    values: Mapping[str, int], limits: Mapping[str, int], prefix: str = ""
) -> str | None:
    """Return why a group cannot have these values, by name of its setting; None: it can.

    `limits`: of a node; they include the defaults of settings that the group does not set.
    `prefix`: precedes the names of settings in the text.
    """
    in_force = {name: limits[row.server] for name, row in GROUP_SETTINGS.items()}
    in_force.update(values)
    for name, row in GROUP_SETTINGS.items():
        if in_force[name] < limits[row.least]:
            return f"{prefix}{name} must be greater than or equal to {row.least}"
        if in_force[name] > limits[row.most]:
            return f"{prefix}{name} must be less than or equal to {row.most}"
    if in_force[SESSION.name] <= in_force[HEARTBEAT.name]:
        return f"{prefix}{SESSION.name} must be greater than {prefix}{HEARTBEAT.name}"
    return None
