"""Decides changes of ACLs, client quotas and SCRAM credentials.

It refuses invalid items, items that a request repeats, and more than the cluster may hold. Sources:
KIP-11, KIP-290, KIP-546, KIP-554; Kafka's `AclControlManager`, `ClientQuotaControlManager` and
`ScramControlManager`.
"""

from collections import Counter
from typing import Final

from quorumlog.metadata_quorum.cluster_changes import (
    DONE,
    AlterClientQuotas,
    AlterScramCredentials,
    CreateAcls,
    DeleteAcls,
    Outcome,
    QuotaAlteration,
    ScramAlteration,
    refused,
)
from quorumlog.metadata_quorum.controller.refusals import RECORDS_PER_REQUEST_MAX
from quorumlog.metadata_quorum.image.access import AccessReplay
from quorumlog.metadata_quorum.image.acls import acl_problem, filter_problem, matching, only_match
from quorumlog.metadata_quorum.image.quotas import entity_of, entity_problem, quota_problem
from quorumlog.metadata_quorum.image.records import (
    AccessControlEntry,
    AclBinding,
    ClientQuota,
    RemoveAccessControlEntry,
    RemoveUserScramCredential,
    UserScramCredential,
)
from quorumlog.metadata_quorum.image.scram import ITERATIONS_MAX, ITERATIONS_MIN, ScramMechanism
from quorumlog.wire.codec.error_codes import ErrorCode

ACLS_MAX: Final = 10_000  # in a cluster: one request may delete them all
COMPARISONS_MAX: Final = 100_000  # of filters with ACLs, in a request: about 0.2 s
ENTITIES_MAX: Final = 10_000  # with quotas, in a cluster
CREDENTIALS_MAX: Final = 10_000  # in a cluster
Changed = UserScramCredential | RemoveUserScramCredential


def decide_acl_creation(
    access: AccessReplay, request: CreateAcls
) -> tuple[tuple[AccessControlEntry, ...], tuple[Outcome, ...]]:
    """Create each ACL on its own; an ACL that exists succeeds without a record."""
    new: dict[AclBinding, None] = {}
    outcomes = []
    for acl in request.acls:
        problem = acl_problem(acl)
        if problem is not None:
            outcomes.append(refused(ErrorCode.INVALID_REQUEST, problem))
        elif acl in access.acls or acl in new:
            outcomes.append(DONE)
        elif len(access.acls) + len(new) >= ACLS_MAX:
            message = f"A cluster holds at most {ACLS_MAX} ACLs"
            outcomes.append(refused(ErrorCode.POLICY_VIOLATION, message))
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
        return (), (refused(ErrorCode.POLICY_VIOLATION, message),) * len(request.filters)
    for wanted in request.filters:
        problem = filter_problem(wanted)
        if problem is not None:
            outcomes.append(refused(ErrorCode.INVALID_REQUEST, problem))
            continue
        found = matching(access.acls, wanted)
        gone |= dict.fromkeys(found)
        outcomes.append(Outcome(error_code=ErrorCode.NONE, acls=tuple(found)))
    return tuple(RemoveAccessControlEntry(acl=acl) for acl in gone), tuple(outcomes)


def decide_quotas(
    access: AccessReplay, request: AlterClientQuotas
) -> tuple[tuple[ClientQuota, ...], tuple[Outcome, ...]]:
    """Alter each entity on its own: the failure of one leaves the others."""
    counts = Counter(entity_of(one.entity) for one in request.alterations)
    records: list[ClientQuota] = []
    outcomes = []
    new_entities = 0
    for one in request.alterations:
        entity = entity_of(one.entity)
        problem = _quota_problem(one)
        if problem is None and counts[entity] > 1:
            problem = "The entity is in the request twice"
        if problem is not None:
            outcomes.append(refused(ErrorCode.INVALID_REQUEST, problem))
            continue
        before = access.quotas.get(entity, {})
        changed = {key: value for key, value in one.values.items() if before.get(key) != value}
        if len(records) + len(changed) > RECORDS_PER_REQUEST_MAX:
            message = f"A request may change at most {RECORDS_PER_REQUEST_MAX} quotas"
            outcomes.append(refused(ErrorCode.POLICY_VIOLATION, message))
            continue
        if not before and changed:
            if len(access.quotas) + new_entities >= ENTITIES_MAX:
                message = f"A cluster holds quotas of at most {ENTITIES_MAX} entities"
                outcomes.append(refused(ErrorCode.POLICY_VIOLATION, message))
                continue
            new_entities += 1
        records += [ClientQuota(entity=entity, key=key, value=changed[key]) for key in changed]
        outcomes.append(DONE)
    return () if request.validate_only else tuple(records), tuple(outcomes)


def _quota_problem(one: QuotaAlteration) -> str | None:
    problem = entity_problem(one.entity)
    if problem is not None:
        return problem
    entity = entity_of(one.entity)
    problems = (quota_problem(entity, key, value) for key, value in one.values.items())
    return next((one for one in problems if one is not None), None)


def decide_credentials(
    access: AccessReplay, request: AlterScramCredentials
) -> tuple[tuple[Changed, ...], tuple[Outcome, ...]]:
    """Alter the credentials of each user on its own: a refused alteration voids all of its user."""
    counts = Counter((one.user, one.mechanism) for one in request.alterations)
    voided: dict[str, Outcome] = {}
    new: set[tuple[str, int]] = set()
    for one in request.alterations:
        key = (one.user, one.mechanism)
        outcome = _credential_refusal(access, one)
        if outcome is None and counts[key] > 1:
            message = "A user credential cannot be altered twice in the same request"
            outcome = refused(ErrorCode.DUPLICATE_RESOURCE, message)
        if outcome is None and one.credential is not None and key not in access.credentials:
            new.add(key)
            if len(access.credentials) + len(new) > CREDENTIALS_MAX:
                message = f"A cluster holds at most {CREDENTIALS_MAX} credentials"
                outcome = refused(ErrorCode.POLICY_VIOLATION, message)
        if outcome is not None:
            voided.setdefault(one.user, outcome)
    records = tuple(
        _credential_record(one) for one in request.alterations if one.user not in voided
    )
    return records, tuple(voided.get(one.user, DONE) for one in request.alterations)


def _credential_refusal(access: AccessReplay, one: ScramAlteration) -> Outcome | None:
    is_gone = (one.user, one.mechanism) not in access.credentials
    iterations = ITERATIONS_MIN if one.credential is None else one.credential.iterations
    checks = (
        (not one.user, ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"),
        (
            one.mechanism not in {*ScramMechanism},
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            "Unknown SCRAM mechanism",
        ),
        (
            one.credential is None and is_gone,
            ErrorCode.RESOURCE_NOT_FOUND,
            "Attempt to delete a user credential that does not exist",
        ),
        (iterations < ITERATIONS_MIN, ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"),
        (iterations > ITERATIONS_MAX, ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"),
    )
    refusals = (refused(code, message) for fails, code, message in checks if fails)
    return next(refusals, None)


def _credential_record(one: ScramAlteration) -> Changed:
    if one.credential is None:
        return RemoveUserScramCredential(user=one.user, mechanism=one.mechanism)
    return UserScramCredential(user=one.user, mechanism=one.mechanism, credential=one.credential)
