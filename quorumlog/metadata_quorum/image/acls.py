"""Validates ACLs and filters of ACLs, and finds the ACLs that match a filter.

Sources: KIP-11, KIP-290 (prefixes); Kafka's `AclBindingFilter` and `AclControlManager`.
"""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Final

from quorumlog.metadata_quorum.image.records import AclBinding

CLUSTER_NAME: Final = "kafka-cluster"  # the only resource of type CLUSTER
WILDCARD: Final = "*"


class AclResourceType(IntEnum):
    """Resource types of ACLs: Kafka's codes."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """Patterns of resource names: Kafka's codes. MATCH, in filters: all that apply to the name."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """Operations in ACLs: Kafka's codes."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class PermissionType(IntEnum):
    """Permissions in ACLs: Kafka's codes."""

    ANY = 1
    DENY = 2
    ALLOW = 3


_KINDS: Final = (
    ("resource_type", AclResourceType),
    ("pattern_type", PatternType),
    ("operation", AclOperation),
    ("permission_type", PermissionType),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """A filter of ACLs: ANY, or None, matches every value. The codes are the protocol's."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission_type: int


def acl_problem(acl: AclBinding) -> str | None:
    """Return the problem with an ACL, or None."""
    for name, kind in _KINDS:
        code = getattr(acl, name)
        if code not in {*kind} - {PatternType.ANY, PatternType.MATCH if kind is PatternType else 1}:
            return f"Invalid {name.replace('_', ' ')} {code}"
    if not acl.resource_name:
        return "Resource name should not be empty"
    if acl.resource_type == AclResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if ":" not in acl.principal:
        return (
            f"Could not parse principal from `{acl.principal}` (no colon is present separating "
            "the principal type from the principal name)"
        )
    return None


def filter_problem(wanted: AclFilter) -> str | None:
    """Return the problem with a filter, or None."""
    for name, kind in _KINDS:
        code = getattr(wanted, name)
        if code not in {*kind}:
            return f"The filter contains UNKNOWN elements: {name.replace('_', ' ')} {code}"
    return None


def only_match(wanted: AclFilter) -> AclBinding | None:
    """Return the only ACL that can match, if the filter sets every field; else None."""
    anything = AclResourceType.ANY, PatternType.ANY, AclOperation.ANY, PermissionType.ANY
    codes = wanted.resource_type, wanted.pattern_type, wanted.operation, wanted.permission_type
    names = wanted.resource_name, wanted.principal, wanted.host
    is_wide = any(code == any_code for code, any_code in zip(codes, anything, strict=True))
    if is_wide or None in names or wanted.pattern_type == PatternType.MATCH:
        return None
    return AclBinding(**asdict(wanted))


def matching(acls: Collection[AclBinding], wanted: AclFilter) -> list[AclBinding]:
    """Return the ACLs that match a filter, sorted."""
    only = only_match(wanted)
    if only is not None:
        return [only] if only in acls else []
    return sorted(acl for acl in acls if _matches(acl, wanted))


def _matches(acl: AclBinding, wanted: AclFilter) -> bool:
    return (
        wanted.resource_type in {AclResourceType.ANY, acl.resource_type}
        and wanted.principal in {None, acl.principal}
        and wanted.host in {None, acl.host}
        and wanted.operation in {AclOperation.ANY, acl.operation}
        and wanted.permission_type in {PermissionType.ANY, acl.permission_type}
        and _matches_name(acl, wanted)
    )


def _matches_name(acl: AclBinding, wanted: AclFilter) -> bool:
    name = wanted.resource_name
    if wanted.pattern_type not in {PatternType.ANY, PatternType.MATCH, acl.pattern_type}:
        return False
    if name is None:
        return True
    if wanted.pattern_type != PatternType.MATCH:
        return name == acl.resource_name
    if acl.pattern_type == PatternType.PREFIXED:
        return name.startswith(acl.resource_name)
    return acl.resource_name in {name, WILDCARD}
