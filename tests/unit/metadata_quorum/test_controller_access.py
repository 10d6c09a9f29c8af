"""ACLs, client quotas and credentials: the controller stores, refuses and deletes them."""

import base64
import hashlib
import hmac
from dataclasses import asdict, replace
from typing import Any

import pytest

from quorumlog.metadata_quorum.cluster_changes import (
    AlterClientQuotas,
    AlterScramCredentials,
    ClusterChange,
    CreateAcls,
    DeleteAcls,
    QuotaAlteration,
    ScramAlteration,
)
from quorumlog.metadata_quorum.controller import access as access_decisions
from quorumlog.metadata_quorum.image.access import AccessReplay
from quorumlog.metadata_quorum.image.acls import AclFilter, acl_problem, filter_problem, matching
from quorumlog.metadata_quorum.image.records import (
    AclBinding,
    QuotaEntity,
    RemoveAccessControlEntry,
)
from quorumlog.metadata_quorum.image.scram import ScramCredential, ScramMechanism, credential_of
from quorumlog.wire.codec.identifiers import Offset
from tests.support.metadata_quorum.controllers import Bench, image_of

ANN: QuotaEntity = (("user", "ann"),)
ACL = AclBinding(
    resource_type=2,
    resource_name="orders",
    pattern_type=3,
    principal="User:ann",
    host="*",
    operation=3,
    permission_type=3,
)
ALL = AclFilter(
    resource_type=1,
    resource_name=None,
    pattern_type=1,
    principal=None,
    host=None,
    operation=1,
    permission_type=1,
)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def ask(bench: Bench, change: ClusterChange) -> list[str]:
    """Return the code and the message of each outcome, after a look at copies of the image."""
    before = image_of(bench.controller.cluster).access
    outcomes = bench.ask(change)
    after = image_of(bench.controller.cluster).access
    assert (outcomes.end_offset >= 0) is (after != before)
    assert image_of(bench.replay()).access == after
    assert bench.restored().access == after
    assert bench.take_over().cluster.access.freeze() == after
    return [f"{one.error_code.name} {one.error_message or ''}".strip() for one in outcomes.results]


def create(bench: Bench, *acls: AclBinding) -> list[str]:
    return ask(bench, CreateAcls(acls=acls))


def alter(bench: Bench, entity: Any, **values: float | None) -> str:
    one = QuotaAlteration(entity=entity, values=values)
    [outcome] = ask(bench, AlterClientQuotas(alterations=(one,)))
    return outcome


def test_an_acl_is_stored_once(bench: Bench) -> None:
    other = replace(ACL, permission_type=2)
    request = CreateAcls(acls=(ACL, other, ACL))
    decision = bench.controller.decide(request, now_ms=0, base_offset=Offset(0))
    assert decision.remark is None, "a broker without an authorizer logs that it ignores ACLs"
    assert create(bench, ACL, other, ACL) == ["NONE"] * 3
    assert bench.controller.cluster.access.acls == {ACL, other}
    assert create(bench, ACL) == ["NONE"]
    assert len(bench.log) == 3  # the first one is the level that has ACLs


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"resource_type": 0}, "Invalid resource type 0"),
        ({"resource_type": 1}, "Invalid resource type 1"),
        ({"resource_type": 8}, "Invalid resource type 8"),
        ({"pattern_type": 1}, "Invalid pattern type 1"),
        ({"pattern_type": 2}, "Invalid pattern type 2"),
        ({"operation": 1}, "Invalid operation 1"),
        ({"operation": 99}, "Invalid operation 99"),
        ({"permission_type": 1}, "Invalid permission type 1"),
        ({"resource_name": ""}, "should not be empty"),
        ({"resource_type": 4}, "The only valid name for the CLUSTER resource is kafka-cluster"),
        ({"principal": "ann"}, "no colon is present"),
    ],
)
def test_what_no_acl_can_be_is_refused_alone(
    bench: Bench, wrong: dict[str, Any], message: str
) -> None:
    refused, done = create(bench, replace(ACL, **wrong), ACL)
    assert refused.startswith("INVALID_REQUEST ")
    assert message in refused
    assert done == "NONE"
    assert bench.controller.cluster.access.acls == {ACL}


def test_every_kind_of_acl_can_be() -> None:
    for operation in range(2, 16):
        assert acl_problem(replace(ACL, operation=operation)) is None
    for permission_type, pattern_type in ((2, 3), (3, 4)):
        kind = replace(ACL, permission_type=permission_type, pattern_type=pattern_type)
        assert acl_problem(kind) is None
    assert acl_problem(replace(ACL, resource_type=4, resource_name="kafka-cluster")) is None


