"""The client's SASL mechanisms: vectors of the RFCs, scramp as the server, brokers that cheat."""

import base64
import re
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scramp import ScramClient as OtherClient
from scramp import ScramMechanism

from quorumlog.wire.codec import sasl
from quorumlog.wire.codec.sasl import OAuthBearerClient, PlainClient, SaslFailure, ScramClient

NONCE = "rOprNGfwEbeRWgbNEkqO"
FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
PROOF = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SIGNATURE = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
SCRAM = sorted(sasl.SCRAM_HASHES)
PREPARED = st.sampled_from("ab,=\"' äß語")  # SASLprep, which that library applies, changes none
FEW = settings(max_examples=25, deadline=None)  # each makes 8,192 rounds of a hash


def client(nonce: str = NONCE) -> ScramClient:
    return ScramClient("SCRAM-SHA-256", "user", "pencil", nonce)


def test_the_exchange_of_rfc_7677() -> None:
    ours = client()
    assert ours.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert ours.answer(FIRST) == PROOF
    assert ours.answer(SIGNATURE) is None


def test_extensions_of_the_broker_are_ignored() -> None:
    ours = client()
    assert ours.answer(FIRST + b",t=x,u=y z") is not None
    assert client().answer(FIRST) == PROOF


@FEW
@given(
    st.sampled_from(SCRAM),
    st.text(PREPARED, min_size=1, max_size=20),
    st.text(PREPARED, min_size=1, max_size=20),
)
def test_the_server_of_another_library_accepts(mechanism: str, user: str, password: str) -> None:
    other = ScramMechanism(mechanism)
    seen = []

    def credentials(name: str) -> object:
        seen.append(name)
        return other.make_auth_info(password, iteration_count=4096)

    server = other.make_server(credentials)
    ours = ScramClient(mechanism, user, password, NONCE)
    server.set_client_first(ours.first().decode())
    proof = ours.answer(server.get_server_first().encode())
    assert proof is not None
    server.set_client_final(proof.decode())
    assert ours.answer(server.get_server_final().encode()) is None
    assert seen == [user]


@pytest.mark.parametrize("mechanism", SCRAM)
def test_the_client_of_another_library_sends_the_same_proof(mechanism: str) -> None:
    other = OtherClient([mechanism], "user", "pencil", c_nonce=NONCE)
    ours = ScramClient(mechanism, "user", "pencil", NONCE)
    assert other.get_client_first().encode() == ours.first()
    other.set_server_first(FIRST.decode())
    assert ours.answer(FIRST) == other.get_client_final().encode()


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (FIRST.replace(b"rOpr", b"rOps"), "does not continue"),
        (b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "does not continue"),
        (FIRST.replace(b"i=4096", b"i=4095"), "4095 SCRAM iterations"),
        (FIRST.replace(b"i=4096", b"i=999999999"), "999999999 SCRAM iterations"),
        (FIRST.replace(b"i=4096", b"i=99999999999"), "malformed"),
        (b"m=x," + FIRST, "malformed"),
        (FIRST.replace(b"s=W22Z", b"s=W2Z"), "base64"),
        (FIRST.replace(b",s=", b"\0,s="), "malformed"),
        (FIRST.replace(b"r=rOpr", b"r=rOpr\xff"), "malformed"),
        (b"", "malformed"),
        (SIGNATURE, "malformed"),
    ],
)
def test_no_proof_goes_to_a_broker_that_cheats(first: bytes, why: str) -> None:
    with pytest.raises(SaslFailure, match=why):
        client().answer(first)


