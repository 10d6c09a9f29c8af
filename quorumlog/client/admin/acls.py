"""ACLs: described, created and deleted. Source: KIP-140, KIP-290."""

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from quorumlog.client import descriptions as about
from quorumlog.client.admin.asker import Asker, check_all
from quorumlog.client.checks import checked_all, code_of, word_of
from quorumlog.client.io.cluster import check
from quorumlog.wire.codec.messages import create_acls as create_
from quorumlog.wire.codec.messages import delete_acls as delete_
from quorumlog.wire.codec.messages import describe_acls as describe_

Codes = Mapping[str, int]
FilterT = TypeVar("FilterT", describe_.DescribeAclsRequest, delete_.DeleteAclsFilter)

RESOURCE_TYPES: Final[Codes] = {
    "topic": 2, "group": 3, "cluster": 4, "transactional_id": 5, "delegation_token": 6, "user": 7,
}  # fmt: skip
PATTERN_TYPES: Final[Codes] = {"literal": 3, "prefixed": 4}
OPERATIONS: Final[Codes] = {
    "all": 2, "read": 3, "write": 4, "create": 5, "delete": 6, "alter": 7, "describe": 8,
    "cluster_action": 9, "describe_configs": 10, "alter_configs": 11, "idempotent_write": 12,
    "create_tokens": 13, "describe_tokens": 14, "two_phase_commit": 15,
}  # fmt: skip
PERMISSIONS: Final[Codes] = {"deny": 2, "allow": 3}
_MATCH: Final[Codes] = {"match": 2}
_ANY: Final = 1


async def describe(asker: Asker, wanted: about.AclFilter) -> list[about.Acl]:
    """See Admin.describe_acls."""
    [one] = checked_all([wanted], about.AclFilter, "AclFilter")
    response = await asker.ask(_filter(describe_.DescribeAclsRequest, one), changes=False)
    return sorted(
        _acl(resource, acl, resource.pattern_type)
        for resource in response.resources
        for acl in resource.acls
    )


async def create(asker: Asker, acls: Iterable[about.Acl]) -> None:
    """See Admin.create_acls."""
    wanted = checked_all(acls, about.Acl, "Acl")
    request = create_.CreateAclsRequest(creations=[_creation(one) for one in wanted])
    names = [_name(one) for one in wanted]

    await asker.change_each(
        request, names, lambda found: dict(zip(names, found.results, strict=False))
    )


async def delete(asker: Asker, filters: Iterable[about.AclFilter]) -> list[about.Acl]:
    """See Admin.delete_acls."""
    wanted = checked_all(filters, about.AclFilter, "AclFilter")
    request = delete_.DeleteAclsRequest(
        filters=[_filter(delete_.DeleteAclsFilter, one) for one in wanted]
    )
    names = [_name(one) for one in wanted]

    async def attempt() -> list[about.Acl]:
        results = (await asker.request(request)).filter_results
        check_all(names, dict(zip(names, results, strict=False)))
        deleted = set()
        for one in results:
            for acl in one.matching_acls:
                check(acl.error_code, acl.error_message or "DeleteAcls")
                deleted.add(_acl(acl, acl, acl.pattern_type))
        return sorted(deleted)

    return await asker.retry(attempt, changes=True)


def _creation(acl: about.Acl) -> create_.AclCreation:
    return create_.AclCreation(
        resource_type=_code(RESOURCE_TYPES, acl.resource_type, "resource type"),
        resource_name=acl.resource_name,
        resource_pattern_type=_code(PATTERN_TYPES, acl.pattern_type, "pattern type"),
        principal=acl.principal,
        host=acl.host,
        operation=_code(OPERATIONS, acl.operation, "operation"),
        permission_type=_code(PERMISSIONS, acl.permission, "permission"),
    )


def _filter(kind: type[FilterT], one: about.AclFilter) -> FilterT:
    return kind(
        resource_type_filter=_code(RESOURCE_TYPES, one.resource_type, "resource type"),
        resource_name_filter=one.resource_name,
        pattern_type_filter=_code({**PATTERN_TYPES, **_MATCH}, one.pattern_type, "pattern type"),
        principal_filter=one.principal,
        host_filter=one.host,
        operation=_code(OPERATIONS, one.operation, "operation"),
        permission_type=_code(PERMISSIONS, one.permission, "permission"),
    )


def _code(codes: Codes, word: str | None, what: str) -> int:
    """Return the code of a word, the code of "any" for None. Raises ValueError."""
    return _ANY if word is None else code_of(codes, word, what)


def _acl(
    resource: describe_.DescribeAclsResource | delete_.DeleteAclsMatchingAcl,
    acl: describe_.AclDescription | delete_.DeleteAclsMatchingAcl,
    pattern_type: int,
) -> about.Acl:
    return about.Acl(
        resource_type=word_of(RESOURCE_TYPES, resource.resource_type),
        resource_name=resource.resource_name,
        pattern_type=word_of(PATTERN_TYPES, pattern_type),
        principal=acl.principal,
        host=acl.host,
        operation=word_of(OPERATIONS, acl.operation),
        permission=word_of(PERMISSIONS, acl.permission_type),
    )


def _name(one: about.Acl | about.AclFilter) -> str:
    """Return a name for error messages, with all fields: different ACLs have different names."""
    words = (
        one.permission,
        one.principal,
        one.host,
        one.operation,
        one.resource_type,
        one.pattern_type,
        one.resource_name,
    )
    return " ".join("any" if word is None else word for word in words)
