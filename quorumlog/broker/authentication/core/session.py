"""The authentication of one connection by SASL, and the lifetime of its session.

It decides which request is answered, and when a connection closes; the connection does both. Before
the end of the authentication, nothing is served but ApiVersions, and nothing is answered but
ApiVersions, SaslHandshake and SaslAuthenticate. Sources: KIP-43, KIP-152, KIP-368 (sessions end;
clients authenticate again), Kafka's SaslServerAuthenticator and KafkaChannel.

# DEVIATION: where Kafka answers another API with ILLEGAL_SASL_STATE, or a second authentication by
# SaslHandshake v0, the connection closes. docs/decisions/0061-sasl.md
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final, TypeAlias, assert_never

from quorumlog.broker.authentication.core.exchange import (
    Authenticated,
    Challenge,
    Exchange,
    Outcome,
    Rejected,
)
from quorumlog.invariants import require
from quorumlog.settings.sasl import SaslSettings
from quorumlog.wire.codec.error_codes import ErrorCode

REAUTHENTICATION_MIN_MS: Final = 1000  # between the starts of two authentications of a connection
FIRST_HANDSHAKE_WITH_HEADERS: Final = 1  # before, tokens come without a request around them


class State(Enum):
    """The steps of an authentication."""

    INITIAL = "initial"
    VERSIONS_SENT = "versions sent"  # only a SaslHandshake may follow
    TOKENS = "tokens"
    COMPLETE = "complete"  # requests are served until the session ends
    FAILED = "failed"


TRANSITIONS: Final[Mapping[State, frozenset[State]]] = MappingProxyType(
    {
        State.INITIAL: frozenset({State.VERSIONS_SENT, State.TOKENS, State.FAILED}),
        State.VERSIONS_SENT: frozenset({State.TOKENS, State.FAILED}),
        State.TOKENS: frozenset({State.COMPLETE, State.FAILED}),
        State.COMPLETE: frozenset({State.TOKENS, State.FAILED}),
        State.FAILED: frozenset(),
    }
)


# Events.


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionsRequested:
    """An ApiVersions request. `is_valid` False: its answer has an error, it may be sent again."""

    is_valid: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HandshakeReceived:
    """A SaslHandshake request."""

    mechanism: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenReceived:
    """A token: of a SaslAuthenticate request, or (`is_raw`) a frame without a header."""

    token: bytes
    is_raw: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRequested:
    """A request of another API; `label`: its name and version."""

    label: str


Event: TypeAlias = VersionsRequested | HandshakeReceived | TokenReceived | OtherRequested


# Effects.


@dataclass(frozen=True, slots=True, kw_only=True)
class Serve:
    """Handle the request as on a listener without SASL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHandshake:
    """Answer with this error, and the mechanisms of the listener."""

    error_code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerToken:
    """Answer a token. `lifetime_ms`: of the session; 0: unlimited, or not complete.

    `is_raw`: the answer is the token alone, in a frame without a header.
    """

    token: bytes = b""
    is_raw: bool = False
    error_code: ErrorCode = ErrorCode.NONE
    message: str | None = None
    lifetime_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Perform the next effects after this time; receive nothing in the meantime."""

    delay_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Serve the requests of this user from now on."""

    user: str
    is_again: bool  # KIP-368: the same user as before


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Close the connection and log the reason."""

    reason: str
    is_failure: bool = True  # of an authentication; False: the end of a session


Effect: TypeAlias = Serve | AnswerHandshake | AnswerToken | Wait | Open | Close


class SaslSession:
    """The state of one connection.

    Invariants:
      1. `user` is None until the first authentication is complete, and never changes then.
      2. Serve is an effect of ApiVersions before that, and of nothing else; after it, of each
         request until `ends_ms`, unless another authentication is under way.
      3. A connection whose authentication has failed gets no other effect.
    """

    def __init__(
        self, settings: SaslSettings, exchanges: Mapping[str, Callable[[], Exchange]]
    ) -> None:
        """`exchanges`: makes the exchange of each mechanism in `settings`."""
        self._settings: Final = settings
        self._exchanges: Final = exchanges
        self.state = State.INITIAL
        self.user: str | None = None
        self.mechanism: str | None = None  # of `user`
        self.ends_ms: int | None = None  # monotonic; None: the session is unlimited
        self.sends_raw_tokens = False
        self._chosen = ""  # the mechanism of the exchange under way
        self._exchange: Exchange | None = None
        self._began_again_ms: int | None = None

    def step(self, event: Event, now_ms: int, wall_ms: int) -> list[Effect]:
        """Return the effects of an event, in order. `wall_ms`: since 1970."""
        if self.state is State.FAILED:
            return []
        match event:
            case TokenReceived():
                return self._receive_token(event, now_ms, wall_ms)
            case HandshakeReceived():
                return self._receive_handshake(event, now_ms)
            case VersionsRequested():
                return self._serve_versions(event, now_ms)
            case OtherRequested():
                return self._serve(event.label, now_ms)
            case _:
                assert_never(event)

    def _transition(self, to: State) -> None:
        require(to in TRANSITIONS[self.state], f"{self.state} may become {to}")
        self.state = to

    @property
    def _text(self) -> str:
        return "authentication" if self.user is None else "re-authentication"

    def _serve(self, label: str, now_ms: int) -> list[Effect]:
        if self.state is not State.COMPLETE:
            return self._close(f"{label} came during the {self._text}")
        if self.ends_ms is not None and now_ms >= self.ends_ms:
            self._transition(State.FAILED)
            return [Close(reason=f"the session of {self.user!r} has ended", is_failure=False)]
        return [Serve()]

    def _serve_versions(self, event: VersionsRequested, now_ms: int) -> list[Effect]:
        if self.state is not State.INITIAL:
            return self._serve("ApiVersions", now_ms)
        if event.is_valid:
            self._transition(State.VERSIONS_SENT)
        return [Serve()]

    def _close(self, reason: str) -> list[Effect]:
        self._transition(State.FAILED)
        return [Close(reason=reason)]

    def _receive_handshake(self, event: HandshakeReceived, now_ms: int) -> list[Effect]:
        if self.state is State.TOKENS:
            illegal = ErrorCode.ILLEGAL_SASL_STATE
            return [AnswerHandshake(error_code=illegal), *self._close("a second SaslHandshake")]
        if self.state is State.COMPLETE:
            began_ms, self._began_again_ms = self._began_again_ms, now_ms
            is_soon = began_ms is not None and now_ms - began_ms < REAUTHENTICATION_MIN_MS
            if self.ends_ms is None or is_soon:
                self._began_again_ms = began_ms
                return self._serve("SaslHandshake", now_ms)  # its handler refuses it
            if event.version < FIRST_HANDSHAKE_WITH_HEADERS:
                return self._close("SaslHandshake v0 came for a re-authentication")
        if event.mechanism not in self._exchanges:
            self._transition(State.FAILED)
            return [
                AnswerHandshake(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM),
                Wait(delay_ms=self._settings.failed_delay_ms),
                Close(reason=f"the mechanism {event.mechanism[:20]!r} is not enabled"),
            ]
        self._transition(State.TOKENS)
        self._chosen = event.mechanism
        self._exchange = self._exchanges[event.mechanism]()
        self.sends_raw_tokens = event.version < FIRST_HANDSHAKE_WITH_HEADERS
        return [AnswerHandshake(error_code=ErrorCode.NONE)]

    def _receive_token(self, event: TokenReceived, now_ms: int, wall_ms: int) -> list[Effect]:
        if self.state is State.COMPLETE:
            return self._serve("SaslAuthenticate", now_ms)  # its handler refuses it
        if self._exchange is None or event.is_raw != self.sends_raw_tokens:
            return self._close("a token came without its SaslHandshake")
        if len(event.token) > self._settings.receive_max_bytes:
            return self._close(f"a token of {len(event.token)} bytes")
        outcome = self._outcome(self._exchange, event.token, wall_ms)
        match outcome:
            case Challenge():
                return [AnswerToken(token=outcome.token, is_raw=self.sends_raw_tokens)]
            case Rejected():
                return self._fail(outcome)
            case Authenticated():
                return self._complete(outcome, now_ms, wall_ms)
            case _:
                assert_never(outcome)

    def _outcome(self, exchange: Exchange, token: bytes, wall_ms: int) -> Outcome:
        """Return the outcome of a token; a client that authenticates again must be the same."""
        if self.mechanism not in {None, self._chosen}:
            message = (
                f"SASL mechanism '{self._chosen}' requested by client is not supported for "
                f"re-authentication of mechanism '{self.mechanism}'"
            )
            return Rejected(reason=message, message=message)
        outcome = exchange.receive(token, wall_ms)
        if isinstance(outcome, Authenticated) and self.user not in {None, outcome.user}:
            message = (
                f"Cannot change principals during re-authentication from User.{self.user}: "
                f"User.{outcome.user}"
            )
            return Rejected(reason=message, message=message)
        return outcome

    def _complete(self, outcome: Authenticated, now_ms: int, wall_ms: int) -> list[Effect]:
        is_again, self.user = self.user is not None, outcome.user
        self.mechanism, self._exchange = self._chosen, None
        limits_ms = [self._settings.mechanisms[self._chosen].max_reauth_ms or None]
        if outcome.expires_ms is not None:
            limits_ms.append(max(outcome.expires_ms - wall_ms, 0))
        lifetime_ms = min((one for one in limits_ms if one is not None), default=None)
        self.ends_ms = None if lifetime_ms is None else now_ms + lifetime_ms
        is_raw, self.sends_raw_tokens = self.sends_raw_tokens, False
        self._transition(State.COMPLETE)
        return [
            AnswerToken(token=outcome.token, lifetime_ms=lifetime_ms or 0, is_raw=is_raw),
            Open(user=outcome.user, is_again=is_again),
        ]

    def _fail(self, rejected: Rejected) -> list[Effect]:
        self._transition(State.FAILED)
        message = rejected.message or (
            f"Authentication failed during {self._text} due to invalid credentials with SASL "
            f"mechanism {self._chosen}"
        )
        failed = AnswerToken(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, message=message)
        return [
            Wait(delay_ms=self._settings.failed_delay_ms),
            *([] if self.sends_raw_tokens else [failed]),  # a raw token cannot carry an error
            Close(reason=f"failed {self._text} by {self._chosen}: {rejected.reason}"),
        ]
