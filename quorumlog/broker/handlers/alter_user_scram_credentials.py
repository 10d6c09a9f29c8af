"""AlterUserScramCredentials (51): stores the keys that check passwords. Source: KIP-554.

There is no SASL here, so the keys are unused. The salted password itself stays in this broker.
"""

from quorumlog.broker.responses.controller_answers import changed_cluster
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.metadata_quorum.cluster_changes import (
    AlterScramCredentials,
    Outcome,
    ScramAlteration,
)
from quorumlog.metadata_quorum.image.scram import ScramCredential, ScramMechanism, credential_of
from quorumlog.wire.codec.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialUpsertion,
)
from quorumlog.wire.codec.schemas import RequestHeader


@answers(AlterUserScramCredentialsRequest, 0, 0)
async def handle(
    context: BrokerContext, header: RequestHeader, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    """Delete and set credentials; one result per user."""
    alterations = [
        ScramAlteration(user=one.name, mechanism=one.mechanism, credential=None)
        for one in request.deletions
    ] + [
        ScramAlteration(user=one.name, mechanism=one.mechanism, credential=_credential(one))
        for one in request.upsertions
    ]
    outcomes = await changed_cluster(
        context,
        AlterScramCredentials(alterations=tuple(alterations)),
        doubt="the credentials may have been altered",
    )
    by_user: dict[str, Outcome] = {}
    for one, outcome in zip(alterations, outcomes, strict=True):
        by_user.setdefault(one.user, outcome)
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(
                user=user, error_code=outcome.error_code, error_message=outcome.error_message
            )
            for user, outcome in by_user.items()
        ]
    )


def _credential(one: ScramCredentialUpsertion) -> ScramCredential:
    salt = bytes(one.salt)
    if one.mechanism not in {*ScramMechanism}:  # the controller refuses it
        return ScramCredential(iterations=one.iterations, salt=salt, stored_key=b"", server_key=b"")
    return credential_of(
        one.mechanism,
        iterations=one.iterations,
        salt=salt,
        salted_password=bytes(one.salted_password),
    )
