"""PLAIN, SCRAM and OAUTHBEARER: right and wrong tokens, and the secrets that no answer has."""

import base64
import hashlib
import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scramp import ScramClient

from quorumlog.broker.authentication.core import scram as scram_module
from quorumlog.broker.authentication.core.bearer import BearerExchange
from quorumlog.broker.authentication.core.exchange import (
    Authenticated,
    Challenge,
    Outcome,
    Rejected,
)
from quorumlog.broker.authentication.core.plain import PlainExchange
from quorumlog.broker.authentication.core.scram import Credentials, ScramExchange, UnknownUsers
from quorumlog.metadata_quorum.image.scram import ScramCredential, ScramMechanism, credential_of
from quorumlog.settings.sasl import TokenSettings

USERS = {"alice": "sécret", "bob": "b"}
INVALID = "Authentication failed: Invalid username or password"
NAMES = {ScramMechanism.SHA_256: "SCRAM-SHA-256", ScramMechanism.SHA_512: "SCRAM-SHA-512"}


# --- PLAIN ---


def plain(text: str | bytes) -> Outcome:
    return PlainExchange(USERS).receive(text.encode() if isinstance(text, str) else text, 0)


@pytest.mark.parametrize(
    ("token", "user"),
    [("\0alice\0sécret", "alice"), ("alice\0alice\0sécret", "alice"), ("\0bob\0b", "bob")],
)
def test_a_right_password_authenticates_its_user(token: str, user: str) -> None:
    assert plain(token) == Authenticated(user=user)


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ("\0alice\0wrong", INVALID),
        ("\0carol\0wrong", INVALID),
        ("\0carol\0\x01", INVALID),
        ("bob\0carol\0sécret", INVALID),
        ("bob\0alice\0wrong", INVALID),
        ("\0alice\0", "Authentication failed: password not specified"),
        ("\0\0x", "Authentication failed: username not specified"),
        ("alice\0sécret", None),
        ("\0alice\0sécret\0", None),
        ("", None),
        (b"\0alice\0\xff", None),
    ],
)
def test_a_wrong_token_is_rejected_by_one_sentence(token: str | bytes, message: str | None) -> None:
    outcome = plain(token)
    assert isinstance(outcome, Rejected)
    assert outcome.message == message


def test_a_right_password_is_of_no_use_for_another_user() -> None:
    outcome = plain("bob\0alice\0sécret")
    assert isinstance(outcome, Rejected)
    assert (outcome.message or "").endswith("an authorization id that is different from username")


# --- SCRAM ---


def credential(
    mechanism: ScramMechanism, password: str, salt: bytes = b"0123456789abcdef", rounds: int = 4096
) -> ScramCredential:
    salted = hashlib.pbkdf2_hmac(scram_module.HASHES[mechanism], password.encode(), salt, rounds)
    return credential_of(mechanism, iterations=rounds, salt=salt, salted_password=salted)


STORED: Credentials = {
    ("alice", ScramMechanism.SHA_256): credential(ScramMechanism.SHA_256, "secret"),
    ("alice", ScramMechanism.SHA_512): credential(ScramMechanism.SHA_512, "secret"),
    ("bob", ScramMechanism.SHA_256): credential(ScramMechanism.SHA_256, "b", b"s" * 24, 8192),
    ("dan", ScramMechanism.SHA_256): credential(ScramMechanism.SHA_256, "d", b"t" * 24, 8192),
    ("a=b,c", ScramMechanism.SHA_256): credential(ScramMechanism.SHA_256, "secret"),
    ("älice", ScramMechanism.SHA_256): credential(
        ScramMechanism.SHA_256, "secret", b"u" * 24, 8192
    ),
}
EVERY = pytest.mark.parametrize("mechanism", [*ScramMechanism])


def exchange(
    mechanism: ScramMechanism = ScramMechanism.SHA_256,
    stored: Credentials = STORED,
    nonce: str = "server",
    secret: bytes = b"secret of the cluster",
) -> ScramExchange:
    return ScramExchange(mechanism, lambda: stored, UnknownUsers(secret), nonce)


