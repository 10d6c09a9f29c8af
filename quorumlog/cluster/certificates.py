"""Certificates of a local cluster: one authority, and the certificates that it issues.

    ca.pem, ca.key                 the authority
    truststore.p12                 its certificate, for Java
    <name>.pem, <name>.key         a certificate with its chain, and its private key (PKCS#8)
    <name>.p12                     both, for Java

Keys are readable by their owner alone; the password of the PKCS#12 files, STORE_PASSWORD, protects
nothing. Each certificate is valid for a server and for a client. Its common name is its `name`: the
principal of a client with the certificate `alice` is `User:CN=alice,OU=local,O=quorumlog`.

Nodes and operators have a role on the control listeners: an alternative name that no other
certificate has. docs/decisions/0062-tls.md
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from quorumlog.cluster.errors import ClusterError, InvalidArgument
from quorumlog.extras import why_no_packages
from quorumlog.settings.tls import OPERATOR, is_control_role, node_role

if TYPE_CHECKING:
    from trustme import CA

SECURITY_DIRECTORY: Final = "security"  # in the directory of a cluster
STORE_PASSWORD: Final = "changeit"  # noqa: S105 - Java demands one; the mode of the file protects
LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
_ORGANIZATION, _UNIT = "quorumlog", "local"
_CA: Final = "ca"
_PACKAGES: Final = ("cryptography", "trustme")


class Issued(NamedTuple):
    """The files of a certificate: with its chain, its key, and both as PKCS#12."""

    certificate: Path
    key: Path
    keystore: Path


@dataclass(frozen=True, slots=True)
class Authority:
    """The authority whose files are in `directory`; see `make_ca`."""

    directory: Path
    _ca: "CA"

    @property
    def certificate(self) -> Path:
        """The authority's certificate, as PEM."""
        return self.directory / f"{_CA}.pem"

    @property
    def truststore(self) -> Path:
        """The authority's certificate, as PKCS#12."""
        return self.directory / "truststore.p12"

    def issue(
        self,
        name: str,
        hosts: Sequence[str] = (),
        *,
        not_before: datetime | None = None,
        not_after: datetime | None = None,
    ) -> Issued:
        """Issue a certificate for these hosts and LOCAL_HOSTS; replace an earlier one.

        `hosts`: names or addresses. Raises InvalidArgument for a name that is no file's name, or
        for a name or host that is a role of control listeners.
        """
        for one in (name, *hosts):
            if is_control_role(one):
                raise InvalidArgument(f"certificate {name}: {one} is a role of control listeners")
        return self._issue(name, hosts, not_before=not_before, not_after=not_after)

    def issue_node(self, node_id: int, hosts: Sequence[str] = ()) -> Issued:
        """Issue the certificate of a node, `node-<id>`, valid on control listeners, too."""
        role = node_role(node_id)
        return self._issue(role, [*hosts, role])

    def issue_operator(self) -> Issued:
        """Issue the certificate `operator`: for status, metrics and waits, not for RPCs."""
        return self._issue(OPERATOR, [OPERATOR])

    def _issue(
        self,
        name: str,
        hosts: Sequence[str],
        *,
        not_before: datetime | None = None,
        not_after: datetime | None = None,
    ) -> Issued:
        from cryptography.hazmat.primitives import serialization as forms
        from cryptography.hazmat.primitives.serialization import pkcs12
        from cryptography.x509 import load_pem_x509_certificate
        from trustme import KeyType

        if not name or name in {_CA, "truststore"} or {"/", "\0"} & {*name} or name[0] == ".":
            raise InvalidArgument(f"certificate {name!r}: not usable as the name of a file")
        leaf = self._ca.issue_cert(
            *dict.fromkeys([*LOCAL_HOSTS, *hosts]),
            common_name=name,
            organization_name=_ORGANIZATION,
            organization_unit_name=_UNIT,
            not_before=not_before,
            not_after=not_after,
            key_type=KeyType.ECDSA,
        )
        key = forms.load_pem_private_key(leaf.private_key_pem.bytes(), None)
        chain = [load_pem_x509_certificate(one.bytes()) for one in leaf.cert_chain_pems]
        issued = Issued(*(self.directory / f"{name}.{end}" for end in ("pem", "key", "p12")))
        _write(issued.key, _key_bytes(key))
        _write(
            issued.keystore,
            pkcs12.serialize_key_and_certificates(
                name.encode(),
                key,  # type: ignore[arg-type]  # an EC key
                chain[0],
                [load_pem_x509_certificate(self._ca.cert_pem.bytes())],
                forms.BestAvailableEncryption(STORE_PASSWORD.encode()),
            ),
        )
        _write(issued.certificate, b"".join(one.bytes() for one in leaf.cert_chain_pems), 0o644)
        return issued


def make_ca(directory: Path) -> Authority:
    """Return the authority in a directory; it is made if there is none.

    Raises ClusterError: the extra `security` is not installed, or its files are not readable.
    """
    reason = why_no_packages("certificates need", _PACKAGES, "security")
    if reason:
        raise ClusterError(reason)
    from trustme import CA

    authority = directory / f"{_CA}.pem"
    key = directory / f"{_CA}.key"
    try:
        if authority.exists() and key.exists():
            return Authority(directory, CA.from_pem(authority.read_bytes(), key.read_bytes()))
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _made(Authority(directory, CA(organization_name=_ORGANIZATION)), key)
    except OSError as error:
        raise ClusterError(f"{error.filename}: {error.strerror}") from error
    except ValueError as error:
        raise ClusterError(f"{authority}, {key}: {error}; remove both to make new ones") from error


def _made(authority: Authority, key_file: Path) -> Authority:
    """Write the files of a new authority, `ca.pem` last: then all are there."""
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.serialization import pkcs12
    from cryptography.x509 import load_pem_x509_certificate

    ca = authority._ca  # noqa: SLF001 - its own maker
    _write(key_file, _key_bytes(forms.load_pem_private_key(ca.private_key_pem.bytes(), None)))
    entry = pkcs12.PKCS12Certificate(load_pem_x509_certificate(ca.cert_pem.bytes()), b"ca")
    encryption = forms.BestAvailableEncryption(STORE_PASSWORD.encode())
    # With Java's own attribute: without it, Java trusts no certificate of the file.
    _write(authority.truststore, pkcs12.serialize_java_truststore([entry], encryption), 0o644)
    _write(authority.certificate, ca.cert_pem.bytes(), 0o644)
    return authority


def _key_bytes(key: object) -> bytes:
    from cryptography.hazmat.primitives import serialization as forms

    text: bytes = key.private_bytes(  # type: ignore[attr-defined]  # any private key
        forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption()
    )
    return text


def _write(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace a file: a node that reads it again never reads a part of it."""
    unfinished = path.with_name(f"{path.name}.tmp")
    unfinished.unlink(missing_ok=True)
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    unfinished.replace(path)
