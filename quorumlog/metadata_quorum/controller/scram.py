"""Sets and deletes users' SCRAM credentials.

It refuses the alterations that Kafka's `ScramControlManager` refuses (KIP-554), and more
credentials than the cluster may hold. A refused alteration voids all alterations of the same user.
"""

from collections import Counter
from typing import Final

from quorumlog.metadata_quorum.cluster_changes import (
    DONE,
    AlterScramCredentials,
    Outcome,
    ScramAlteration,
)
from quorumlog.metadata_quorum.image.access import AccessReplay
from quorumlog.metadata_quorum.image.records import RemoveUserScramCredential, UserScramCredential
from quorumlog.metadata_quorum.image.scram import ITERATIONS_MAX, ITERATIONS_MIN, ScramMechanism
from quorumlog.wire.codec.error_codes import ErrorCode

CREDENTIALS_MAX: Final = 10_000  # in a cluster
Changed = UserScramCredential | RemoveUserScramCredential


def decide_credentials(
    access: AccessReplay, request: AlterScramCredentials
) -> tuple[tuple[Changed, ...], tuple[Outcome, ...]]:
    """Alter the credentials of each user on its own: the failure of one leaves the others."""
    counts = Counter((one.user, one.mechanism) for one in request.alterations)
    refused: dict[str, Outcome] = {}
    new: set[tuple[str, int]] = set()
    for one in request.alterations:
        key = (one.user, one.mechanism)
        outcome = _refusal(access, one)
        if outcome is None and counts[key] > 1:
            message = "A user credential cannot be altered twice in the same request"
            outcome = _refused(ErrorCode.DUPLICATE_RESOURCE, message)
        if outcome is None and one.credential is not None and key not in access.credentials:
            new.add(key)
            if len(access.credentials) + len(new) > CREDENTIALS_MAX:
                message = f"A cluster holds at most {CREDENTIALS_MAX} credentials"
                outcome = _refused(ErrorCode.POLICY_VIOLATION, message)
        if outcome is not None:
            refused.setdefault(one.user, outcome)
    records = tuple(_record(one) for one in request.alterations if one.user not in refused)
    return records, tuple(refused.get(one.user, DONE) for one in request.alterations)


def _refusal(access: AccessReplay, one: ScramAlteration) -> Outcome | None:
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
    refusals = (_refused(code, message) for fails, code, message in checks if fails)
    return next(refusals, None)


def _record(one: ScramAlteration) -> Changed:
    if one.credential is None:
        return RemoveUserScramCredential(user=one.user, mechanism=one.mechanism)
    return UserScramCredential(user=one.user, mechanism=one.mechanism, credential=one.credential)


def _refused(error_code: ErrorCode, message: str) -> Outcome:
    return Outcome(error_code=error_code, error_message=message)
