"""SaslHandshake (17) and SaslAuthenticate (36) where no authentication is under way.

A connection to a SASL listener handles both itself, before all other requests:
`server.sasl_connection`. Here they come too late, or by a listener without SASL. Source: KIP-43,
KIP-152.
"""

from quorumlog.broker.server.api import BrokerContext, answers
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from quorumlog.wire.codec.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


@answers(SaslHandshakeRequest, 0, 1)
def handle_handshake(
    _context: BrokerContext, _request: SaslHandshakeRequest
) -> SaslHandshakeResponse:
    """Refuse: this connection needs no authentication now."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


@answers(SaslAuthenticateRequest, 0, 2)
def handle_authenticate(
    _context: BrokerContext, _request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    """Refuse: no SaslHandshake came before."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )
