"""Changes of the configuration of one resource, and their result (KIP-133, KIP-339)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Offset


class ConfigOperation(IntEnum):
    """An operation on a setting, with its number in the protocol (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """A change of one setting.

    `value`: None only for DELETE; items separated by commas for APPEND and SUBTRACT.
    """

    name: str
    value: str | None = None
    operation: ConfigOperation = ConfigOperation.SET


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChanges:
    """Changes of one topic or group. `replaces_all`: settings not named here return to defaults.

    `is_broker`: `name` is the id of a broker, or "" for all brokers.
    """

    name: str
    changes: tuple[ConfigChange, ...]
    replaces_all: bool = False
    is_broker: bool = False

    @property
    def given_names(self) -> list[str]:
        """The settings that get a value: all changes except deletions."""
        return [one.name for one in self.changes if one.operation is not ConfigOperation.DELETE]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigResult:
    """The result for one topic or broker; with NONE, `configs` is its configuration from now on.

    An image up to `end_offset` (exclusive) contains the change; -1: no change.
    """

    name: str
    error_code: ErrorCode
    error_message: str | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    is_broker: bool = False
    end_offset: Offset = Offset(-1)