PREFIX = replace(ACL, resource_name="ord", pattern_type=4)
EACH = replace(ACL, resource_name="*")
GROUP = replace(ACL, resource_type=3, host="h", operation=2, permission_type=2)
EVERY = (ACL, PREFIX, EACH, GROUP, replace(ACL, principal="User:bob"))


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, EVERY),
        ({"resource_type": 3}, (GROUP,)),
        ({"pattern_type": 4}, (PREFIX,)),
        ({"pattern_type": 3, "resource_name": "*"}, (EACH,)),
        ({"resource_name": "orders", "principal": "User:ann", "resource_type": 2}, (ACL,)),
        ({"pattern_type": 2, "resource_name": "orders", "resource_type": 2}, EVERY[:3] + EVERY[4:]),
        ({"pattern_type": 2, "resource_name": "orde", "resource_type": 2}, (PREFIX, EACH)),
        ({"pattern_type": 2}, EVERY),
        ({**asdict(ACL), "pattern_type": 2}, (ACL, PREFIX, EACH)),  # it names every field
        ({"principal": "User:bob"}, EVERY[4:]),
        ({"host": "h"}, (GROUP,)),
        ({"operation": 2}, (GROUP,)),
        ({"permission_type": 2}, (GROUP,)),
        ({"resource_name": "none"}, ()),
    ],
)
def test_a_filter_means_these(
    bench: Bench, wanted: dict[str, Any], found: tuple[AclBinding, ...]
) -> None:
    one = replace(ALL, **wanted)
    assert filter_problem(one) is None
    assert matching(EVERY, one) == sorted(found)
    create(bench, *EVERY)
    first, second = bench.ask(DeleteAcls(filters=(one, ALL))).results
    assert (first.acls, second.acls) == (tuple(sorted(found)), tuple(sorted(EVERY)))
    assert bench.controller.cluster.access.acls == set()
    assert sum(isinstance(record, RemoveAccessControlEntry) for record in bench.log) == len(EVERY)


def test_a_filter_of_unknown_codes_is_refused_and_one_that_means_nothing_is_not(
    bench: Bench,
) -> None:
    create(bench, ACL)
    for name in ("resource_type", "pattern_type", "operation", "permission_type"):
        unknown: dict[str, Any] = {name: 0}
        [outcome] = ask(bench, DeleteAcls(filters=(replace(ALL, **unknown),)))
        assert outcome.startswith("INVALID_REQUEST")
    assert ask(bench, DeleteAcls(filters=(replace(ALL, host="none"),))) == ["NONE"]
    assert bench.controller.cluster.access.acls == {ACL}


