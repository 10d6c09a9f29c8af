"""Validates client quotas and their filters, and finds the quotas that match a filter.

Sources: KIP-13, KIP-546, KIP-599, KIP-612; Kafka's `ClientQuotaControlManager` and
`ClientQuotasImage`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from ipaddress import ip_address
from types import MappingProxyType
from typing import Final, NamedTuple

from quorumlog.metadata_quorum.image.records import QuotaEntity

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = frozenset({USER, CLIENT_ID, IP})
WHOLE_MAX: Final = 2**63 - 1

# Quota key -> the largest value, a whole number; 0: fractions are allowed.
_OF_CLIENTS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "producer_byte_rate": WHOLE_MAX,
        "consumer_byte_rate": WHOLE_MAX,
        "request_percentage": 0,
        "controller_mutation_rate": 0,
    }
)
_OF_ADDRESSES: Final[Mapping[str, int]] = MappingProxyType({"connection_creation_rate": 2**31 - 1})


class QuotaMatch(IntEnum):
    """How a filter matches the name of an entity: Kafka's codes."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2  # any name, or the default


class QuotaComponent(NamedTuple):
    """A filter for one entity type. `name` is set only for an EXACT match."""

    entity_type: str
    match: int
    name: str | None


def entity_problem(pairs: Sequence[tuple[str, str | None]]) -> str | None:
    """Return the problem with an entity, or None."""
    types = [kind for kind, _ in pairs]
    unknown = ", ".join(kind for kind in types if kind not in ENTITY_TYPES)
    unnamed = ", ".join(kind for kind, name in pairs if name == "")
    no_addresses = ", ".join(
        name for kind, name in pairs if kind == IP and name and not _is_address(name)
    )
    problems = (
        (not pairs, "Invalid empty client quota entity"),
        (unknown, f"Unhandled client quota entity type: {unknown}"),
        (len({*types}) != len(types), "A client quota entity names a type twice"),
        (IP in types and len(types) > 1, f"Invalid quota entity combination: {', '.join(types)}"),
        (unnamed, f"Empty {unnamed} not supported"),
        (no_addresses, f"{no_addresses} is not a valid IP"),
    )
    return next((message for is_wrong, message in problems if is_wrong), None)


def entity_of(pairs: Sequence[tuple[str, str | None]]) -> QuotaEntity:
    """Return the entity of these pairs, sorted by type."""
    return tuple(sorted(pairs, key=lambda pair: pair[0]))


def quota_problem(entity: QuotaEntity, key: str, value: float | None) -> str | None:
    """Return the problem with a quota of an entity, or None. A `value` of None removes it."""
    keys = _OF_ADDRESSES if entity[0][0] == IP else _OF_CLIENTS
    if key not in keys:
        return f"Invalid configuration key {key}"
    if value is None:
        return None
    if not value > 0 or math.isinf(value):
        return f"Quota {key} must be greater than 0"
    if keys[key] and (value > keys[key] or not value.is_integer()):
        return f"Quota {key} must be a whole number of at most {keys[key]}"
    return None


def filter_problem(components: Sequence[QuotaComponent]) -> str | None:
    """Return the problem with a filter, or None."""
    types = [one.entity_type for one in components]
    unknown = next((kind for kind in types if kind not in ENTITY_TYPES), None)
    if unknown is not None:
        return f"Unsupported entity type {unknown}" if unknown else "Invalid empty entity type"
    if len({*types}) != len(types):
        return "An entity type is in the filter twice"
    if IP in types and len(types) > 1:
        return "Invalid entity filter component combination"
    for one in components:
        if one.match not in {*QuotaMatch}:
            return f"Unknown match type {one.match}"
        if (one.match == QuotaMatch.EXACT) != (one.name is not None):
            return f"A name goes with match type {QuotaMatch.EXACT.value}, and only with it"
    return None


def matching(
    quotas: Mapping[QuotaEntity, Mapping[str, float]],
    components: Sequence[QuotaComponent],
    *,
    strict: bool,
) -> Iterator[tuple[QuotaEntity, Mapping[str, float]]]:
    """Yield the quotas of matching entities. `strict`: entities with exactly these types."""
    for entity, values in quotas.items():
        names = dict(entity)
        if all(_matches(names, one) for one in components) and not (
            strict and len(names) != len(components)
        ):
            yield entity, values


def _matches(names: Mapping[str, str | None], one: QuotaComponent) -> bool:
    if one.entity_type not in names:
        return False
    return one.match == QuotaMatch.SPECIFIED or names[one.entity_type] == one.name


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
