"""DescribeUserScramCredentials (50): the SCRAM credentials of users. Source: KIP-554."""

from collections import Counter
from collections.abc import Mapping

from quorumlog.broker.responses.controller_answers import shortened
from quorumlog.broker.responses.java_maps import names_in_map_order
from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.metadata_quorum.image.scram import ScramCredential
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from quorumlog.wire.codec.schemas import RequestHeader


@answers(DescribeUserScramCredentialsRequest, 0, 0)
def handle(
    context: BrokerContext, header: RequestHeader, request: DescribeUserScramCredentialsRequest
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
