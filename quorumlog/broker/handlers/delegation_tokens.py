"""Delegation tokens (38 to 41): refused, as by Kafka without a secret key. Source: KIP-48."""

from quorumlog.broker.server.api import ANONYMOUS, BrokerContext, answers
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from quorumlog.wire.codec.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from quorumlog.wire.codec.messages.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from quorumlog.wire.codec.messages.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)


def _refusal(context: BrokerContext) -> ErrorCode:
    """Return the error: a client without authentication may not even request a token."""
    if context.principal == ANONYMOUS:
        return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


@answers(CreateDelegationTokenRequest, 1, 3)
def handle_create(
    context: BrokerContext, _request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse:
    """Refuse a new token."""
    kind, _, name = context.principal.partition(":")
    return CreateDelegationTokenResponse(
        error_code=_refusal(context),
        principal_type=kind,
        principal_name=name,
        token_requester_principal_type=kind,
        token_requester_principal_name=name,
    )


@answers(RenewDelegationTokenRequest, 1, 2)
def handle_renew(
    context: BrokerContext, _request: RenewDelegationTokenRequest
) -> RenewDelegationTokenResponse:
    """Refuse to extend a token's life."""
    return RenewDelegationTokenResponse(error_code=_refusal(context))


@answers(ExpireDelegationTokenRequest, 1, 2)
def handle_expire(
    context: BrokerContext, _request: ExpireDelegationTokenRequest
) -> ExpireDelegationTokenResponse:
    """Refuse to end a token's life."""
    return ExpireDelegationTokenResponse(error_code=_refusal(context))


@answers(DescribeDelegationTokenRequest, 1, 3)
def handle_describe(
    context: BrokerContext, _request: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    """Refuse to list tokens."""
    return DescribeDelegationTokenResponse(error_code=_refusal(context))
