"""TLS and SASL of the clients: settings that are refused, and errors that reach the caller."""

import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from quorumlog.client import Admin, Consumer, Producer
from quorumlog.client.io.broker_connections import why_unreachable
from quorumlog.client.security import SecuritySettings
from quorumlog.client.settings import ConsumerSettings, build
from quorumlog.wire.io.connection import ConnectionLost

# --- settings ---

ALICE = {"sasl_username": "alice", "sasl_password": "secret"}
SCRAM = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256", **ALICE}


@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        ({"security_protocol": "TLS"}, ValueError, "security_protocol must be one of 'PLAINTEXT'"),
        ({"sasl_mechanism": "GSSAPI"}, ValueError, "one of 'PLAIN', 'SCRAM-SHA-256'"),
        ({"sasl_password": 7}, TypeError, "sasl_password must be of type str or None, not int"),
        ({"sasl_token": 7}, TypeError, "of type str or a synchronous function or None, not int"),
        (ALICE, ValueError, "sasl_username needs security_protocol='SASL_SSL' or"),
        ({"ssl_ca": "x"}, ValueError, "ssl_ca needs security_protocol='SSL' or 'SASL_SSL'"),
        ({**SCRAM, "ssl_ca": "x"}, ValueError, "ssl_ca needs security_protocol="),
        ({"security_protocol": "SSL", "ssl_key": "x"}, ValueError, "ssl_key needs ssl_certificate"),
        ({"security_protocol": "SASL_SSL"}, ValueError, "needs a sasl_mechanism"),
        ({**SCRAM, "sasl_password": ""}, ValueError, "needs sasl_username and sasl_password"),
        ({**SCRAM, "sasl_token": "t"}, ValueError, "sasl_token is for OAUTHBEARER"),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"},
            ValueError,
            "OAUTHBEARER needs a sasl_token",
        ),
        ({"sasl_mechanisms": "PLAIN"}, TypeError, "did you mean 'sasl_mechanism'"),
        ({"ssl_check_hostnames": True}, TypeError, "did you mean 'ssl_check_hostname'"),
        ({"sasl_plain_username": "a"}, TypeError, "set sasl_username"),
        ({"ssl.truststore.location": "a"}, TypeError, "set ssl_ca"),
    ],
)
@pytest.mark.parametrize("kind", [Admin, Consumer, Producer])
def test_settings_of_security_that_cannot_hold_are_refused(
    kind: type[Admin | Consumer | Producer], options: dict[str, Any], error: Any, why: str
) -> None:
    with pytest.raises(error) as refusal:
        kind("x:1", **options)
    assert why in str(refusal.value)
    assert "secret" not in str(refusal.value)


def test_settings_of_security_become_a_login_without_showing_it() -> None:
    settings = build(ConsumerSettings, "x:1", SCRAM)
    assert "secret" not in repr(settings)
    login = settings.connection_security().login
    assert login is not None
    assert (login.mechanism, login.username, login.password) == ("SCRAM-SHA-256", "alice", "secret")
    bearer = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
    for token in ("t", lambda: "t"):
        one = build(ConsumerSettings, "x:1", {**bearer, "sasl_token": token})
        assert (given := one.connection_security().login) is not None
        assert given.token is not None
        assert given.token() == "t"
    assert build(ConsumerSettings, "x:1", {}).connection_security().tls is None


def test_an_issuer_that_refuses_is_not_taken_for_the_broker() -> None:
    error = ConnectionLost("no token: URLError: [Errno 111] Connection refused")
    error.__cause__ = ConnectionRefusedError(111, "refused")
    assert why_unreachable(error) == str(error)


def pem(*blobs: trustme.Blob) -> str:
    return "".join(blob.bytes().decode() for blob in blobs)


def encrypted(key: str, password: bytes) -> str:
    loaded = serialization.load_pem_private_key(key.encode(), None)
    return loaded.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password),
    ).decode()


def test_certificates_are_files_or_text(tmp_path: Path) -> None:
    ca = trustme.CA()
    leaf = ca.issue_cert("client@example.org")
    key, chain = pem(leaf.private_key_pem), pem(*leaf.cert_chain_pems)
    (tmp_path / "all.pem").write_text(chain + key)
    secret = encrypted(key, b"pw")
    for options in (
        {"ssl_ca": pem(ca.cert_pem), "ssl_certificate": chain, "ssl_key": key},
        {"ssl_certificate": tmp_path / "all.pem", "ssl_check_hostname": False},
        {"ssl_certificate": chain, "ssl_key": secret, "ssl_key_password": "pw"},
    ):
        settings = SecuritySettings(security_protocol="SSL", **options)
        tls = settings.connection_security().tls
        assert tls is not None
        assert tls.check_hostname is settings.ssl_check_hostname
        assert tls.verify_mode is ssl.CERT_REQUIRED
        assert tls.get_ca_certs() or "ssl_ca" not in options
        assert "PRIVATE" not in repr(settings)


def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    ca = trustme.CA()
    leaf, other = ca.issue_cert("one@example.org"), ca.issue_cert("two@example.org")
    key, chain = pem(leaf.private_key_pem), pem(*leaf.cert_chain_pems)
    secret = encrypted(key, b"pw")
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")
    cases: list[tuple[dict[str, Any], str]] = [
        ({"ssl_ca": "missing.pem"}, "CA certificates missing.pem: no such file"),
        ({"ssl_ca": empty}, f"CA certificates {empty}: no PEM block of this kind"),
        ({"ssl_ca": key}, "CA certificates (PEM text): "),
        ({"ssl_certificate": "missing.pem"}, "certificate missing.pem: no such file"),
        ({"ssl_certificate": chain}, "certificate (PEM text): no PEM block of this kind"),
        (
            {"ssl_certificate": chain, "ssl_key": pem(other.private_key_pem)},
            "the key does not belong to the certificate",
        ),
        ({"ssl_certificate": chain, "ssl_key": secret}, "the key is encrypted: give its password"),
        (
            {"ssl_certificate": chain, "ssl_key": secret, "ssl_key_password": "pq"},
            "or the password of its key is wrong",
        ),
        ({"ssl_certificate": chain, "ssl_key": "missing.key"}, "missing.key: no such file"),
    ]
    for options, why in cases:
        settings = SecuritySettings(security_protocol="SSL", **options)
        with pytest.raises(ValueError, match="certificate") as refusal:
            settings.connection_security()
        assert why in str(refusal.value)
