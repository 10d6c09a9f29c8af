"""AlterUserScramCredentials (51), DescribeUserScramCredentials (50). Source: KIP-554.

The salted password itself stays in this broker; the metadata has the keys that listeners with
SASL check.
"""

from collections import Counter
from collections.abc import Mapping

from quorumlog.broker.responses.controller_answers import changed_cluster, shortened
from quorumlog.broker.responses.java_maps import names_in_map_order
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.metadata_quorum.cluster_changes import (
    AlterScramCredentials,
    Outcome,
    ScramAlteration,
)
from quorumlog.metadata_quorum.image.scram import ScramCredential, ScramMechanism, credential_of
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialUpsertion,
)
from quorumlog.wire.codec.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


@answers(AlterUserScramCredentialsRequest, 0, 0)
async def handle_alter(
    context: BrokerContext, request: AlterUserScramCredentialsRequest
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


@answers(DescribeUserScramCredentialsRequest, 0, 0)
def handle_describe(
    context: BrokerContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """Describe these users; without any: all. Keys and salts are never returned."""
    by_user: dict[str, dict[int, ScramCredential]] = {}
    for (user, mechanism), credential in sorted(
        context.image.access.credentials.items(), key=lambda item: item[0]
    ):
        by_user.setdefault(user, {})[mechanism] = credential
    counts = Counter(one.name for one in request.users or ())
    return DescribeUserScramCredentialsResponse(
        results=[
            _result(user, by_user.get(user, {}), is_repeated=counts[user] > 1)
            for user in names_in_map_order(counts or by_user)
        ]
    )


def _result(
    user: str, credentials: Mapping[int, ScramCredential], *, is_repeated: bool
) -> DescribeUserScramCredentialsResult:
    code, message = ErrorCode.NONE, None
    if is_repeated:
        code = ErrorCode.DUPLICATE_RESOURCE
        message = "Cannot describe SCRAM credentials for the same user twice in a single request: "
    elif not credentials:
        code = ErrorCode.RESOURCE_NOT_FOUND
        message = "Attempt to describe a user credential that does not exist: "
    if message is not None:
        return DescribeUserScramCredentialsResult(
            user=user, error_code=code, error_message=shortened(message + user)
        )
    return DescribeUserScramCredentialsResult(
        user=user,
        credential_infos=[
            CredentialInfo(mechanism=mechanism, iterations=credential.iterations)
            for mechanism, credential in credentials.items()
        ],
    )
