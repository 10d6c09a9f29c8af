"""TLS contexts of a node: stores of every form, certificates in time, errors with the remedy."""

import logging
import shutil
import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization as forms
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from quorumlog.cluster.certificates import STORE_PASSWORD, Authority, Issued, make_ca
from quorumlog.node import tls
from quorumlog.node.config import ControlTlsFiles
from quorumlog.node.listeners import StartFailed
from quorumlog.node.tls import control_tls, listener_tls, reload_control_tls, renewed
from quorumlog.settings.listeners import Listeners, read_listeners

NOW = datetime.now(UTC).replace(microsecond=0)
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_ca(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def stores(authority: Authority, tmp_path: Path) -> SimpleNamespace:
    """The files of one server: as PEM, also in one file, and as PKCS#12."""
    issued = Issued(*(tmp_path / path.name for path in authority.issue("server", ["a.example"])))
    for path in issued:
        shutil.move(authority.directory / path.name, path)
    both = tmp_path / "both.pem"
    both.write_text(f"a note\n{issued.key.read_text()}{issued.certificate.read_text()}")
    both.chmod(0o600)
    return SimpleNamespace(**issued._asdict(), both=both, path=tmp_path)


def listeners(values: dict[str, Any], *, is_inter_broker: bool = False) -> Listeners:
    """The listener X with TLS, and beside it one with plain text."""
    return read_listeners(
        {
            "listeners": "PLAINTEXT://127.0.0.1:1,X://127.0.0.1:2",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,X:SSL",
            "inter.broker.listener.name": "X" if is_inter_broker else "PLAINTEXT",
            **{f"listener.name.x.ssl.{name}": str(text) for name, text in values.items()},
        }
    )


def pem(file: Path, **others: Any) -> dict[str, Any]:
    return {"keystore.type": "PEM", "keystore.location": file, **others}


def server(values: dict[str, Any]) -> ssl.SSLContext:
    return listener_tls(listeners(values))["X"].context


def test_a_store_is_a_file_or_texts(stores: SimpleNamespace, authority: Authority) -> None:
    texts = {
        "keystore.type": "PEM",
        "keystore.key": stores.key.read_text().replace("\n", "\\n"),
        "keystore.certificate.chain": stores.certificate.read_text().replace("\n", " "),
        "truststore.type": "PEM",
        "truststore.certificates": authority.certificate.read_text(),
    }
    pkcs12 = {
        "keystore.location": stores.keystore,  # the type is Kafka's default, JKS
        "keystore.password": STORE_PASSWORD,
        "truststore.type": "PKCS12",
        "truststore.location": authority.truststore,
        "truststore.password": STORE_PASSWORD,
    }
    for values in (pem(stores.both), texts, pkcs12):
        client = ssl.create_default_context(cafile=str(authority.certificate))
        client.check_hostname = False
        refusal, seen = tls._shake_hands(server(values), client)
        assert refusal is None
        assert (("commonName", "server"),) in (seen.getpeercert() or {})["subject"]


def test_a_trust_store_replaces_the_cas_of_the_system(
    stores: SimpleNamespace, authority: Authority
) -> None:
    trust = {"truststore.type": "PEM", "truststore.location": authority.certificate}
    required = server(pem(stores.both, **trust, **{"client.auth": "required"}))
    assert required.verify_mode is ssl.CERT_REQUIRED
    assert len(required.get_ca_certs()) == 1
    requested = server(pem(stores.both, **{"client.auth": "REQUESTED"}))
    assert requested.verify_mode is ssl.CERT_OPTIONAL
    assert server(pem(stores.both)).verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize(
    ("versions", "least", "most"),
    [
        ("TLSv1.2", ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2),
        ("TLSv1.3", ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3),
        ("TLSv1.3,TLSv1.2", ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3),
    ],
)
def test_versions(
    stores: SimpleNamespace, versions: str, least: ssl.TLSVersion, most: ssl.TLSVersion
) -> None:
    context = server(pem(stores.both, **{"enabled.protocols": versions}))
    assert (context.minimum_version, context.maximum_version) == (least, most)


def encrypted(stores: SimpleNamespace) -> Path:
    key = load_pem_private_key(stores.key.read_bytes(), None)
    text = key.private_bytes(
        forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.BestAvailableEncryption(b"right")
    )
    path: Path = stores.path / "encrypted.pem"
    path.write_bytes(text + stores.certificate.read_bytes())
    path.chmod(0o600)
    return path


def test_an_encrypted_key_needs_its_password(stores: SimpleNamespace) -> None:
    path = encrypted(stores)
    assert server(pem(path, **{"key.password": "right"})).cert_store_stats() is not None
    with pytest.raises(StartFailed, match=r"key is encrypted; set ssl\.key\.password"):
        server(pem(path))
    with pytest.raises(StartFailed, match="does not decrypt the key") as refused:
        server(pem(path, **{"key.password": "wrong-secret"}))
    assert "wrong-secret" not in str(refused.value)


def test_a_key_of_another_form_is_refused_with_the_command_that_converts_it(
    stores: SimpleNamespace,
) -> None:
    key = load_pem_private_key(stores.key.read_bytes(), None)
    text = key.private_bytes(
        forms.Encoding.PEM, forms.PrivateFormat.TraditionalOpenSSL, forms.NoEncryption()
    )
    stores.both.write_bytes(text + stores.certificate.read_bytes())
    with pytest.raises(
        StartFailed, match="EC PRIVATE KEY, and must be PKCS#8: convert it by `open"
    ):
        server(pem(stores.both))


def test_unusable_stores_are_refused_by_name(stores: SimpleNamespace, authority: Authority) -> None:
    other = authority.issue("other")
    cases = {
        "": "No such file or directory",
        "nothing": "no private keys",
        stores.key.read_text() * 2 + stores.certificate.read_text(): "2 private keys",
        stores.key.read_text(): "it has no certificate",
        other.key.read_text() + stores.certificate.read_text(): "does not belong to the first",
        stores.key.read_text()
        + other.certificate.read_text()[:200]
        + "-----END CERTIFICATE-----": ("the key or a certificate is damaged"),
    }
    for content, reason in cases.items():
        stores.both.unlink(missing_ok=True)
        if content:
            stores.both.write_text(content)
            stores.both.chmod(0o600)
        with pytest.raises(StartFailed, match=reason) as refused:
            server(pem(stores.both))
        assert f"listener.name.x.ssl.keystore.location={stores.both}" in str(refused.value)


def test_files_of_other_types_are_refused(stores: SimpleNamespace) -> None:
    jks = stores.path / "server.jks"
    jks.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    given = {"keystore.location": jks, "keystore.password": "x"}
    with pytest.raises(StartFailed, match="a JKS file; convert it by `keytool"):
        server(given)
    with pytest.raises(StartFailed, match="the file is PEM; set the type of the store to PEM"):
        server({**given, "keystore.location": stores.both})
    with pytest.raises(StartFailed, match="the file is not PEM"):
        server(pem(stores.keystore))
    with pytest.raises(StartFailed, match="no PKCS#12 file of this password"):
        server({"keystore.location": stores.keystore, "keystore.password": "wrong"})
    trust = {"truststore.type": "PEM", "truststore.location": stores.key}
    with pytest.raises(StartFailed, match=r"ssl\.truststore\.location=.*: it has no certificate"):
        server(pem(stores.both, **trust))


def test_a_key_that_others_can_read_is_named(
    stores: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    stores.both.chmod(0o640)
    server(pem(stores.both))
    assert "other users can read the key; chmod 600 it" in caplog.text


@pytest.mark.parametrize(
    ("days", "reason"), [((-2, -1), "has expired"), ((1, 2), "is not yet valid")]
)
def test_a_certificate_out_of_its_time(
    authority: Authority,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    days: tuple[int, int],
    reason: str,
) -> None:
    """As in Kafka: other brokers would refuse it, so a node does not start; clients see it."""
    start, end = (NOW + days_from_now * DAY for days_from_now in days)
    issued = authority.issue("late", not_before=start, not_after=end)
    both = tmp_path / "late.pem"
    both.write_text(issued.key.read_text() + issued.certificate.read_text())
    both.chmod(0o600)
    trust = {"truststore.type": "PEM", "truststore.location": authority.certificate}
    assert listener_tls(listeners(pem(both, **trust)))
    assert f"the listener X: its certificate {reason}: clients refuse it" in caplog.text
    with pytest.raises(StartFailed, match=reason.removeprefix("has ").removeprefix("is ")):
        listener_tls(listeners(pem(both, **trust), is_inter_broker=True))


def test_brokers_must_accept_the_certificate_of_their_own_listener(
    stores: SimpleNamespace, authority: Authority, tmp_path: Path
) -> None:
    trusts = pem(
        stores.both,
        **{"truststore.type": "PEM", "truststore.location": authority.certificate},
        **{"client.auth": "required"},
    )
    assert listener_tls(listeners(trusts, is_inter_broker=True))
    stranger = make_ca(tmp_path / "stranger")
    trusts["truststore.location"] = stranger.certificate
    with pytest.raises(StartFailed, match="other brokers with these settings refuse its"):
        listener_tls(listeners(trusts, is_inter_broker=True))


def test_a_pattern_of_principals_that_re2_refuses_prevents_the_start(
    stores: SimpleNamespace,
) -> None:
    with pytest.raises(StartFailed, match=r"the listener X: ssl\.principal\.mapping\.rules"):
        server(pem(stores.both, **{"principal.mapping.rules": "RULE:(/x/"}))


def replace_certificate(stores: SimpleNamespace, issued: Issued) -> None:
    stores.both.write_text(issued.key.read_text() + issued.certificate.read_text())


def test_a_store_that_is_read_again_keeps_its_subject_and_names(
    stores: SimpleNamespace, authority: Authority
) -> None:
    given = listeners(pem(stores.both))
    live = listener_tls(given)
    replace_certificate(stores, authority.issue("server", ["a.example", "b.example"]))
    assert [*renewed(given, live)] == ["X"]
    replace_certificate(stores, authority.issue("server"))
    with pytest.raises(StartFailed, match=r"it lacks a\.example; see ssl\.allow\.san\.changes"):
        renewed(given, live)
    assert renewed(listeners(pem(stores.both, **{"allow.san.changes": "true"})), live)
    replace_certificate(stores, authority.issue("another", ["a.example"]))
    with pytest.raises(StartFailed, match=r"another subject; see ssl\.allow\.dn\.changes"):
        renewed(given, live)
    assert renewed(listeners(pem(stores.both, **{"allow.dn.changes": "true"})), live)
    old = authority.issue("server", ["a.example"], not_before=NOW - 2 * DAY, not_after=NOW - DAY)
    replace_certificate(stores, old)
    with pytest.raises(StartFailed, match="expired"):
        renewed(given, live)


def test_an_expired_certificate_can_be_replaced(
    stores: SimpleNamespace, authority: Authority
) -> None:
    old = authority.issue("server", ["a.example"], not_before=NOW - 2 * DAY, not_after=NOW - DAY)
    replace_certificate(stores, old)
    given = listeners(pem(stores.both))
    live = listener_tls(given)
    replace_certificate(stores, authority.issue("server", ["a.example"]))
    assert renewed(given, live)
    replace_certificate(stores, authority.issue("another", ["a.example"]))
    with pytest.raises(StartFailed, match="another subject"):
        renewed(given, live)


# --- the control listener ---


def control_files(authority: Authority, issued: Issued) -> ControlTlsFiles:
    return ControlTlsFiles(
        ca=str(authority.certificate), certificate=str(issued.certificate), key=str(issued.key)
    )


def test_a_node_shows_its_role(authority: Authority) -> None:
    files = control_files(authority, authority.issue_node(4))
    made = control_tls(files, 4)
    assert made.server.verify_mode is made.client.verify_mode is ssl.CERT_REQUIRED
    reload_control_tls(made, files)
    for issued in (authority.issue("alice"), authority.issue_operator()):
        with pytest.raises(StartFailed, match="it lacks the alternative name node-4"):
            control_tls(control_files(authority, issued), 4)
    with pytest.raises(StartFailed, match="it lacks the alternative name node-5"):
        control_tls(files, 5)


def test_unusable_control_files_are_refused_by_name(authority: Authority, tmp_path: Path) -> None:
    files = control_files(authority, authority.issue_node(4))
    stranger = make_ca(tmp_path)
    for changed, reason in (
        ({"ca": "none.pem"}, r"control\.tls\.ca\.file=none\.pem: No such file"),
        ({"ca": files.key}, r"control\.tls\.ca\.file=.*: no certificate in PEM"),
        ({"key": "none.key"}, r"control\.tls\.key\.file=none\.key: No such file"),
        ({"key": files.certificate}, r"control\.tls\.key\.file=.*: it has no private keys"),
        ({"ca": str(stranger.certificate)}, r"control\.tls\.certificate\.file=.* nodes refuse it"),
    ):
        with pytest.raises(StartFailed, match=reason):
            control_tls(files._replace(**changed), 4)


def test_no_secret_is_in_the_text_of_an_identity(stores: SimpleNamespace) -> None:
    given = listeners(pem(stores.both)).by_name["X"].tls
    assert given is not None
    identity = tls._identity(replace(given, key_password="secret-word"))
    assert "PRIVATE" not in repr(identity) + repr(given)
    assert "secret-word" not in repr(identity)
    logging.getLogger(__name__).debug("%s", identity)