def login(server: ScramExchange, mechanism: ScramMechanism, user: str, password: str) -> Outcome:
    """Log in by another implementation of the client, which checks the server's signature."""
    client = ScramClient([NAMES[mechanism]], user, password)
    challenge = server.receive(client.get_client_first().encode(), 0)
    assert isinstance(challenge, Challenge)
    client.set_server_first(challenge.token.decode())
    outcome = server.receive(client.get_client_final().encode(), 0)
    if isinstance(outcome, Authenticated):
        client.set_server_final(outcome.token.decode())
    return outcome


@EVERY
def test_another_implementation_of_the_client_logs_in(mechanism: ScramMechanism) -> None:
    outcome = login(exchange(mechanism), mechanism, "alice", "secret")
    assert isinstance(outcome, Authenticated)
    assert outcome.user == "alice"


@pytest.mark.parametrize("user", ["a=b,c", "älice"])
def test_a_name_with_any_characters_logs_in(user: str) -> None:
    outcome = login(exchange(), ScramMechanism.SHA_256, user, "secret")
    assert isinstance(outcome, Authenticated)
    assert outcome.user == user


@EVERY
@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("carol", "secret")])
def test_wrong_credentials_are_rejected_without_a_sentence_of_their_own(
    mechanism: ScramMechanism, user: str, password: str
) -> None:
    outcome = login(exchange(mechanism), mechanism, user, password)
    assert isinstance(outcome, Rejected)
    assert outcome.message is None


def test_the_example_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    stored = {("user", int(ScramMechanism.SHA_256)): credential(
        ScramMechanism.SHA_256, "pencil", salt
    )}  # fmt: skip
    server = exchange(stored=stored, nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert server.receive(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO", 0) == Challenge(
        token=b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,"
        b"i=4096"
    )
    final = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert server.receive(final, 0) == Authenticated(
        user="user", token=b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    )


FIRST = b"n,,n=alice,r=client"


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"y,,n=alice,r=client",
        b"p=tls-unique,,n=alice,r=client",
        b"n,n=alice,r=client",
        b"n,,n=,r=client",
        b"n,,n=a=b,r=client",
        b"n,,n=alice,r=",
        b"n,,n=alice,r=cl ient",
        b"n,,n=alice,r=client,x",
        b"n,,n=\xff,r=client",
        b"n,,n=ali\0ce,r=client",
    ],
)
def test_a_malformed_first_message_is_rejected(first: bytes) -> None:
    assert isinstance(exchange().receive(first, 0), Rejected)


PROOF = base64.b64encode(bytes(32))


@pytest.mark.parametrize(
    "final",
    [
        b"",
        b"c=biws,r=clientserver,p=",
        b"c=biws,r=clientserver,p=" + base64.b64encode(bytes(31)),
        b"c=biws,r=clientserver,p=" + PROOF,
        b"c=biws,r=client,p=" + PROOF,
        b"c=eSws,r=clientserver,p=" + PROOF,
        b"c=bi,r=clientserver,p=AAA",
        b"r=clientserver,p=" + PROOF,
    ],
)
def test_a_malformed_final_message_is_rejected(final: bytes) -> None:
    server = exchange()
    assert isinstance(server.receive(FIRST, 0), Challenge)
    outcome = server.receive(final, 0)
    assert isinstance(outcome, Rejected)
    assert outcome.message is None


def test_a_proof_is_valid_for_its_nonce_alone() -> None:
    client = ScramClient(["SCRAM-SHA-256"], "alice", "secret")
    first = client.get_client_first().encode()
    server, other = exchange(nonce="one"), exchange(nonce="two")
    challenge = server.receive(first, 0)
    assert isinstance(challenge, Challenge)
    other.receive(first, 0)
    client.set_server_first(challenge.token.decode())
    assert isinstance(other.receive(client.get_client_final().encode(), 0), Rejected)


