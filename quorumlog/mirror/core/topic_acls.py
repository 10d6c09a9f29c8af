"""Decides the ACLs of copies, by the rules of MirrorMaker 2 (`sync.topic.acls.enabled`, KIP-382).

An ACL of a topic's literal name is copied to the literal name of its copy. The mirror alone writes
to a copy: so ALLOW WRITE is left out, and ALLOW ALL becomes ALLOW READ. ACLs of prefixes are left
out, because they may hold for topics that are not copied, and so are ACLs of `*`, which
MirrorMaker 2 copies as those of a topic of this name. No ACL is deleted.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from quorumlog.client.descriptions import Acl


def missing_acls(
    source: Iterable[Acl], target: Collection[Acl], copies: Mapping[str, str]
) -> list[Acl]:
    """Return the ACLs to create, sorted. `copies`: the names at the target by those at the source.

    source, target: the ACLs of each cluster.
    """
    wanted = {
        _of_copy(acl, copies[acl.resource_name])
        for acl in source
        if acl.resource_type == "topic"
        and acl.pattern_type == "literal"
        and acl.resource_name in copies
        and (acl.permission, acl.operation) != ("allow", "write")
    }
    return sorted(wanted.difference(target))


def _of_copy(acl: Acl, copy: str) -> Acl:
    is_downgraded = (acl.permission, acl.operation) == ("allow", "all")
    operation = "read" if is_downgraded else acl.operation
    return replace(acl, resource_name=copy, operation=operation)
