"""The authentication of a connection, step by step, and the lifetime of its session."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.broker.authentication.core import session as session_module
from quorumlog.broker.authentication.core.exchange import (
    Authenticated,
    Challenge,
    Outcome,
    Rejected,
)
from quorumlog.broker.authentication.core.session import (
    TRANSITIONS,
    AnswerHandshake,
    AnswerToken,
    Close,
    Effect,
    Event,
    HandshakeReceived,
    Open,
    OtherRequested,
    SaslSession,
    Serve,
    State,
    TokenReceived,
    VersionsRequested,
    Wait,
)
from quorumlog.invariants import InvariantViolation
from quorumlog.settings.sasl import MechanismSettings, SaslSettings
from quorumlog.wire.codec.error_codes import ErrorCode

GENERAL = "Authentication failed during authentication due to invalid credentials with SASL"
FAILED = ErrorCode.SASL_AUTHENTICATION_FAILED
DELAY = Wait(delay_ms=100)
VERSIONS = VersionsRequested(is_valid=True)
PRODUCE = OtherRequested(label="Produce v9")


class Scripted:
    """A mechanism whose tokens are its outcomes: ? a challenge, ! a rejection, else a user.

    `user@7000`: credentials that expire 7 s after 1970.
    """

    def receive(self, token: bytes, wall_ms: int) -> Outcome:
        del wall_ms
        text = token.decode(errors="replace")
        if text in {"?", "!"}:
            return Challenge(token=b"more") if text == "?" else Rejected(reason="secret reason")
        user, _, expires_ms = text.partition("@")
        return Authenticated(
            user=user, token=b"welcome", expires_ms=int(expires_ms) if expires_ms else None
        )


def new_session(max_reauth_ms: int = 0) -> SaslSession:
    names = "PLAIN", "SCRAM-SHA-256"
    settings = SaslSettings(
        mechanisms={n: MechanismSettings(name=n, max_reauth_ms=max_reauth_ms) for n in names},
        receive_max_bytes=100,
    )
    return SaslSession(settings, dict.fromkeys(names, Scripted))


def handshake(mechanism: str = "PLAIN", version: int = 1) -> HandshakeReceived:
    return HandshakeReceived(mechanism=mechanism, version=version)


def token(text: str, *, is_raw: bool = False) -> TokenReceived:
    return TokenReceived(token=text.encode(), is_raw=is_raw)


def run(session: SaslSession, *events: Event, now_ms: int = 0, wall_ms: int = 0) -> list[Effect]:
    """Return the effects of the last event."""
    effects: list[Effect] = []
    for event in events:
        effects = session.step(event, now_ms, wall_ms)
    return effects


def opened(max_reauth_ms: int = 0, text: str = "alice", now_ms: int = 0) -> SaslSession:
    session = new_session(max_reauth_ms)
    run(session, handshake(), token(text), now_ms=now_ms)
    assert session.state is State.COMPLETE
    return session


OK = AnswerHandshake(error_code=ErrorCode.NONE)


def closes(effects: list[Effect]) -> bool:
    return len(effects) == 1 and isinstance(effects[0], Close)


def test_every_pair_of_states() -> None:
    legal = {
        ("INITIAL", "VERSIONS_SENT"), ("INITIAL", "TOKENS"), ("INITIAL", "FAILED"),
        ("VERSIONS_SENT", "TOKENS"), ("VERSIONS_SENT", "FAILED"),
        ("TOKENS", "COMPLETE"), ("TOKENS", "FAILED"),
        ("COMPLETE", "TOKENS"), ("COMPLETE", "FAILED"),
    }  # fmt: skip
    for here, there in product(State, State):
        session = new_session()
        session.state = here
        if (here.name, there.name) in legal:
            session._transition(there)
        else:
            with pytest.raises(InvariantViolation):
                session._transition(there)
        assert (there in TRANSITIONS[here]) is ((here.name, there.name) in legal)


def test_versions_then_a_handshake_then_tokens_open_the_connection() -> None:
    session = new_session()
    assert run(session, VERSIONS) == [Serve()]
    assert run(session, handshake()) == [OK]
    assert run(session, token("?")) == [AnswerToken(token=b"more")]
    assert run(session, token("alice")) == [
        AnswerToken(token=b"welcome"),
        Open(user="alice", is_again=False),
    ]
    assert run(session, PRODUCE) == [Serve()]
    assert run(session, VERSIONS) == [Serve()]
    assert session.ends_ms is None


def test_a_handshake_may_be_the_first_request() -> None:
    assert run(new_session(), handshake()) == [OK]


def test_versions_may_be_requested_again_only_after_an_error() -> None:
    session = new_session()
    assert run(session, VersionsRequested(is_valid=False)) == [Serve()]
    assert run(session, VERSIONS) == [Serve()]
    assert closes(run(session, VERSIONS))


@pytest.mark.parametrize(
    "events",
    [
        [PRODUCE],
        [VERSIONS, PRODUCE],
        [handshake(), PRODUCE],
        [handshake(), VERSIONS],
        [handshake(), token("?"), PRODUCE],
        [token("alice")],
        [VERSIONS, token("alice")],
        [handshake(), token("alice", is_raw=True)],
        [handshake(version=0), token("alice")],
        [handshake(), token("x" * 101)],
    ],
)
def test_another_request_closes_the_connection_without_an_answer(events: list[Event]) -> None:
    session = new_session()
    assert closes(run(session, *events))
    assert run(session, handshake(), token("alice"), PRODUCE) == []


def test_a_second_handshake_is_refused() -> None:
    illegal = AnswerHandshake(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    assert run(new_session(), handshake(), handshake())[0] == illegal


def test_a_mechanism_that_is_not_enabled_is_refused_at_once_and_closed_later() -> None:
    answer, wait, close = run(new_session(), handshake("GSSAPI"))
    assert answer == AnswerHandshake(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM)
    assert wait == DELAY
    assert isinstance(close, Close)


def test_the_answer_of_a_failure_waits_and_has_no_reason() -> None:
    wait, answer, close = run(new_session(), handshake(), token("?"), token("!"))
    assert wait == DELAY
    assert answer == AnswerToken(error_code=FAILED, message=f"{GENERAL} mechanism PLAIN")
    assert isinstance(close, Close)
    assert "secret reason" in close.reason


def test_raw_tokens_are_answered_raw_and_a_failure_not_at_all() -> None:
    session = new_session()
    assert run(session, handshake(version=0), token("?", is_raw=True)) == [
        AnswerToken(token=b"more", is_raw=True)
    ]
    assert run(session, token("alice", is_raw=True))[0] == AnswerToken(
        token=b"welcome", is_raw=True
    )
    assert run(session, PRODUCE) == [Serve()]
    failed = run(new_session(), handshake(version=0), token("!", is_raw=True))
    assert [type(effect) for effect in failed] == [Wait, Close]


@pytest.mark.parametrize(
    ("max_reauth_ms", "text", "lifetime_ms"),
    [
        (0, "alice", 0),
        (5000, "alice", 5000),
        (0, "alice@7000", 6000),
        (5000, "alice@7000", 5000),
        (5000, "alice@3000", 2000),
        (5000, "alice@1000", 0),
        (5000, "alice@500", 0),
    ],
)
def test_the_lifetime_is_the_least_of_the_limit_and_the_rest_of_the_token(
    max_reauth_ms: int, text: str, lifetime_ms: int
) -> None:
    session = new_session(max_reauth_ms)
    answer, _ = run(session, handshake(), token(text), now_ms=50_000, wall_ms=1000)
    assert answer == AnswerToken(token=b"welcome", lifetime_ms=lifetime_ms)
    has_limit = max_reauth_ms > 0 or "@" in text
    assert session.ends_ms == (50_000 + lifetime_ms if has_limit else None)


def test_a_request_after_the_end_of_the_session_closes_the_connection() -> None:
    session = opened(max_reauth_ms=5000)
    assert run(session, PRODUCE, now_ms=4999) == [Serve()]
    [close] = run(session, PRODUCE, now_ms=5000)
    assert close == Close(reason="the session of 'alice' has ended", is_failure=False)
    assert run(session, handshake(), now_ms=5001) == []


@pytest.mark.parametrize("now_ms", [0, 4000, 6000])
def test_the_same_user_may_authenticate_again_before_or_after_the_end(now_ms: int) -> None:
    session = opened(max_reauth_ms=5000)
    assert run(session, handshake(), now_ms=now_ms) == [OK]
    assert closes(run(new_session(), PRODUCE, now_ms=now_ms))
    assert run(session, token("alice"), now_ms=now_ms) == [
        AnswerToken(token=b"welcome", lifetime_ms=5000),
        Open(user="alice", is_again=True),
    ]
    assert run(session, PRODUCE, now_ms=now_ms + 4999) == [Serve()]


def test_requests_are_not_served_between_the_tokens_of_a_second_authentication() -> None:
    session = opened(max_reauth_ms=5000)
    run(session, handshake(), now_ms=4000)
    assert closes(run(session, PRODUCE, now_ms=4000))


def test_a_handshake_is_a_common_request_if_the_session_is_unlimited_or_one_came_just_now() -> None:
    assert run(opened(), handshake()) == [Serve()]
    session = opened(max_reauth_ms=5000)
    assert run(session, handshake(), token("alice"), now_ms=2000)[1:] == [
        Open(user="alice", is_again=True)
    ]
    assert run(session, handshake(), now_ms=2999) == [Serve()]
    assert run(session, handshake(), now_ms=3000) == [OK]


def test_the_user_of_a_connection_does_not_change() -> None:
    session = opened(max_reauth_ms=5000)
    wait, answer, _ = run(session, handshake(), token("bob"), now_ms=4000)
    assert wait == DELAY
    assert answer == AnswerToken(
        error_code=FAILED,
        message="Cannot change principals during re-authentication from User.alice: User.bob",
    )
    assert session.user == "alice"
    assert run(session, PRODUCE) == []


def test_the_mechanism_of_a_connection_does_not_change() -> None:
    session = opened(max_reauth_ms=5000)
    assert run(session, handshake("SCRAM-SHA-256"), now_ms=4000) == [OK]
    _, answer, _ = run(session, token("alice"), now_ms=4000)
    assert answer == AnswerToken(
        error_code=FAILED,
        message="SASL mechanism 'SCRAM-SHA-256' requested by client is not supported for "
        "re-authentication of mechanism 'PLAIN'",
    )


def test_raw_tokens_cannot_authenticate_again() -> None:
    assert closes(run(opened(max_reauth_ms=5000), handshake(version=0), now_ms=4000))


EVENTS = st.one_of(
    st.sampled_from([PRODUCE, VERSIONS, VersionsRequested(is_valid=False)]),
    st.builds(handshake, st.sampled_from(["PLAIN", "SCRAM-SHA-256", "X"]), st.integers(0, 1)),
    st.builds(
        token, st.sampled_from(["alice", "alice@9000", "bob", "?", "!"]), is_raw=st.booleans()
    ),
)
STEPS = st.lists(st.tuples(EVENTS, st.sampled_from([0, 1, 600, 3000])), max_size=20)


def broken_rules(  # noqa: C901 - the rules, one after the other
    max_reauth_ms: int, steps: list[tuple[Event, int]]
) -> list[str]:
    """Return the broken rules: of a model that has only the answers, not the session."""
    session, now_ms, lifetime_ms = new_session(max_reauth_ms), 0, 0
    broken: list[str] = []
    user: str | None = None
    ends_ms: float = -1.0
    is_closed, is_open = False, False
    for event, pause_ms in steps:
        now_ms += pause_ms
        effects = session.step(event, now_ms, now_ms)
        if is_closed and effects:
            broken.append("an effect after the close")
        for effect in effects:
            if isinstance(effect, Serve) and not isinstance(event, VersionsRequested):
                if not is_open:
                    broken.append("served before the authentication")
                elif now_ms >= ends_ms:
                    broken.append("served after the end")
            if isinstance(effect, AnswerHandshake) and effect.error_code is ErrorCode.NONE:
                is_open = False
            if isinstance(effect, AnswerToken) and not effect.error_code:
                lifetime_ms = effect.lifetime_ms
            if isinstance(effect, Open):
                if user not in {None, effect.user}:
                    broken.append("the user changed")
                user, is_open = effect.user, True
                is_limited = max_reauth_ms or b"@" in getattr(event, "token", b"")
                ends_ms = now_ms + lifetime_ms if is_limited else float("inf")
            is_closed = is_closed or isinstance(effect, Close)
    return broken


@given(max_reauth_ms=st.sampled_from([0, 2000]), steps=STEPS)
def test_nobody_is_served_unless_authenticated_and_in_time(
    max_reauth_ms: int, steps: list[tuple[Event, int]]
) -> None:
    assert broken_rules(max_reauth_ms, steps) == []


def serves_always(session: SaslSession, label: str, now_ms: int) -> list[Effect]:
    del label, now_ms
    return [Serve()] if session.state is State.COMPLETE else session._close("")


def accepts_any_user(
    session: SaslSession, exchange: Scripted, received: bytes, wall_ms: int
) -> Outcome:
    del session
    return exchange.receive(received, wall_ms)


def serves_anybody(session: SaslSession, label: str, now_ms: int) -> list[Effect]:
    del session, label, now_ms
    return [Serve()]


@pytest.mark.parametrize(
    ("method", "bug", "rule"),
    [
        ("_serve", serves_always, "served after the end"),
        ("_serve", serves_anybody, "served before the authentication"),
        ("_outcome", accepts_any_user, "the user changed"),
    ],
)
def test_planted_bugs_break_a_rule(
    method: str, bug: object, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module.SaslSession, method, bug)
    scripts: dict[str, list[tuple[Event, int]]] = {
        "served after the end": [(handshake(), 0), (token("alice"), 0), (PRODUCE, 3000)],
        "served before the authentication": [(PRODUCE, 0)],
        "the user changed": [
            (handshake(), 0), (token("alice"), 0), (handshake(), 600), (token("bob"), 0)
        ],
    }  # fmt: skip
    assert broken_rules(2000, scripts[rule]) == [rule]
