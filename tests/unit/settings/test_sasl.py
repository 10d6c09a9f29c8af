"""The SASL settings of a listener: their precedence, the users in JAAS texts, and refusals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.settings.kinds import BadValue
from quorumlog.settings.listeners import (
    Listeners,
    SecurityProtocol,
    check_listener_setting,
    listener_value,
    read_listeners,
)
from quorumlog.settings.sasl import BrokerLogin, SaslSettings, TokenSettings

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
TWO = {
    "listeners": "PLAINTEXT://127.0.0.1:9092,EXTERNAL://127.0.0.1:9093",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,EXTERNAL:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
}
JWKS = "sasl.oauthbearer.jwks.endpoint.url"
SECRET = "5ecret"


def read(**changes: str) -> Listeners:
    return read_listeners({**TWO, **{k.replace("__", "."): v for k, v in changes.items()}})


def sasl(changes: dict[str, str]) -> SaslSettings:
    found = read_listeners({**TWO, **changes}).by_name["EXTERNAL"].sasl
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["x"], "x"),
        (["x", "listener.name.a.x"], "listener.name.a.x"),
        (["x", "listener.name.a.plain.x", "listener.name.a.x"], "listener.name.a.plain.x"),
        (["listener.name.a.scram-sha-256.x", "x"], "x"),
        (["listener.name.A.PLAIN.x", "x"], "x"),
        (["listener.name.A.PLAIN.x"], "listener.name.A.PLAIN.x"),
        (["listener.name.b.x"], None),
    ],
)
def test_the_most_specific_name_wins(names: list[str], expected: str | None) -> None:
    assert listener_value({name: name for name in names}, "A", "x", "PLAIN") == expected


def test_a_listener_without_sasl_needs_none_and_the_other_has_its_mechanisms() -> None:
    listeners = read()
    assert listeners.by_name["PLAINTEXT"].sasl is None
    external = listeners.by_name["EXTERNAL"]
    assert external.protocol is SecurityProtocol.SASL_PLAINTEXT
    assert external.sasl is not None
    assert [*external.sasl.mechanisms] == ["PLAIN"]
    assert (external.sasl.failed_delay_ms, external.sasl.receive_max_bytes) == (100, 524_288)
    assert listeners.inter_broker_login is None


def test_each_mechanism_has_its_own_users_and_lifetime() -> None:
    found = sasl(
        {
            "sasl.enabled.mechanisms": "SCRAM-SHA-256, PLAIN",
            "listener.name.external.plain.sasl.jaas.config": f"{PLAIN_MODULE} required "
            'username="me" password=\'p w\' user_me=\'p w\' user_al="a\\"=;" // the end\n;',
            "connections.max.reauth.ms": "5",
            "listener.name.external.scram-sha-256.connections.max.reauth.ms": "7",
        }
    )
    assert [*found.mechanisms] == ["SCRAM-SHA-256", "PLAIN"]
    plain, scram = found.mechanisms["PLAIN"], found.mechanisms["SCRAM-SHA-256"]
    assert plain.users == {"me": "p w", "al": 'a"=;'}
    assert plain.login == BrokerLogin(mechanism="PLAIN", username="me", password="p w")
    assert (plain.max_reauth_ms, scram.max_reauth_ms) == (5, 7)
    assert (scram.users, scram.login) == ({}, None)


def test_the_brokers_log_in_by_their_mechanism() -> None:
    changes = {
        "inter.broker.listener.name": "external",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        "sasl.jaas.config": f"{PLAIN_MODULE} required username=a password=b;"
        "a.b.ScramLoginModule REQUIRED username=c password=d;",
    }
    login = BrokerLogin(mechanism="SCRAM-SHA-512", username="c", password="d")
    assert read_listeners({**TWO, **changes}).inter_broker_login == login
    assert "'d'" not in repr(login)
    del changes["sasl.mechanism.inter.broker.protocol"]
    with pytest.raises(BadValue, match="has several mechanisms: PLAIN, SCRAM-SHA-512"):
        read_listeners({**TWO, **changes})


def test_tokens_are_signed_if_there_are_keys() -> None:
    oauth = {"sasl.enabled.mechanisms": "OAUTHBEARER"}
    unsigned = sasl(
        {
            **oauth,
            "sasl.jaas.config": f'{OAUTH_MODULE} required unsecuredValidatorRequiredScope="a b"'
            ' unsecuredValidatorPrincipalClaimName="name" unsecuredLoginStringClaim_sub="me";',
        }
    ).mechanisms["OAUTHBEARER"]
    assert unsigned.tokens == TokenSettings(principal_claim="name", required_scopes=("a", "b"))
    assert unsigned.login == BrokerLogin(mechanism="OAUTHBEARER", username="me")
    signed = sasl(
        {
            **oauth,
            JWKS: "file:///keys.json",
            "sasl.oauthbearer.expected.audience": "a, b",
            "listener.name.external.sasl.oauthbearer.expected.issuer": "me",
        }
    ).mechanisms["OAUTHBEARER"]
    assert signed.tokens == TokenSettings(
        jwks_url="file:///keys.json", audiences=("a", "b"), issuer="me", clock_skew_ms=30_000
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sasl.enabled.mechanisms": ""}, "EXTERNAL: sasl.enabled.mechanisms is not set; choose"),
        ({"sasl.enabled.mechanisms": "PLAIN,GSSAPI"}, "GSSAPI is not supported; choose from PLAIN"),
        ({"listener.security.protocol.map": ""}, "no security protocol is defined"),
        ({"listeners": "PLAINTEXT://h:1"}, "mechanisms is set, but no listener has SASL"),
        ({"connections.max.reauth.ms": "-1"}, "Value must be at least 0"),
        (
            {"sasl.jaas.config": "X required a=b;"},
            "X is not supported; use one of PlainLoginModule",
        ),
        ({"sasl.jaas.config": f"PlainLoginModule required user_={SECRET};"}, "as user_NAME=PASS"),
        ({"sasl.jaas.config": f"PlainLoginModule required a={SECRET}"}, "semicolon is missing"),
        ({"sasl.jaas.config": f"PlainLoginModule needed a={SECRET};"}, "write it as MODULE"),
        ({"sasl.jaas.config": f"PlainLoginModule required a {SECRET};"}, "write it as MODULE"),
        ({"sasl.jaas.config": f"PlainLoginModule required a='{SECRET};"}, "write it as MODULE"),
        ({"inter.broker.listener.name": "external"}, "add username and password"),
        ({"sasl.server.callback.handler.class": "a.b.Own"}, "Own is not supported; leave it out"),
    ],
)
def test_settings_that_cannot_protect_are_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(BadValue) as refused:
        read_listeners({**TWO, **changes})
    assert message in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_class_that_checks_signatures_needs_keys() -> None:
    name = "sasl.server.callback.handler.class"
    signed = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
    oauth = {"sasl.enabled.mechanisms": "OAUTHBEARER"}
    with pytest.raises(BadValue, match=f"{JWKS} is not set"):
        sasl({**oauth, name: signed})
    assert sasl({**oauth, name: signed, JWKS: "http://h/k"}).mechanisms["OAUTHBEARER"].tokens
    with pytest.raises(BadValue, match=r"write it as https://"):
        sasl({**oauth, JWKS: "ftp://h/k"})


def test_settings_of_sasl_can_be_set_for_a_listener_and_a_mechanism() -> None:
    check_listener_setting("listener.name.external.sasl.enabled.mechanisms", "PLAIN")
    check_listener_setting("listener.name.external.scram-sha-256.sasl.jaas.config", "x")
    with pytest.raises(BadValue, match="not supported"):
        check_listener_setting("listener.name.external.gssapi.sasl.jaas.config", "x")


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
NAMES = st.from_regex(r"[A-Za-z0-9_.-]{1,8}", fullmatch=True)


@given(users=st.dictionaries(NAMES, TEXTS, max_size=4), quote=st.sampled_from("\"'"))
def test_any_password_in_quotes_is_read(users: dict[str, str], quote: str) -> None:
    def quoted(text: str) -> str:
        return quote + text.replace("\\", "\\\\").replace(quote, f"\\{quote}") + quote

    options = " ".join(f"user_{name}={quoted(text)}" for name, text in users.items())
    found = sasl({"sasl.jaas.config": f"{PLAIN_MODULE} required {options};"})
    assert found.mechanisms["PLAIN"].users == users


@given(text=st.text(alphabet="PlainLoginModule required a=b;\"'\\/*\n", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    refusal = ""
    try:
        sasl({"sasl.jaas.config": text})
    except BadValue as error:
        refusal = str(error)
    assert not refusal or refusal.startswith("the listener EXTERNAL: sasl.jaas.config: ")
