"""Sets and removes client quotas. Source: KIP-546; Kafka's `ClientQuotaControlManager`.

It refuses invalid entities, keys and values, an entity that a request repeats, and more entities
than the cluster may hold.
"""

from collections import Counter
from typing import Final

from quorumlog.metadata_quorum.cluster_changes import (
    DONE,
    AlterClientQuotas,
    Outcome,
    QuotaAlteration,
)
from quorumlog.metadata_quorum.controller.refusals import RECORDS_PER_REQUEST_MAX
from quorumlog.metadata_quorum.image.access import AccessReplay
from quorumlog.metadata_quorum.image.quotas import entity_of, entity_problem, quota_problem
from quorumlog.metadata_quorum.image.records import ClientQuota
from quorumlog.wire.codec.error_codes import ErrorCode

ENTITIES_MAX: Final = 10_000  # with quotas, in a cluster


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
        problem = _problem(one)
        if problem is None and counts[entity] > 1:
            problem = "The entity is in the request twice"
        if problem is not None:
            outcomes.append(_refused(ErrorCode.INVALID_REQUEST, problem))
            continue
        before = access.quotas.get(entity, {})
        changed = {key: value for key, value in one.values.items() if before.get(key) != value}
        if len(records) + len(changed) > RECORDS_PER_REQUEST_MAX:
            message = f"A request may change at most {RECORDS_PER_REQUEST_MAX} quotas"
            outcomes.append(_refused(ErrorCode.POLICY_VIOLATION, message))
            continue
        if not before and changed:
            if len(access.quotas) + new_entities >= ENTITIES_MAX:
                message = f"A cluster holds quotas of at most {ENTITIES_MAX} entities"
                outcomes.append(_refused(ErrorCode.POLICY_VIOLATION, message))
                continue
            new_entities += 1
        records += [ClientQuota(entity=entity, key=key, value=changed[key]) for key in changed]
        outcomes.append(DONE)
    return () if request.validate_only else tuple(records), tuple(outcomes)


def _problem(one: QuotaAlteration) -> str | None:
    problem = entity_problem(one.entity)
    if problem is not None:
        return problem
    entity = entity_of(one.entity)
    problems = (quota_problem(entity, key, value) for key, value in one.values.items())
    return next((one for one in problems if one is not None), None)


def _refused(error_code: ErrorCode, message: str) -> Outcome:
    return Outcome(error_code=error_code, error_message=message)