def test_a_proof_has_one_encoding() -> None:
    """The last character of 32 bytes in base64 has two bits that no byte takes."""
    client, server = ScramClient(["SCRAM-SHA-256"], "alice", "secret"), exchange()
    challenge = server.receive(client.get_client_first().encode(), 0)
    assert isinstance(challenge, Challenge)
    client.set_server_first(challenge.token.decode())
    final = client.get_client_final()
    other = f"{final[:-2]}{chr(ord(final[-2]) + 1)}="
    proof, other_proof = (text.partition(",p=")[2] for text in (final, other))
    assert proof != other_proof  # the proof itself may end with "p="
    assert base64.b64decode(proof) == base64.b64decode(other_proof)
    assert isinstance(server.receive(other.encode(), 0), Rejected)


def test_another_authorization_id_is_refused_and_the_own_one_accepted() -> None:
    outcome = exchange().receive(b"n,a=bob,n=alice,r=client", 0)
    assert isinstance(outcome, Rejected)
    assert "authorization id" in (outcome.message or "")
    assert isinstance(exchange().receive(b"n,a=alice,n=alice,r=client", 0), Challenge)


def test_a_delegation_token_is_no_password() -> None:
    with_flag = exchange().receive(FIRST + b",tokenauth=true", 0)
    without = exchange().receive(FIRST, 0)
    assert isinstance(with_flag, Challenge)
    assert with_flag != without  # another salt: of a user that does not exist


def shown(user: str, **options: Any) -> tuple[str, str]:
    """The salt and the iterations that a client receives for a name."""
    challenge = exchange(**options).receive(f"n,,n={user},r=client".encode(), 0)
    assert isinstance(challenge, Challenge)
    _, salt, iterations = challenge.token.decode().split(",")
    return salt, iterations


def test_nothing_shows_whether_a_user_exists() -> None:
    """A salt that changes, or has another size, or other iterations, would show it."""
    carol, eve, dan = shown("carol"), shown("eve"), shown("dan")
    assert carol == shown("carol", nonce="other") != eve
    assert carol[1] == eve[1] == dan[1] == "i=8192"
    assert len(carol[0]) == len(eve[0]) == len(dan[0])
    assert shown("carol", secret=b"of another cluster") != carol
    assert shown("carol", stored={})[1] == "i=4096"
    without_dan = {key: one for key, one in STORED.items() if key[0] != "dan"}
    assert shown("carol", stored=without_dan) == carol


def fails_at_once(
    server: UnknownUsers, user: str, mechanism: int, stored: Credentials
) -> ScramCredential:
    """A planted bug: no credential of an unknown user is its name, without a secret."""
    del server, mechanism, stored
    return ScramCredential(iterations=4096, salt=user.encode(), stored_key=b"", server_key=b"")


def test_the_planted_bug_of_a_salt_that_shows_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UnknownUsers, "credential", fails_at_once)
    with pytest.raises(AssertionError):
        test_nothing_shows_whether_a_user_exists()


@given(tokens=st.lists(st.binary(max_size=80), max_size=4))
def test_no_token_is_accepted_by_chance(tokens: list[bytes]) -> None:
    for server in (exchange(), PlainExchange(USERS), BearerExchange(TokenSettings())):
        for token in tokens:
            assert not isinstance(server.receive(token, 0), Authenticated)


# --- OAUTHBEARER ---

NOW_MS = 1_000_000