def test_many_wide_filters_are_refused_whole_and_exact_ones_are_not(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each compares all ACLs, on the event loop of the controller."""
    monkeypatch.setattr(access_decisions, "COMPARISONS_MAX", 3)
    create(bench, ACL, PREFIX)
    wide = replace(ALL, host="none")
    outcomes = ask(bench, DeleteAcls(filters=(wide, ALL)))
    assert [one.split()[0] for one in outcomes] == ["POLICY_VIOLATION"] * 2
    assert bench.controller.cluster.access.acls == {ACL, PREFIX}
    exact = AclFilter(**asdict(ACL))
    other = replace(exact, host="none")
    assert ask(bench, DeleteAcls(filters=(exact, other, other))) == ["NONE"] * 3
    assert bench.controller.cluster.access.acls == {PREFIX}
    assert ask(bench, DeleteAcls(filters=(ALL,))) == ["NONE"]
    assert bench.controller.cluster.access.acls == set()


def test_a_cluster_and_a_request_have_room_for_so_many(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_decisions, "ACLS_MAX", 2)
    monkeypatch.setattr(access_decisions, "ENTITIES_MAX", 1)
    *done, refused = create(bench, ACL, PREFIX, ACL, EACH)
    assert done == ["NONE"] * 3
    assert refused.startswith("POLICY_VIOLATION")
    assert alter(bench, ANN, request_percentage=5.5) == "NONE"
    entity = (("ip", None),)
    assert alter(bench, entity, connection_creation_rate=5.0).startswith("POLICY_VIOLATION")
    monkeypatch.setattr(access_decisions, "RECORDS_PER_REQUEST_MAX", 1)
    two = alter(bench, ANN, producer_byte_rate=5.0, consumer_byte_rate=5.0)
    assert two.startswith("POLICY_VIOLATION")
    assert alter(bench, ANN, producer_byte_rate=5.0) == "NONE"


def test_quotas_are_set_replaced_and_removed(bench: Bench) -> None:
    quotas = bench.controller.cluster.access.quotas
    alter(bench, (("user", "ann"), ("client-id", None)), producer_byte_rate=5.0)
    alter(bench, (("client-id", None), ("user", "ann")), consumer_byte_rate=7.0)
    entity = (("client-id", None), ("user", "ann"))
    assert quotas == {entity: {"producer_byte_rate": 5.0, "consumer_byte_rate": 7.0}}
    with bench.unwritten():  # it is so already
        alter(bench, entity, producer_byte_rate=5.0, request_percentage=None)
    alter(bench, entity, producer_byte_rate=None, consumer_byte_rate=8.0)
    assert quotas == {entity: {"consumer_byte_rate": 8.0}}
    alter(bench, entity, consumer_byte_rate=None)
    assert quotas == {}


@pytest.mark.parametrize(
    ("entity", "values", "message"),
    [
        ((), {}, "Invalid empty client quota entity"),
        ((("host", "h"),), {}, "Unhandled client quota entity type: host"),
        ((("user", "a"), ("user", "b")), {}, "names a type twice"),
        ((("ip", "1.2.3.4"), ("user", "a")), {}, "Invalid quota entity combination: ip, user"),
        ((("user", ""),), {}, "Empty user not supported"),
        ((("ip", "nowhere"),), {}, "nowhere is not a valid IP"),
        (ANN, {"connection_creation_rate": 1.0}, "Invalid configuration key"),
        (ANN, {"speed": None}, "Invalid configuration key speed"),
        ((("ip", "::1"),), {"producer_byte_rate": 1.0}, "Invalid configuration key"),
        ((("ip", "::1"),), {"connection_creation_rate": 2.0**31}, "at most 2147483647"),
        (ANN, {"producer_byte_rate": 0.0}, "must be greater than 0"),
        (ANN, {"producer_byte_rate": float("nan")}, "must be greater than 0"),
        (ANN, {"request_percentage": float("inf")}, "must be greater than 0"),
        (ANN, {"producer_byte_rate": 1.5}, "must be a whole number"),
    ],
)
def test_what_no_quota_can_be_is_refused(
    bench: Bench, entity: Any, values: dict[str, float | None], message: str
) -> None:
    refused = alter(bench, entity, **values)
    assert refused.startswith("INVALID_REQUEST ")
    assert message in refused
    assert bench.log == []


def test_an_entity_twice_is_refused_and_a_dry_run_writes_nothing(bench: Bench) -> None:
    twice = QuotaAlteration(entity=ANN, values={"request_percentage": 5.0})
    bob = replace(twice, entity=(("user", "bob"),))
    first, second, third = ask(bench, AlterClientQuotas(alterations=(twice, bob, twice)))
    assert (first, second) == (third, "NONE")
    assert first.startswith("INVALID_REQUEST")
    assert [*bench.controller.cluster.access.quotas] == [(("user", "bob"),)]
    assert ask(bench, AlterClientQuotas(alterations=(twice,), validate_only=True)) == ["NONE"]
    assert ANN not in bench.controller.cluster.access.quotas


def test_a_frozen_image_does_not_change_behind_its_reader(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_frozen() -> bool:
        create(bench, ACL)
        image = image_of(bench.controller.cluster).access
        create(bench, PREFIX)
        is_new = image_of(bench.controller.cluster).access != image
        ask_quietly = bench.ask(DeleteAcls(filters=(ALL,)))
        assert ask_quietly.results
        return is_new and image.acls == {ACL}

    assert is_frozen()
    # The planted bug: an image that was published is published again although it has changed.
    freeze = AccessReplay.freeze
    kept: dict[int, Any] = {}

    def first(self: AccessReplay) -> Any:
        return kept.setdefault(id(self), freeze(self))

    monkeypatch.setattr(AccessReplay, "freeze", first)
    bench = Bench()
    with pytest.raises(AssertionError):
        is_frozen()


# --- credentials of SCRAM ---


def credential(iterations: int = 4096, password: bytes = b"p") -> ScramCredential:
    return credential_of(1, iterations=iterations, salt=b"salt", salted_password=password)


def change(
    user: str, value: ScramCredential | None, mechanism: int = ScramMechanism.SHA_256
) -> ScramAlteration:
    return ScramAlteration(user=user, mechanism=mechanism, credential=value)


def alter_users(bench: Bench, *alterations: ScramAlteration) -> list[str]:
    return ask(bench, AlterScramCredentials(alterations=alterations))


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
    assert repr(other) == "ScramCredential(iterations=4096)"  # nothing secret
    assert alter_users(bench, change("ann", credential()), change("ann", other, 2)) == [
        "NONE",
        "NONE",
    ]
    assert kept == {("ann", 1): credential(), ("ann", 2): other}
    assert alter_users(bench, change("ann", other)) == ["NONE"]
    assert alter_users(bench, change("ann", None, 2), change("bob", other)) == ["NONE", "NONE"]
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
    assert alter_users(bench, wrong, change("bob", credential(16384))) == [answer, "NONE"]
    assert [*bench.controller.cluster.access.credentials] == [("bob", 1)]


def test_a_user_of_whom_one_alteration_is_refused_stays_as_it_is(bench: Bench) -> None:
    twice = change("ann", credential())
    assert alter_users(bench, twice, twice)[0].startswith("DUPLICATE_RESOURCE")
    few = change("ann", credential(1), 2)
    assert alter_users(bench, twice, few) == ["UNACCEPTABLE_CREDENTIAL Too few iterations"] * 2
    assert bench.controller.cluster.access.credentials == {}


def test_a_cluster_has_room_for_so_many_credentials(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_decisions, "CREDENTIALS_MAX", 1)
    answers = alter_users(bench, change("ann", credential()), change("bob", credential()))
    assert answers == ["NONE", "POLICY_VIOLATION A cluster holds at most 1 credentials"]
    assert alter_users(bench, change("ann", credential(5000))) == ["NONE"]