@pytest.mark.parametrize(
    ("final", "why"),
    [
        (SIGNATURE.replace(b"v=6", b"v=7"), "signature is wrong"),
        (b"v=" + base64.b64encode(b""), "malformed"),
        (b"v=" + base64.b64encode(b"short"), "signature is wrong"),
        (b"v=6rriTRBi23WpRQ==", "signature is wrong"),
        (b"v=6rriTRBi23WpR", "base64"),
        (SIGNATURE.replace(b"4=", b"5="), "base64"),  # the same bytes: only unused bits differ
        (b"e=invalid-proof", "the broker refused: invalid-proof"),
        (b"", "malformed"),
        (FIRST, "malformed"),
    ],
)
def test_a_broker_that_does_not_prove_its_keys_is_refused(final: bytes, why: str) -> None:
    ours = client()
    ours.answer(FIRST)
    with pytest.raises(SaslFailure, match=why):
        ours.answer(final)


@given(st.binary(max_size=200))
def test_any_bytes_of_a_broker_are_refused_or_answered(challenge: bytes) -> None:
    for one in (client(), OAuthBearerClient("t", {}), PlainClient("u", "p")):
        with suppress(SaslFailure):
            assert len(one.answer(challenge) or b"") <= 2 * len(challenge) + 200


@given(st.data())
def test_a_changed_message_of_the_broker_never_completes(data: st.DataObject) -> None:
    """One byte of either message is another: the exchange must end with a failure."""
    first, final = bytearray(FIRST), bytearray(SIGNATURE)
    message = data.draw(st.sampled_from([first, final]))
    at = data.draw(st.integers(0, len(message) - 1))
    message[at] ^= data.draw(st.integers(1, 255))
    changes_iterations = message is first and at >= len(FIRST) - len("4096")
    ours = client()
    if changes_iterations and re.fullmatch(rb"[0-9]{4}", message[-4:]):
        return  # at most 9999: another salted password, tested with each wrong signature
    with pytest.raises(SaslFailure):
        _ = [ours.answer(bytes(one)) for one in (first, final)]


@pytest.mark.parametrize("pair", [("", "p"), ("u", ""), ("u\0", "p"), ("u", "p\0q")])
def test_plain_refuses_values_that_it_cannot_send(pair: tuple[str, str]) -> None:
    with pytest.raises(SaslFailure, match="PLAIN"):
        PlainClient(*pair)


def test_plain_sends_one_token() -> None:
    ours = PlainClient("tim", "tanstaaftanstaaf")  # RFC 4616, section 4
    assert ours.first() == b"\0tim\0tanstaaftanstaaf"
    assert PlainClient("ü", "ß").first() == "\0ü\0ß".encode()
    ours.answer(b"")


def test_oauthbearer_sends_token_and_extensions() -> None:
    ours = OAuthBearerClient("a.b-c~d/e+f==", {"trace": "1 2", "logicalCluster": "x"})
    assert ours.first() == (
        b"n,,\x01auth=Bearer a.b-c~d/e+f==\x01trace=1 2\x01logicalCluster=x\x01\x01"
    )
    assert OAuthBearerClient("t", {}).first() == b"n,,\x01auth=Bearer t\x01\x01"
    assert ours.answer(b"") is None
    assert ours.answer(b'{"status":"invalid_token"}') == b"\x01"


@pytest.mark.parametrize(
    ("token", "extensions"),
    [
        ("", {}),
        ("a b", {}),
        ("a\x01", {}),
        ("a", {"auth": "x"}),
        ("a", {"a1": "x"}),
        ("a", {"": "x"}),
        ("a", {"a": ""}),
        ("a", {"a": "x\x01"}),
        ("a", {"a": "ü"}),
    ],
)
def test_oauthbearer_refuses_other_values(token: str, extensions: dict[str, str]) -> None:
    with pytest.raises(SaslFailure, match="OAUTHBEARER"):
        OAuthBearerClient(token, extensions)


def test_a_name_is_escaped_and_a_password_is_not() -> None:
    ours = ScramClient("SCRAM-SHA-512", "a,b=c", "p,=", "n")
    assert ours.first() == b"n,,n=a=2Cb=3Dc,r=n"
    with pytest.raises(SaslFailure, match="empty"):
        ScramClient("SCRAM-SHA-512", "", "p", "n")
