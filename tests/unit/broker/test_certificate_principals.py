"""Principals of certificates: distinguished names as Java writes them, and KIP-371's rules."""

import datetime
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumlog.broker.authentication.certificate_principals import CertificatePrincipals
from quorumlog.broker.authentication.core.distinguished_names import subject_name
from quorumlog.settings.kinds import BadValue
from quorumlog.settings.tls import read_rules

_KEY = ec.generate_private_key(ec.SECP256R1())
_ATTRIBUTES = {
    "CN": NameOID.COMMON_NAME,
    "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "O": NameOID.ORGANIZATION_NAME,
    "L": NameOID.LOCALITY_NAME,
    "ST": NameOID.STATE_OR_PROVINCE_NAME,
    "STREET": NameOID.STREET_ADDRESS,
    "UID": NameOID.USER_ID,
    "DC": NameOID.DOMAIN_COMPONENT,
}


def _certificate(name: x509.Name) -> bytes:
    now = datetime.datetime(2026, 1, 1)  # noqa: DTZ001 - as the builder takes it
    builder = x509.CertificateBuilder(
        issuer_name=x509.Name([]),
        subject_name=name,
        public_key=_KEY.public_key(),
        serial_number=2**150,
        not_valid_before=now,
        not_valid_after=now + datetime.timedelta(days=1),
    )
    return builder.sign(_KEY, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def _name(*parts: tuple[str, str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(_ATTRIBUTES[key], text) for key, text in parts])


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([("O", "Org"), ("OU", "clients"), ("CN", "alice")], "CN=alice,OU=clients,O=Org"),
        ([("CN", "Tkac, Adam")], r"CN=Tkac\, Adam"),
        ([("CN", 'a"b\\c+d<e>f;g=h#i')], r"CN=a\"b\\c\+d\<e\>f\;g\=h\#i"),
        ([("CN", "  two ")], r"CN=\ \ two\ "),
        ([("CN", "Jürgen 北京 🙂")], "CN=Jürgen 北京 🙂"),
        ([("DC", "com"), ("DC", "example"), ("UID", "u1")], "UID=u1,DC=example,DC=com"),
        ([("ST", "MD"), ("STREET", "1 Main"), ("L", "Fulton")], "L=Fulton,STREET=1 Main,ST=MD"),
    ],
)
def test_names_are_written_as_java_writes_them(parts: list[tuple[str, str]], expected: str) -> None:
    assert subject_name(_certificate(_name(*parts))) == expected


def test_other_attributes_are_hexadecimal() -> None:
    """Java writes e-mail addresses as their identifier, and as the value in DER: an IA5String."""
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, "alice"),
            x509.NameAttribute(NameOID.EMAIL_ADDRESS, "a@b.c"),
        ]
    )
    assert subject_name(_certificate(name)) == "1.2.840.113549.1.9.1=#160561406" + "22e63,CN=alice"


def test_several_attributes_of_one_part_are_joined() -> None:
    both = x509.RelativeDistinguishedName(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, "alice"),
            x509.NameAttribute(NameOID.USER_ID, "u1"),
        ]
    )
    text = subject_name(_certificate(x509.Name([both])))
    assert set(text.split("+")) == {"CN=alice", "UID=u1"}


@pytest.mark.parametrize("kind", [_ASN1Type.BMPString, _ASN1Type.PrintableString])
def test_each_type_of_string_is_decoded(kind: Any) -> None:
    attribute = x509.NameAttribute(NameOID.COMMON_NAME, "alice", kind)
    assert subject_name(_certificate(x509.Name([attribute]))) == "CN=alice"


def test_a_certificate_without_a_subject_has_an_empty_name() -> None:
    assert subject_name(_certificate(x509.Name([]))) == ""


@given(
    parts=st.lists(
        st.tuples(
            st.sampled_from(["CN", "OU", "O", "L"]),
            st.text("abcXYZ019 äß北.-@_/", min_size=1, max_size=20).filter(
                lambda text: text == text.strip()
            ),
        ),
        max_size=6,
    )
)
@settings(deadline=None, max_examples=50)
def test_usual_names_are_as_a_library_writes_them(parts: list[tuple[str, str]]) -> None:
    name = _name(*parts)
    assert subject_name(_certificate(name)) == name.rfc4514_string()


_WHOLE = _certificate(_name(("O", "Org"), ("CN", "alice")))


@given(data=st.data())
@settings(deadline=None)
def test_damaged_certificates_raise_value_errors_alone(data: st.DataObject) -> None:
    content = bytearray(_WHOLE)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    for damaged in (bytes(content), bytes(content[:cut])):
        try:
            subject_name(damaged)
        except ValueError:
            continue


_USERS = "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L"
_ALL = ", ".join(
    [
        _USERS,
        "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
        "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U",
        "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U",
        "DEFAULT",
    ]
)


@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        ("DEFAULT", "CN=Duke,O=Org", "CN=Duke,O=Org"),
        (_ALL, "CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        (_ALL, "CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        (_ALL, "cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        (_ALL, "cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        (_ALL, "OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
        (_USERS, "CN=Duke,OU=Others", None),
        ("", "CN=Duke", None),
        (r"RULE:^CN=((\\, *|\w)+)(,.*|$)/$1/,DEFAULT", r"CN=Tkac\, Adam,OU=ITZ", r"Tkac\, Adam"),
        ("RULE:CN=(.*)/$1@$4/", "CN=a", "a@$4"),  # no such group: text
        ("RULE:CN=(.*)/$12/", "CN=a", "a2"),  # the longest number that is a group's
        ("RULE:CN=a/$1/", "CN=a", "$1"),
        ("RULE:CN=(.*)/$0/", "CN=a", "CN=a"),
        (r"RULE:CN=(.*)/\$1\/$1/", "CN=a", "$1/a"),
        ("RULE:(x)?CN=(.*)/<$1>$2/", "CN=a", "<>a"),
        ("RULE:.*/a/", "CN=x", "aa"),  # as Java's replaceAll: all, and the empty end
        ("RULE:CN=(.)/$1/", "CN=ab", None),  # a part alone does not match
        (r"RULE:CN=(.*)\/(.*)/$2/", "CN=a/b", "b"),
        ("RULE:CN=(.*)/$1/U", "CN=jürgen", "JÜRGEN"),
    ],
)
def test_rules_map_names(rules: str, name: str, expected: str | None) -> None:
    assert CertificatePrincipals(read_rules(rules)).name_of(name) == expected


def test_the_principal_of_a_certificate_has_its_type() -> None:
    certificate = _certificate(_name(("O", "Org"), ("CN", "alice")))
    principals = CertificatePrincipals(read_rules("RULE:^CN=(.*?),.*$/$1/"))
    assert principals.principal_of(certificate) == "User:alice"


@pytest.mark.parametrize("pattern", ["(", "(?=x)", r"(a)\1"])
def test_a_pattern_that_re2_refuses_is_named(pattern: str) -> None:
    with pytest.raises(BadValue, match=r"ssl\.principal\.mapping\.rules: the pattern"):
        CertificatePrincipals(read_rules(f"RULE:{pattern}/x/"))


def test_a_name_that_would_take_years_to_match_takes_no_time() -> None:
    principals = CertificatePrincipals(read_rules("RULE:(a*)*b/$1/"))
    assert principals.name_of("a" * 5000) is None
