"""Creates and deletes ACLs. It refuses invalid ACLs, and more ACLs than the cluster may hold.

Source: KIP-11, KIP-290; Kafka's `AclControlManager`.
"""

from typing import Final

from quorumlog.metadata_quorum.cluster_changes import DONE, CreateAcls, DeleteAcls, Outcome
from quorumlog.metadata_quorum.image.access import AccessReplay
from quorumlog.metadata_quorum.image.acls import acl_problem, filter_problem, matching, only_match
from quorumlog.metadata_quorum.image.records import (
    AccessControlEntry,
    AclBinding,
    RemoveAccessControlEntry,
)
from quorumlog.wire.codec.error_codes import ErrorCode

ACLS_MAX: Final = 10_000  # in a cluster: one request may delete them all
COMPARISONS_MAX: Final = 100_000  # of filters with ACLs, in a request: about 0.2 s


def decide_acl_creation(
    access: AccessReplay, request: CreateAcls
) -> tuple[tuple[AccessControlEntry, ...], tuple[Outcome, ...]]:
    """Create each ACL on its own; an ACL that exists succeeds without a record."""
    new: dict[AclBinding, None] = {}
    outcomes = []
    for acl in request.acls:
        problem = acl_problem(acl)
        if problem is not None:
            outcomes.append(_refused(ErrorCode.INVALID_REQUEST, problem))
        elif acl in access.acls or acl in new:
            outcomes.append(DONE)
        elif len(access.acls) + len(new) >= ACLS_MAX:
            message = f"A cluster holds at most {ACLS_MAX} ACLs"
            outcomes.append(_refused(ErrorCode.POLICY_VIOLATION, message))
        else:
            new[acl] = None
            outcomes.append(DONE)
    return tuple(AccessControlEntry(acl=acl) for acl in new), tuple(outcomes)


def decide_acl_deletion(
    access: AccessReplay, request: DeleteAcls
) -> tuple[tuple[RemoveAccessControlEntry, ...], tuple[Outcome, ...]]:
    """Delete the ACLs that match a filter. An ACL that two filters match is in both outcomes."""
    gone: dict[AclBinding, None] = {}
    outcomes = []
    wide = sum(only_match(wanted) is None for wanted in request.filters)
    if wide > 1 and wide * len(access.acls) > COMPARISONS_MAX:
        message = (
            f"{wide} filters that may mean several ACLs are too many for {len(access.acls)} ACLs: "
            "name fewer of them in a request"
        )
        refused = _refused(ErrorCode.POLICY_VIOLATION, message)
        return (), (refused,) * len(request.filters)
    for wanted in request.filters:
        problem = filter_problem(wanted)
        if problem is not None:
            outcomes.append(_refused(ErrorCode.INVALID_REQUEST, problem))
            continue
        found = matching(access.acls, wanted)
        gone |= dict.fromkeys(found)
        outcomes.append(Outcome(error_code=ErrorCode.NONE, acls=tuple(found)))
    return tuple(RemoveAccessControlEntry(acl=acl) for acl in gone), tuple(outcomes)


def _refused(error_code: ErrorCode, message: str) -> Outcome:
    return Outcome(error_code=error_code, error_message=message)
