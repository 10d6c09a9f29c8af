"""A connection that authenticates by SASL before its requests are served.

The decisions are in `authentication.core.session`; here are the frames, the timer and the close.
After the authentication, a request costs two comparisons more than on other listeners.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from struct import Struct as Packer
from typing import Any, Final, assert_never

from quorumlog.broker.authentication.authenticator import Authenticator
from quorumlog.broker.authentication.core.session import (
    AnswerHandshake,
    AnswerToken,
    Close,
    Effect,
    Event,
    HandshakeReceived,
    Open,
    OtherRequested,
    Serve,
    State,
    TokenReceived,
    VersionsRequested,
    Wait,
)
from quorumlog.broker.server.acceptor import Acceptor
from quorumlog.broker.server.api import ANONYMOUS, Disconnect
from quorumlog.broker.server.connection import Connection
from quorumlog.clock import wall_clock_ms
from quorumlog.wire.codec.errors import MalformedFrame
from quorumlog.wire.codec.message import Request
from quorumlog.wire.codec.messages.api_versions import ApiVersionsResponse
from quorumlog.wire.codec.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from quorumlog.wire.codec.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from quorumlog.wire.codec.schemas import (
    API_VERSIONS_KEY,
    RequestHeader,
    UnsupportedVersion,
    decode_request,
)

HANDSHAKE_KEY: Final = 17
AUTHENTICATE_KEY: Final = 36
REASON_MAX: Final = 300  # characters that are logged and kept: clients choose their names
_HANDSHAKE: Final = HANDSHAKE_KEY.to_bytes(2)
_START: Final = Packer(">hhi")  # of a request: its API key, its version, its correlation id
_LENGTH: Final = Packer(">i")
_NO_HEADER: Final = RequestHeader(AUTHENTICATE_KEY, 0, 0, None)  # of a raw token


class SaslConnection(Connection):
    """The connection of a client that must authenticate.

    Invariants, beside those of Connection:
    5. Until its session is complete, a frame has at most `receive_max_bytes`.
    6. `_served_until_s` is in the past unless the session is complete.
    """

    def __init__(
        self,
        server: Acceptor,
        listener: str,
        principal: str = ANONYMOUS,
        *,
        authenticator: Authenticator,
    ) -> None:
        """`principal`: of a certificate; it does not count, as in Kafka: SASL names the user."""
        del principal
        super().__init__(server, listener)
        self._session: Final = authenticator.new_session()
        self._mechanisms: Final = [*authenticator.settings.mechanisms]
        self._served_until_s = -math.inf
        self._frame_max_bytes = authenticator.settings.receive_max_bytes

    def run_received(self) -> bool:
        """Handle the requests of a run, if the session lasts."""
        if (self._asked_s or self._loop.time()) < self._served_until_s:
            return Connection.run_received(self)
        return False

    def frame_received(self, frame: memoryview) -> None:
        """Handle one request, or a step of the authentication."""
        now_s = self._asked_s or self._loop.time()
        if now_s < self._served_until_s and frame[:2] != _HANDSHAKE:
            Connection.frame_received(self, frame)
            return
        try:
            header, event = self._event(frame)
        except MalformedFrame as error:
            self.close(error)
            return
        effects = self._session.step(event, int(now_s * 1000), wall_clock_ms())
        self._served_until_s = self._end_s()
        if effects == [Serve()]:
            Connection.frame_received(self, frame)
        else:
            self._begin_request()
            self._perform(header, effects)

    def _end_s(self) -> float:
        """Return the end of the session, on the event loop's clock."""
        if self._session.state is not State.COMPLETE:
            return -math.inf
        ends_ms = self._session.ends_ms
        return math.inf if ends_ms is None else ends_ms / 1000

    def _event(self, frame: memoryview) -> tuple[RequestHeader, Event]:
        """Return the event of a frame. Raises MalformedFrame.

        Requests of other APIs are not decoded: the client has no right to send them yet.
        """
        if self._session.sends_raw_tokens and self._session.state is State.TOKENS:
            return _NO_HEADER, TokenReceived(token=bytes(frame), is_raw=True)
        if len(frame) < _START.size:
            raise MalformedFrame(f"a request of {len(frame)} bytes")
        api_key, version, correlation_id = _START.unpack_from(frame)
        header = RequestHeader(api_key, version, correlation_id, None)
        if api_key not in {HANDSHAKE_KEY, AUTHENTICATE_KEY, API_VERSIONS_KEY}:
            return header, OtherRequested(label=header.label)
        try:
            header, request = decode_request(frame)
        except UnsupportedVersion:
            if api_key == API_VERSIONS_KEY:
                return header, VersionsRequested(is_valid=False)
            return header, OtherRequested(label=header.label)
        return header, self._event_of(header, request)

    def _event_of(self, header: RequestHeader, request: Request[Any]) -> Event:
        if isinstance(request, SaslHandshakeRequest):
            return HandshakeReceived(mechanism=request.mechanism, version=header.api_version)
        if isinstance(request, SaslAuthenticateRequest):
            return TokenReceived(token=bytes(request.auth_bytes))
        handler = self._handlers[API_VERSIONS_KEY]
        is_valid = handler.min_version <= header.api_version <= handler.max_version
        if is_valid:
            answer = handler.handle(self._context, header, request)
            is_valid = isinstance(answer, ApiVersionsResponse) and not answer.error_code
        return VersionsRequested(is_valid=is_valid)

    def _perform(self, header: RequestHeader, effects: Sequence[Effect]) -> None:
        """Perform the effects of one event in order."""
        if self.is_closing:  # the client has gone in the meantime
            return
        for at, effect in enumerate(effects, start=1):
            match effect:
                case AnswerHandshake():
                    answer = SaslHandshakeResponse(
                        error_code=effect.error_code, mechanisms=self._mechanisms
                    )
                    self._take(header, answer)
                case AnswerToken():
                    self._answer_token(header, effect)
                case Wait():
                    self.pause_frames()
                    rest = effects[at:]
                    self._loop.call_later(effect.delay_ms / 1000, self._perform, header, rest)
                    return
                case Open():
                    self._open(effect)
                case Close():
                    self._count_close(effect)
                    self.close(Disconnect(effect.reason[:REASON_MAX]))
                case Serve():
                    pass  # `frame_received` has the frame
                case _:
                    assert_never(effect)

    def _answer_token(self, header: RequestHeader, effect: AnswerToken) -> None:
        if effect.is_raw:
            self._gather([_LENGTH.pack(len(effect.token)) + effect.token])
            return
        answer = SaslAuthenticateResponse(
            error_code=effect.error_code,
            error_message=effect.message,
            auth_bytes=effect.token,
            session_lifetime_ms=effect.lifetime_ms,
        )
        self._take(header, answer)

    def _open(self, effect: Open) -> None:
        """Serve the requests of a user, with the size limit of requests."""
        if effect.is_again:
            self._stats.reauthentications += 1
            return
        self._stats.authentications += 1
        self._frame_max_bytes = self._context.settings.socket_request_max_bytes
        self._context = replace(self._context, principal=f"User:{effect.user}")

    def _count_close(self, effect: Close) -> None:
        if not effect.is_failure:
            self._stats.sessions_ended += 1
        elif self._session.user is None:
            self._stats.authentications_failed += 1
        else:
            self._stats.reauthentications_failed += 1