def section(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def unsigned(claims: object, header: object = {"alg": "none"}, signature: str = "") -> str:
    return f"{section(header)}.{section(claims)}.{signature}"


def first_message(token: str, other: str = "", extra: str = "") -> bytes:
    identity = f"a={other}" if other else ""
    return f"n,{identity},\x01auth=Bearer {token}\x01{extra}\x01".encode()


VALID = {"sub": "alice", "exp": 1001, "iat": 999.5, "scope": "read write"}


def bearer(settings: TokenSettings, claims: object, **options: str) -> tuple[Outcome, Outcome]:
    """The outcomes of a token and of the confirmation behind it."""
    server = BearerExchange(settings)
    first = server.receive(first_message(unsigned(claims), **options), NOW_MS)
    return first, server.receive(b"\x01", NOW_MS)


def test_a_token_authenticates_its_subject_until_it_expires() -> None:
    accepted = Authenticated(user="alice", expires_ms=1_001_000)
    assert bearer(TokenSettings(), VALID)[0] == accepted
    assert bearer(TokenSettings(), VALID, extra="tenant=x y\x01")[0] == accepted
    assert bearer(TokenSettings(), VALID, other="alice")[0] == accepted
    named = TokenSettings(principal_claim="name", required_scopes=("write",))
    assert bearer(named, {**VALID, "name": "bob"})[0] == Authenticated(
        user="bob", expires_ms=1_001_000
    )
    assert isinstance(
        bearer(TokenSettings(required_scopes=("a",)), {**VALID, "scope": ["a"]})[0], Authenticated
    )
    late = TokenSettings(clock_skew_ms=2000)
    assert isinstance(bearer(late, {**VALID, "exp": 999, "iat": 998})[0], Authenticated)


@pytest.mark.parametrize(
    "claims",
    [
        {**VALID, "exp": 1000},
        {**VALID, "exp": 999},
        {**VALID, "exp": "1001"},
        {**VALID, "exp": True},
        {**VALID, "exp": float("nan")},
        {**VALID, "iat": 1000.5},
        {**VALID, "iat": 1001, "exp": 1001},
        {**VALID, "sub": " "},
        {**VALID, "sub": 7},
        {**VALID, "sub": "\ud800"},
        {"sub": "alice"},
        {"exp": 1001},
        {**VALID, "scope": 7},
        [],
        "alice",
    ],
)
def test_a_wrong_token_is_challenged_then_rejected_by_the_same_text(claims: object) -> None:
    challenge, rejected = bearer(TokenSettings(required_scopes=("read",)), claims)
    assert challenge == Challenge(token=b'{"status":"invalid_token"}')
    assert isinstance(rejected, Rejected)
    assert rejected.message == '{"status":"invalid_token"}'


def test_a_scope_that_is_missing_is_named() -> None:
    challenge, _ = bearer(TokenSettings(required_scopes=("read", "admin")), VALID)
    assert challenge == Challenge(token=b'{"status":"insufficient_scope","scope":"read admin"}')


@pytest.mark.parametrize(
    "token",
    [
        unsigned(VALID, {"alg": "HS256"}, "c2ln"),
        unsigned(VALID, {"alg": "none"}, "c2ln"),
        unsigned(VALID, {"alg": "HS256"}),
        unsigned(VALID, {}),
        section(VALID),
        "a.b",
        "a.b.",
        "a.b.c.d",
        f"{section({'alg': 'none'})}.{'W' * 4001}.",
    ],
)
def test_a_token_that_is_signed_or_broken_is_not_accepted(token: str) -> None:
    server = BearerExchange(TokenSettings())
    assert isinstance(server.receive(first_message(token), NOW_MS), Challenge)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"y,,\x01auth=Bearer abc\x01\x01",
        b"n,,\x01auth=Bearer abc\x01",
        b"n,,\x01host=x\x01\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
    ],
)
def test_a_malformed_message_is_rejected(message: bytes) -> None:
    assert isinstance(BearerExchange(TokenSettings()).receive(message, NOW_MS), Rejected)


def test_a_token_of_another_user_is_refused() -> None:
    assert isinstance(bearer(TokenSettings(), VALID, other="bob")[0], Rejected)


def test_secrets_are_in_no_outcome_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    outcomes = [plain("\0alice\0wr0ng-passw0rd"), plain("\0alice\0sécret\0wr0ng-passw0rd")]
    outcomes += bearer(TokenSettings(), {**VALID, "exp": 1, "jti": "wr0ng-passw0rd"})
    assert "wr0ng" not in repr(outcomes) + caplog.text
    assert "sécret" not in repr(outcomes)
