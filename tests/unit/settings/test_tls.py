"""The settings of TLS: stores as Kafka takes them, rules for principals, PEM texts."""

from collections.abc import Mapping

import pytest

from quorumlog.settings.kinds import PASSWORD, BadValue
from quorumlog.settings.tls import (
    ROWS,
    ClientAuth,
    TlsSettings,
    is_control_role,
    node_role,
    pem_blocks,
    read_rules,
    read_tls,
)

_FILE = {"ssl.keystore.type": "PEM", "ssl.keystore.location": "server.pem"}
_TEXTS = {
    "ssl.keystore.type": "PEM",
    "ssl.keystore.key": "a key",
    "ssl.keystore.certificate.chain": "a chain",
}


def _read(values: Mapping[str, str]) -> TlsSettings:
    return read_tls(values.get, "listener.name.x.")


def test_a_file_and_kafkas_defaults() -> None:
    read = _read(_FILE)
    assert (read.keystore.type, read.keystore.location) == ("PEM", "server.pem")
    assert read.client_auth is ClientAuth.NONE
    assert read.protocols == ("TLSv1.2", "TLSv1.3")
    assert read.checks_hosts
    assert read.principal_rules == read_rules("DEFAULT")


def test_no_secret_is_in_the_text_of_the_settings() -> None:
    names = [name for name, row in ROWS.items() if row.kind is PASSWORD]
    secrets = {name: f"secret-{number}" for number, name in enumerate(names)}
    assert len(secrets) == 6
    in_files = _read(
        {"ssl.keystore.location": "x.p12", "ssl.truststore.location": "y.p12"}
        | {name: text for name, text in secrets.items() if name.endswith("password")}
    )
    as_texts = _read(_TEXTS | {"ssl.keystore.key": "secret-key", "ssl.key.password": "secret-pw"})
    assert "secret" not in repr(in_files) + repr(as_texts)
    assert in_files.keystore.password
    assert as_texts.key == "secret-key"


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({}, "ssl.keystore.location is not set: a listener with TLS needs a certificate"),
        ({"ssl.keystore.location": "x.p12"}, "location is set, but .*ssl.keystore.password is not"),
        ({"ssl.keystore.password": "pw"}, "password is set, but .*ssl.keystore.location is not"),
        (_FILE | {"ssl.keystore.password": "pw"}, "cannot be set with type PEM; set only ssl.key"),
        (_FILE | {"ssl.keystore.type": "BKS"}, "type=BKS: use JKS, PKCS12, PEM"),
        (_TEXTS | {"ssl.keystore.type": "JKS"}, "as text need type PEM"),
        (_TEXTS | {"ssl.keystore.key": ""}, "certificate.chain is set, but .*keystore.key is not"),
        (
            _TEXTS | {"ssl.keystore.certificate.chain": ""},
            "keystore.key is set, but .*certificate.chain is not",
        ),
        (_TEXTS | {"ssl.keystore.location": "x.pem"}, "location and certificates as text"),
        (_FILE | {"ssl.truststore.certificates": "x"}, "truststore.type=JKS: .* need type PEM"),
        (
            _FILE | {"ssl.truststore.type": "PEM", "ssl.truststore.password": "pw"},
            "listener.name.x.ssl.truststore.password cannot be set with type PEM$",
        ),
        (_FILE | {"ssl.truststore.password": "pw"}, "truststore.location is not"),
        (
            _FILE | {"ssl.client.auth": "want"},
            "ssl.client.auth=want: use none, requested, required",
        ),
        (_FILE | {"ssl.enabled.protocols": "TLSv1.1"}, "enabled.protocols=TLSv1.1: use TLSv1.2"),
        (_FILE | {"ssl.protocol": "SSLv3"}, "ssl.protocol=SSLv3: use TLSv1.2 or TLSv1.3"),
        (_FILE | {"ssl.endpoint.identification.algorithm": "LDAPS"}, "use https, or leave it"),
        (_FILE | {"ssl.principal.mapping.rules": "default"}, "does not begin with DEFAULT"),
    ],
)
def test_impossible_settings_are_refused(values: dict[str, str], problem: str) -> None:
    with pytest.raises(BadValue, match=problem):
        _read(values)


@pytest.mark.parametrize(
    "text",
    [
        "DEFAULT",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, DEFAULT",
        "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L",
        "RULE:^cn=(.?),ou=(.?),dc=(.?),dc=(.?)$/$1@$2/U",
        "RULE:^CN=([^,ADEFLTU,]+)(,.*|$)/$1/",
        "RULE:^CN=([^,DEFAULT,]+)(,.*|$)/$1/",
    ],
)
def test_documented_rules_are_read(text: str) -> None:
    assert read_rules(text)


@pytest.mark.parametrize(
    "text",
    [
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "DEFAULT/U",
        "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
        "rule:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/L",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/LU",
        "RULE:x/$/",
        "RULE:x/$a/",
    ],
)
def test_rules_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(BadValue, match=r"ssl\.principal\.mapping\.rules"):
        read_rules(text)


@pytest.mark.parametrize(
    ("text", "patterns"),
    [
        ("", []),
        ("RULE:/.*/L", [""]),
        ("  RULE:// ,  DEFAULT  ", ["", None]),
        ("  RULE:([A-Z]*)/$1/U   ,RULE:([a-z]+)/$1/,   DEFAULT  ", ["([A-Z]*)", "([a-z]+)", None]),
        (",   , , ,      , , ,   ", []),
        (",  , RULE: /   /    ,,,   DEFAULT, ,   ", [" ", None]),
        (r"RULE:\**\/+/*/L,RULE:\/*\**/**/", [r"\**\/+", r"\/*\**"]),
        (
            r"RULE:,RULE:,/,RULE:,\//U,RULE:,/RULE:,/,RULE:,RULE:,/L,RULE:,/L,RULE:, DEFAULT, "
            "/DEFAULT/,DEFAULT",
            [",RULE:,", ",", ",RULE:,", ", DEFAULT, ", None],
        ),
    ],
)
def test_rules_are_separated_by_commas(text: str, patterns: list[str | None]) -> None:
    assert [rule.pattern for rule in read_rules(text)] == patterns


_BODY = "QUJD" * 40


@pytest.mark.parametrize("separator", ["\n", " ", r"\n", "\r\n", "\\\n  "])
def test_blocks_of_pem_are_laid_out_anew(separator: str) -> None:
    body = separator.join(_BODY[at : at + 60] for at in range(0, len(_BODY), 60))
    text = (
        f"issuer=CN x{separator}-----BEGIN CERTIFICATE-----{separator}{body}{separator}"
        f"-----END CERTIFICATE----- and more"
    )
    ((label, block),) = pem_blocks(text)
    assert label == "CERTIFICATE"
    assert max(map(len, block.splitlines())) == 64
    assert "".join(block.splitlines()[1:-1]) == _BODY


def test_roles_on_control_listeners() -> None:
    assert is_control_role(node_role(7))
    assert is_control_role("operator")
    assert not any(map(is_control_role, ("node-", "node-x", "xnode-1", "node-1.example", "alice")))
