"""What to alter in the configuration of one resource, and what became of it (KIP-133, KIP-339)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Offset


class ConfigOperation(IntEnum):
    """What to do with a setting (KIP-339); the numbers are those of the protocol."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """One setting. `value`: None only for DELETE; items with commas for APPEND and SUBTRACT."""

    name: str
    value: str | None = None
    operation: ConfigOperation = ConfigOperation.SET


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChanges:
    """What to alter in one topic. `replaces_all`: what is not named goes back to the default.

    `is_broker`: it is not of a topic, but of the broker of this id; "": of all brokers.
    """

    name: str
    changes: tuple[ConfigChange, ...]
    replaces_all: bool = False
    is_broker: bool = False

    @property
    def given_names(self) -> list[str]:
        """The settings that get a value: each change but a deletion."""
        return [one.name for one in self.changes if one.operation is not ConfigOperation.DELETE]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigResult:
    """What became of the configuration of one topic or broker; with NONE, what it sets now.

    An image that reaches `end_offset` (exclusive) shows it; -1: nothing was changed.
    """

    name: str
    error_code: ErrorCode
    error_message: str | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    is_broker: bool = False
    end_offset: Offset = Offset(-1)
