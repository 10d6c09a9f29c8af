"""ACLs, indexed by the resources that they cover. Sources: KIP-11, KIP-290.

It decides as Apache Kafka's StandardAuthorizer: a matching DENY wins over every ALLOW; an ALLOW
implies some weaker operations, a DENY implies none; hosts are compared as texts.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from quorumlog.metadata_quorum.image.acls import (
    WILDCARD,
    AclOperation,
    AclResourceType,
    PatternType,
    PermissionType,
)
from quorumlog.metadata_quorum.image.records import AclBinding

ALL_PRINCIPALS: Final = "User:*"
_DENY: Final = int(PermissionType.DENY)
_PREFIXED: Final = int(PatternType.PREFIXED)

_IMPLYING: Final[Mapping[int, tuple[int, ...]]] = {
    AclOperation.DESCRIBE: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.DELETE,
        AclOperation.ALTER,
    ),
    AclOperation.DESCRIBE_CONFIGS: (AclOperation.ALTER_CONFIGS,),
}
"""Operation -> the operations whose ALLOW implies it."""

ByPrincipal = dict[str, list[AclBinding]]


class Subject(NamedTuple):
    """The principal of a connection, as type:name, and the address of its host."""

    principal: str
    host: str


class Found(NamedTuple):
    """The ACLs of a resource that concern a question.

    `rule`: the ACL that decides; None: no ACL matches. `has_acls`: the resource has ACLs, of any
    principal.
    """

    rule: AclBinding | None
    has_acls: bool


class AclIndex:
    """The ACLs of a cluster; it does not change.

    Literal ACLs are found by their name, prefixed ACLs by one look-up for each length of a prefix,
    and all of them then by principal: a question costs no more with 10,000 ACLs of other users.
    """

    def __init__(self, acls: Iterable[AclBinding]) -> None:
        self._literal: Final[defaultdict[tuple[int, str], ByPrincipal]] = defaultdict(dict)
        self._prefixed: Final[defaultdict[tuple[int, str], ByPrincipal]] = defaultdict(dict)
        lengths: dict[int, set[int]] = {}
        for acl in acls:
            name, kind = acl.resource_name, acl.resource_type
            if acl.pattern_type == _PREFIXED:
                entry = self._prefixed[kind, name]
                lengths.setdefault(kind, set()).add(len(name))
            else:
                entry = self._literal[kind, name]
            if acl.principal in entry:
                entry[acl.principal].append(acl)
            else:
                entry[acl.principal] = [acl]
        self._lengths: Final = {kind: sorted(found) for kind, found in lengths.items()}

    def find(self, subject: Subject, operation: int, resource_type: int, name: str) -> Found:
        """Return the ACL that decides whether `subject` may do `operation` on a literal `name`."""
        allowing: AclBinding | None = None
        has_acls = False
        for entry in self._candidates(resource_type, name):
            has_acls = True
            for acl in self._of(entry, subject):
                if not self._covers(acl, operation):
                    continue
                if acl.permission_type == _DENY:
                    return Found(acl, has_acls=True)
                allowing = allowing or acl
        return Found(allowing, has_acls)

    def allows_any(self, subject: Subject, operation: int, resource_type: int) -> bool:
        """Whether `subject` may do `operation` on some resource of the type (KIP-679).

        An ALLOW counts unless a DENY of the same name or of a shorter prefix covers all of it.
        Source: Kafka's `Authorizer.authorizeByResourceType`.
        """
        exact = {operation, int(AclOperation.ALL)}  # nothing is implied here
        allowed: set[tuple[str, bool]] = set()  # name, whether it is a prefix
        denied: set[tuple[str, bool]] = set()
        for entries, is_prefix in ((self._literal, False), (self._prefixed, True)):
            for (kind, name), entry in entries.items():
                if kind != resource_type:
                    continue
                for acl in self._of(entry, subject):
                    if acl.operation in exact:
                        is_deny = acl.permission_type == _DENY
                        (denied if is_deny else allowed).add((name, is_prefix))
        if (WILDCARD, False) in denied:
            return False
        if (WILDCARD, False) in allowed:
            return True
        return any(
            (name, is_prefix) not in denied
            and not any((name[:end], True) in denied for end in range(1, len(name) + 1))
            for name, is_prefix in allowed
        )

    def _candidates(self, resource_type: int, name: str) -> Iterator[ByPrincipal]:
        """Yield the ACLs whose pattern covers the name."""
        for literal in (name, WILDCARD) if name != WILDCARD else (name,):
            entry = self._literal.get((resource_type, literal))
            if entry is not None:
                yield entry
        for length in self._lengths.get(resource_type, ()):
            if length > len(name):
                return
            entry = self._prefixed.get((resource_type, name[:length]))
            if entry is not None:
                yield entry

    def _of(self, entry: ByPrincipal, subject: Subject) -> Iterator[AclBinding]:
        """Yield the ACLs of an entry that name the principal and the host."""
        for principal in (subject.principal, ALL_PRINCIPALS):
            for acl in entry.get(principal, ()):
                if acl.host in {WILDCARD, subject.host}:
                    yield acl
            if principal == ALL_PRINCIPALS:
                return

    def _covers(self, acl: AclBinding, operation: int) -> bool:
        """Whether the operation of a matching ACL is the requested operation, or implies it."""
        if acl.operation in {operation, AclOperation.ALL}:
            return True
        return acl.permission_type != _DENY and acl.operation in _IMPLYING.get(operation, ())


OPERATIONS: Final[Mapping[int, tuple[AclOperation, ...]]] = {
    AclResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    AclResourceType.GROUP: (
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    AclResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
}
"""The operations of a resource type, in the bit fields of KIP-430. Source: Kafka's `AclEntry`."""
