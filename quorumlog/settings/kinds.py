"""The kinds of values of settings: type, check and normal form.

Values are parsed as in Java: without surrounding blanks, booleans in any case, digits of any
script. Error messages are Kafka's (`ConfigDef`).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import ip_address
from math import inf
from typing import Any, Final, Generic, NamedTuple, TypeVar

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
_BLANKS: Final = "".join(map(chr, range(ord(" ") + 1)))  # the characters that Java's `trim` removes
# Narrower than `int` and `float`: Java's parsers accept neither 1_0 nor nan.
_WHOLE: Final = re.compile(r"[+-]?\d+")
_DECIMAL: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_COMMA: Final = re.compile(r"\s*,\s*")
_REPLICA: Final = re.compile(r"[0-9]+:[0-9]+")
_TRUTH: Final = {"true": True, "false": False}

T = TypeVar("T")


class ConfigType(IntEnum):
    """The type of a setting, as in DescribeConfigs (KIP-569)."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


class BadValue(ValueError):
    """A text is no valid value of a setting; the message gives the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[T]):
    """A type with its check.

    `normalize` returns a text in its normal form, which is stored and described, or raises
    BadValue. `parse` converts a text in normal form to a value.
    """

    type: ConfigType
    normalize: Callable[[str], str]
    parse: Callable[[str], T]

    def read(self, text: str) -> T:
        """Return the value of a text. Raises BadValue."""
        return self.parse(self.normalize(text))


def text_of(value: object) -> str:
    """Return the text of a value, as in a properties file and in DescribeConfigs."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).replace("e+", "E") if isinstance(value, float) else str(value)


def whole(config_type: ConfigType, least: int, most: int) -> Kind[int]:
    """Return the kind of the whole numbers in [least, most]."""

    def normalize(text: str) -> str:
        text = text.strip(_BLANKS)
        try:
            number = int(text) if _WHOLE.fullmatch(text) else None
        except ValueError:  # more digits than Python parses, and than any setting allows
            number = None
        if number is None:
            raise BadValue("Not a number")
        if number < least:
            raise BadValue(f"Value must be at least {least}")
        if number > most:
            raise BadValue(f"Value must be no more than {most}")
        return str(number)

    return Kind(type=config_type, normalize=normalize, parse=int)


def _gzip_level(text: str) -> str:
    text = whole(ConfigType.INT, -INT_MAX - 1, INT_MAX).normalize(text)
    if text != "-1" and not 1 <= int(text) <= 9:
        raise BadValue("Value must be between 1 and 9 or equal to -1")
    return text


def choice(*values: str) -> Kind[str]:
    """Return the kind of a text that is one of these values."""

    def normalize(text: str) -> str:
        text = text.strip(_BLANKS)
        if text not in values:
            raise BadValue(f"String must be one of: {', '.join(values)}")
        return text

    return Kind(type=ConfigType.STRING, normalize=normalize, parse=str)


def items(*values: str, least: int = 0) -> Kind[str]:
    """Return the kind of a comma-separated list of at least `least` of these values."""

    def normalize(text: str) -> str:
        parts = _COMMA.split(text.strip(_BLANKS))
        if parts != [""] and not {*parts} <= {*values}:
            raise BadValue(f"List must be made of: {', '.join(sorted(values))}")
        if len([part for part in parts if part]) < least:
            raise BadValue(f"List must have at least {least} of: {', '.join(sorted(values))}")
        return ",".join(parts)

    return Kind(type=ConfigType.LIST, normalize=normalize, parse=str)


def _flag(text: str) -> str:
    text = text.strip(_BLANKS).lower()
    if text not in _TRUTH:
        raise BadValue("Expected value to be either true or false")
    return text


def _off(text: str) -> str:
    text = _flag(text)
    if _TRUTH[text]:
        raise BadValue(
            "Tiered storage is not supported: topics cannot be configured with remote log storage"
        )
    return text


def _ratio(text: str) -> str:
    text = text.strip(_BLANKS)
    if _DECIMAL.fullmatch(text) is None:
        raise BadValue("Not a number")
    if not 0 <= float(text) <= 1:
        raise BadValue("Value must be between 0 and 1")
    return text


def _positive(text: str) -> str:
    text = text.strip(_BLANKS)
    try:
        number = float(text)
    except ValueError:
        raise BadValue("Not a number") from None
    if not 0 < number < inf:
        raise BadValue("Value must be above 0")
    return text


def _any(text: str) -> str:
    return text.strip(_BLANKS)


def _replicas(text: str) -> str:
    parts = _COMMA.split(text.strip(_BLANKS))
    if parts not in ([""], ["*"]) and not all(map(_REPLICA.fullmatch, parts)):
        raise BadValue("List must be * or made of partition:broker")
    return ",".join(parts)


def _counts_by_address(text: str) -> str:
    parts = [part for part in _COMMA.split(text.strip(_BLANKS)) if part]
    for part in parts:
        address, _, count = part.rpartition(":")
        try:
            ip_address(address)
            is_fine = 0 <= int(count) <= INT_MAX
        except ValueError:
            is_fine = False
        if not is_fine:
            raise BadValue(f"{part} must be address:number, with an IP address and no host name")
    return ",".join(parts)


GZIP_LEVEL: Final = Kind(type=ConfigType.INT, normalize=_gzip_level, parse=int)
FLAG: Final = Kind(type=ConfigType.BOOLEAN, normalize=_flag, parse=_TRUTH.__getitem__)
OFF: Final = Kind(type=ConfigType.BOOLEAN, normalize=_off, parse=_TRUTH.__getitem__)
"""A flag of tiered storage: it cannot be true."""
POSITIVE: Final = Kind(type=ConfigType.DOUBLE, normalize=_positive, parse=float)
RATIO: Final = Kind(type=ConfigType.DOUBLE, normalize=_ratio, parse=float)
TEXT: Final = Kind(type=ConfigType.STRING, normalize=_any, parse=str)
REPLICAS: Final = Kind(type=ConfigType.LIST, normalize=_replicas, parse=str)
"""Replicas, as a comma-separated list of partition:broker; or * for all."""
COUNTS_BY_ADDRESS: Final = Kind(type=ConfigType.STRING, normalize=_counts_by_address, parse=str)
"""A comma-separated list of address:number: see `counts_by_address`."""
TEXTS: Final = Kind(type=ConfigType.LIST, normalize=_any, parse=str)
"""A comma-separated list; its reader checks the items."""
PASSWORD: Final = Kind(type=ConfigType.PASSWORD, normalize=_any, parse=str)
"""A secret: no response and no log has it."""


class SettingRow(NamedTuple):
    """A setting that a listener can have for itself. `default`: None without one."""

    kind: Kind[Any]
    default: str | None
    documentation: str


def counts_by_address(text: str) -> dict[str, int]:
    """Return the numbers, by address, of a text of the kind COUNTS_BY_ADDRESS."""
    pairs = (part.rpartition(":") for part in text.split(",") if part)
    return {str(ip_address(address)): int(count) for address, _, count in pairs}
