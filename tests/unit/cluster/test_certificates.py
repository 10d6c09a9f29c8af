"""Certificates of a cluster: their files, modes and names, read by OpenSSL and cryptography."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key, pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID

from quorumlog.cluster import certificates
from quorumlog.cluster.certificates import STORE_PASSWORD, make_ca
from quorumlog.cluster.errors import ClusterError, InvalidArgument


def _names(path: Path) -> set[str]:
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(one.value) for one in found}


def test_keys_are_pkcs8_and_readable_by_their_owner_alone(tmp_path: Path) -> None:
    authority = make_ca(tmp_path / "security")
    issued = authority.issue("alice", ["kafka.example"])
    for path in (issued.key, issued.keystore, authority.directory / "ca.key"):
        assert path.stat().st_mode & 0o777 == 0o600
    assert authority.directory.stat().st_mode & 0o777 == 0o700
    for key in (issued.key, authority.directory / "ca.key"):
        assert key.read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----")
        load_pem_private_key(key.read_bytes(), None)
    assert not list(authority.directory.glob("*.tmp"))


def test_a_certificate_has_the_hosts_and_its_name(tmp_path: Path) -> None:
    issued = make_ca(tmp_path).issue("alice", ["kafka.example", "10.0.0.7"])
    assert _names(issued.certificate) == {
        "localhost", "127.0.0.1", "::1", "kafka.example", "10.0.0.7",
    }  # fmt: skip
    certificate = x509.load_pem_x509_certificate(issued.certificate.read_bytes())
    assert certificate.subject.rfc4514_string() == "CN=alice,OU=local,O=quorumlog"
    uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH} <= set(uses)


def test_only_nodes_and_operators_have_a_role(tmp_path: Path) -> None:
    authority = make_ca(tmp_path)
    assert "node-3" in _names(authority.issue_node(3, ["kafka.example"]).certificate)
    assert "operator" in _names(authority.issue_operator().certificate)
    assert not {"node-3", "operator"} & _names(authority.issue("carol").certificate)
    for host in ("node-1", "operator"):
        with pytest.raises(InvalidArgument, match="role"):
            authority.issue("mallory", [host])


@pytest.mark.parametrize("name", ["", "ca", "truststore", "../x", "a/b", "a\0b", ".hidden"])
def test_a_name_that_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    authority = make_ca(tmp_path)
    with pytest.raises(InvalidArgument, match="file"):
        authority.issue(name)


@pytest.mark.parametrize("name", ["node-1", "operator"])
def test_a_user_does_not_replace_the_files_of_a_node(tmp_path: Path, name: str) -> None:
    authority = make_ca(tmp_path)
    with pytest.raises(InvalidArgument, match="role"):
        authority.issue(name)


def test_the_authority_is_found_again(tmp_path: Path) -> None:
    first = make_ca(tmp_path)
    text = first.certificate.read_text()
    again = make_ca(tmp_path)
    assert again.certificate.read_text() == text
    issued = again.issue("alice")
    context = ssl.create_default_context(cafile=str(first.certificate))
    context.load_cert_chain(issued.certificate, issued.key)


def test_damaged_files_of_an_authority_are_named(tmp_path: Path) -> None:
    make_ca(tmp_path)
    (tmp_path / "ca.key").write_text("nothing")
    with pytest.raises(ClusterError, match=r"ca\.key"):
        make_ca(tmp_path)


def test_the_stores_are_pkcs12(tmp_path: Path) -> None:
    authority = make_ca(tmp_path)
    issued = authority.issue("alice")
    key, leaf, chain = pkcs12.load_key_and_certificates(
        issued.keystore.read_bytes(), STORE_PASSWORD.encode()
    )
    ca = x509.load_pem_x509_certificate(authority.certificate.read_bytes())
    assert key is not None
    assert leaf == x509.load_pem_x509_certificate(issued.certificate.read_bytes())
    assert chain == [ca]
    trusted = pkcs12.load_pkcs12(authority.truststore.read_bytes(), STORE_PASSWORD.encode())
    assert [one.certificate for one in trusted.additional_certs] == [ca]


def test_validity_is_as_requested(tmp_path: Path) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    issued = make_ca(tmp_path).issue(
        "old", not_before=now - timedelta(days=2), not_after=now - timedelta(days=1)
    )
    certificate = x509.load_pem_x509_certificate(issued.certificate.read_bytes())
    assert certificate.not_valid_after_utc == now - timedelta(days=1)


def test_the_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "_PACKAGES", ("cryptography", "no_such_package_here"))
    with pytest.raises(ClusterError, match=r"no_such_package_here: pip install '.*\[security\]'"):
        make_ca(tmp_path)
