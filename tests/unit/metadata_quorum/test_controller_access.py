"""ACLs and client quotas: what the controller stores, refuses and deletes."""

from dataclasses import asdict, replace
from typing import Any

import pytest

from quorumlog.metadata_quorum.cluster_changes import (
    AlterClientQuotas,
    ClusterChange,
    CreateAcls,
    DeleteAcls,
    QuotaAlteration,
)
from quorumlog.metadata_quorum.controller import acls as acl_decisions
from quorumlog.metadata_quorum.controller import quotas as quota_decisions
from quorumlog.metadata_quorum.image.access import AccessReplay
from quorumlog.metadata_quorum.image.acls import AclFilter, acl_problem, filter_problem, matching
from quorumlog.metadata_quorum.image.records import (
    AclBinding,
    QuotaEntity,
    RemoveAccessControlEntry,
)
from quorumlog.metadata_quorum.image.snapshot_records import image_of as rebuilt
from quorumlog.metadata_quorum.image.snapshot_records import records_of
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


def ask(bench: Bench, change: ClusterChange) -> list[tuple[str, str | None]]:
    before = image_of(bench.controller.cluster).access
    outcomes = bench.ask(change)
    after = image_of(bench.controller.cluster)
    assert (outcomes.end_offset >= 0) is (after.access != before)
    assert image_of(bench.replay()).access == after.access
    assert rebuilt(records_of(after), Offset(0)).access == after.access
    assert bench.take_over().cluster.access.freeze() == after.access
    return [(one.error_code.name, one.error_message) for one in outcomes.results]


def create(bench: Bench, *acls: AclBinding) -> list[tuple[str, str | None]]:
    return ask(bench, CreateAcls(acls=acls))


def alter(bench: Bench, entity: Any, **values: float | None) -> tuple[str, str | None]:
    one = QuotaAlteration(entity=entity, values=values)
    [outcome] = ask(bench, AlterClientQuotas(alterations=(one,)))
    return outcome


def test_an_acl_is_stored_once_and_is_told_to_the_operator(bench: Bench) -> None:
    other = replace(ACL, permission_type=2)
    request = CreateAcls(acls=(ACL, other, ACL))
    decision = bench.controller.decide(request, now_ms=0, base_offset=Offset(0))
    assert decision.remark == "stored and described, but not enforced: ACLs"
    assert create(bench, ACL, other, ACL) == [("NONE", None)] * 3
    assert bench.controller.cluster.access.acls == {ACL, other}
    assert create(bench, ACL) == [("NONE", None)]
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
    assert refused[0] == "INVALID_REQUEST"
    assert message in str(refused[1])
    assert done == ("NONE", None)
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
    outcomes = bench.ask(DeleteAcls(filters=(one, ALL)))
    assert [outcome.acls for outcome in outcomes.results] == [
        tuple(sorted(found)),
        tuple(sorted(EVERY)),
    ]
    assert bench.controller.cluster.access.acls == set()
    assert sum(isinstance(record, RemoveAccessControlEntry) for record in bench.log) == len(EVERY)


def test_a_filter_of_unknown_codes_is_refused_and_one_that_means_nothing_is_not(
    bench: Bench,
) -> None:
    create(bench, ACL)
    for name in ("resource_type", "pattern_type", "operation", "permission_type"):
        unknown: dict[str, Any] = {name: 0}
        wrong = replace(ALL, **unknown)
        [outcome] = ask(bench, DeleteAcls(filters=(wrong,)))
        assert outcome[0] == "INVALID_REQUEST"
    assert ask(bench, DeleteAcls(filters=(replace(ALL, host="none"),))) == [("NONE", None)]
    assert bench.controller.cluster.access.acls == {ACL}


def test_many_wide_filters_are_refused_whole_and_exact_ones_are_not(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each compares all ACLs, on the event loop of the controller."""
    monkeypatch.setattr(acl_decisions, "COMPARISONS_MAX", 3)
    create(bench, ACL, PREFIX)
    wide = replace(ALL, host="none")
    outcomes = ask(bench, DeleteAcls(filters=(wide, ALL)))
    assert [code for code, _ in outcomes] == ["POLICY_VIOLATION"] * 2
    assert bench.controller.cluster.access.acls == {ACL, PREFIX}
    exact = AclFilter(**asdict(ACL))
    other = replace(exact, host="none")
    assert ask(bench, DeleteAcls(filters=(exact, other, other))) == [("NONE", None)] * 3
    assert bench.controller.cluster.access.acls == {PREFIX}
    assert ask(bench, DeleteAcls(filters=(ALL,))) == [("NONE", None)]
    assert bench.controller.cluster.access.acls == set()


def test_a_request_changes_so_many_quotas(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_decisions, "RECORDS_PER_REQUEST_MAX", 1)
    outcome = alter(bench, ANN, producer_byte_rate=5.0, consumer_byte_rate=5.0)
    assert outcome[0] == "POLICY_VIOLATION"
    assert alter(bench, ANN, producer_byte_rate=5.0) == ("NONE", None)


def test_a_cluster_has_room_for_so_many(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_decisions, "ACLS_MAX", 2)
    monkeypatch.setattr(quota_decisions, "ENTITIES_MAX", 1)
    outcomes = create(bench, ACL, PREFIX, ACL, EACH)
    assert [code for code, _ in outcomes] == ["NONE", "NONE", "NONE", "POLICY_VIOLATION"]
    assert alter(bench, ANN, request_percentage=5.5) == ("NONE", None)
    assert alter(bench, (("ip", None),), connection_creation_rate=5.0)[0] == "POLICY_VIOLATION"
    assert alter(bench, ANN, producer_byte_rate=5.0) == ("NONE", None)


def test_quotas_are_set_replaced_and_removed(bench: Bench) -> None:
    quotas = bench.controller.cluster.access.quotas
    alter(bench, (("user", "ann"), ("client-id", None)), producer_byte_rate=5.0)
    alter(bench, (("client-id", None), ("user", "ann")), consumer_byte_rate=7.0)
    entity = (("client-id", None), ("user", "ann"))
    assert quotas == {entity: {"producer_byte_rate": 5.0, "consumer_byte_rate": 7.0}}
    written = len(bench.log)
    alter(bench, entity, producer_byte_rate=5.0, request_percentage=None)
    assert len(bench.log) == written  # it is so already
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
    code, said = alter(bench, entity, **values)
    assert code == "INVALID_REQUEST"
    assert message in str(said)
    assert bench.log == []


def test_an_entity_twice_is_refused_and_a_dry_run_writes_nothing(bench: Bench) -> None:
    twice = QuotaAlteration(entity=ANN, values={"request_percentage": 5.0})
    bob = QuotaAlteration(entity=(("user", "bob"),), values={"request_percentage": 5.0})
    request = AlterClientQuotas(alterations=(twice, bob, twice))
    outcomes = ask(bench, request)
    assert [code for code, _ in outcomes] == ["INVALID_REQUEST", "NONE", "INVALID_REQUEST"]
    assert [*bench.controller.cluster.access.quotas] == [(("user", "bob"),)]
    other = QuotaAlteration(entity=ANN, values={"request_percentage": 5.0})
    assert ask(bench, AlterClientQuotas(alterations=(other,), validate_only=True)) == [
        ("NONE", None)
    ]
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
