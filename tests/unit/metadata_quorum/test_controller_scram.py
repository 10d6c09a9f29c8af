"""Credentials of SCRAM: what the controller stores, and what it refuses."""

import base64
import hashlib
import hmac

import pytest

from quorumlog.metadata_quorum.cluster_changes import AlterScramCredentials, ScramAlteration
from quorumlog.metadata_quorum.controller import scram
from quorumlog.metadata_quorum.image.scram import ScramCredential, ScramMechanism, credential_of
from quorumlog.metadata_quorum.image.snapshot_records import image_of as rebuilt
from quorumlog.metadata_quorum.image.snapshot_records import records_of
from quorumlog.wire.codec.identifiers import Offset
from tests.support.metadata_quorum.controllers import Bench, image_of


@pytest.fixture
def bench() -> Bench:
    return Bench()


def credential(iterations: int = 4096, password: bytes = b"p") -> ScramCredential:
    return credential_of(1, iterations=iterations, salt=b"salt", salted_password=password)


def change(
    user: str, value: ScramCredential | None, mechanism: int = ScramMechanism.SHA_256
) -> ScramAlteration:
    return ScramAlteration(user=user, mechanism=mechanism, credential=value)


def alter(bench: Bench, *alterations: ScramAlteration) -> list[str]:
    before = image_of(bench.controller.cluster).access
    outcomes = bench.ask(AlterScramCredentials(alterations=alterations))
    after = image_of(bench.controller.cluster)
    assert (outcomes.end_offset >= 0) is (after.access != before)
    assert image_of(bench.replay()).access == after.access
    assert rebuilt(records_of(after), Offset(0)).access == after.access
    return [f"{one.error_code.name} {one.error_message or ''}".strip() for one in outcomes.results]


def test_the_keys_are_those_of_rfc_7677() -> None:
    """Its example: user "user", password "pencil"."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 4096)
    kept = credential_of(1, iterations=4096, salt=salt, salted_password=salted)
    message = (
        b"n=user,r=rOprNGfwEbeRWgbNEkqO,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,"
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    signature = hmac.digest(kept.server_key, message, "sha256")
    assert base64.b64encode(signature) == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    proof = base64.b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    mask = hmac.digest(kept.stored_key, message, "sha256")
    client_key = bytes(a ^ b for a, b in zip(proof, mask, strict=True))
    assert hashlib.sha256(client_key).digest() == kept.stored_key


def test_credentials_are_set_replaced_and_taken_away(bench: Bench) -> None:
    kept = bench.controller.cluster.access.credentials
    other = credential(password=b"q")
    assert alter(bench, change("ann", credential()), change("ann", other, 2)) == ["NONE", "NONE"]
    assert kept == {("ann", 1): credential(), ("ann", 2): other}
    assert alter(bench, change("ann", other)) == ["NONE"]
    assert alter(bench, change("ann", None, 2), change("bob", other)) == ["NONE", "NONE"]
    assert kept == {("ann", 1): other, ("bob", 1): other}


@pytest.mark.parametrize(
    ("wrong", "answer"),
    [
        (change("", credential()), "UNACCEPTABLE_CREDENTIAL Username must not be empty"),
        (change("ann", credential(), 0), "UNSUPPORTED_SASL_MECHANISM Unknown SCRAM mechanism"),
        (change("ann", credential(4095)), "UNACCEPTABLE_CREDENTIAL Too few iterations"),
        (change("ann", credential(16385)), "UNACCEPTABLE_CREDENTIAL Too many iterations"),
        (
            change("ann", None),
            "RESOURCE_NOT_FOUND Attempt to delete a user credential that does not exist",
        ),
    ],
)
def test_what_cannot_be_is_refused_beside_what_can(
    bench: Bench, wrong: ScramAlteration, answer: str
) -> None:
    assert alter(bench, wrong, change("bob", credential(16384))) == [answer, "NONE"]
    assert [*bench.controller.cluster.access.credentials] == [("bob", 1)]


def test_a_user_of_whom_one_alteration_is_refused_stays_as_it_is(bench: Bench) -> None:
    twice = change("ann", credential())
    assert alter(bench, twice, twice)[0].startswith("DUPLICATE_RESOURCE")
    few = change("ann", credential(1), 2)
    assert alter(bench, twice, few) == ["UNACCEPTABLE_CREDENTIAL Too few iterations"] * 2
    assert bench.controller.cluster.access.credentials == {}


def test_a_cluster_has_room_for_so_many(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scram, "CREDENTIALS_MAX", 1)
    answers = alter(bench, change("ann", credential()), change("bob", credential()))
    assert answers == ["NONE", "POLICY_VIOLATION A cluster holds at most 1 credentials"]
    assert alter(bench, change("ann", credential(5000))) == ["NONE"]


def test_nothing_secret_is_in_the_text_of_a_credential() -> None:
    assert repr(credential()) == "ScramCredential(iterations=4096)"
