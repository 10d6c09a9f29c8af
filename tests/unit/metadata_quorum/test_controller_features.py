"""Feature levels: who may change them, and what waits for them."""

from dataclasses import replace
from typing import Any, cast

import pytest

from quorumlog.metadata_quorum.cluster_changes import (
    CreateAcls,
    DeleteAcls,
    FeatureUpdate,
    Outcomes,
    UpdateFeatures,
)
from quorumlog.metadata_quorum.controller import features
from quorumlog.metadata_quorum.image.features import (
    GROUP_FEATURE,
    LEVEL_OF_ACCESS,
    METADATA_FEATURE,
    SUPPORTED,
    TRANSACTION_FEATURE,
)
from quorumlog.metadata_quorum.image.records import (
    AccessControlEntry,
    FeatureLevel,
    NewerRecord,
    decode_record,
    encode_record,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from tests.support.metadata_quorum.controllers import Bench
from tests.unit.metadata_quorum.test_controller_access import ACL, ALL

UPGRADE, SAFE, UNSAFE = 1, 2, 3


@pytest.fixture
def bench() -> Bench:
    """A cluster that a release founded in which protocols had no levels."""
    bench = Bench(features={METADATA_FEATURE: SUPPORTED[METADATA_FEATURE]})
    bench.start(1, 2)
    return bench


def update(
    bench: Bench, level: int, upgrade_type: int = UPGRADE, *, name: str = METADATA_FEATURE
) -> tuple[str, str | None]:
    one = FeatureUpdate(name=name, level=level, upgrade_type=upgrade_type)
    [outcome] = cast("Outcomes", bench.ask(UpdateFeatures(updates=(one,)))).results
    return outcome.error_code.name, outcome.error_message


def create_acl(bench: Bench) -> tuple[str, str | None]:
    [outcome] = cast("Outcomes", bench.ask(CreateAcls(acls=(ACL,)))).results
    return outcome.error_code.name, outcome.error_message


def register_old(bench: Bench, broker_id: int = 3) -> Any:
    """A broker of a release that knew of no features."""
    return bench.ask(replace(bench.registration(broker_id, "old"), features={}))


def test_a_level_that_nobody_set_rises_with_the_first_record_that_needs_it(bench: Bench) -> None:
    cluster = bench.controller.cluster
    assert cluster.feature_level(METADATA_FEATURE) == 1
    assert create_acl(bench) == ("NONE", None)
    assert bench.log[-2:] == [
        FeatureLevel(name=METADATA_FEATURE, level=LEVEL_OF_ACCESS),
        AccessControlEntry(acl=ACL),
    ]
    assert bench.replay().features == cluster.features == {METADATA_FEATURE: LEVEL_OF_ACCESS}


def test_no_record_is_written_that_a_registered_broker_cannot_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert register_old(bench).error_code is ErrorCode.NONE
    refusal = (
        "It needs level 2 of quorumlog.metadata.version. Broker 3 does not support this level."
    )
    assert create_acl(bench) == ("UNSUPPORTED_VERSION", refusal)
    code, message = update(bench, 2)
    assert code == "INVALID_UPDATE_VERSION"
    assert "Broker 3 does not support" in str(message)
    assert not any(isinstance(record, FeatureLevel) for record in bench.log)
    # The planted bug: brokers are not asked.
    monkeypatch.setattr(features, "_broker_problem", lambda *_: None)
    assert create_acl(bench) == ("NONE", None)


def test_a_level_that_was_set_stays(bench: Bench) -> None:
    assert update(bench, 1) == ("NONE", None)
    code, message = create_acl(bench)
    assert (code, message) == (
        "UNSUPPORTED_VERSION",
        "It needs level 2 of quorumlog.metadata.version. 1 is in force",
    )
    assert update(bench, 2) == ("NONE", None)
    written = len(bench.log)
    assert update(bench, 2) == ("NONE", None)
    assert len(bench.log) == written
    assert create_acl(bench) == ("NONE", None)


def test_a_broker_that_does_not_work_with_the_level_is_refused(bench: Bench) -> None:
    update(bench, 2)
    reply = register_old(bench)
    assert reply.error_code is ErrorCode.UNSUPPORTED_VERSION
    assert reply.error_message == (
        "Broker 3 is of another release: level 2 of quorumlog.metadata.version is in force, "
        "and only 1 to 1 are supported by it"
    )
    assert 3 not in bench.controller.cluster.brokers


def test_a_level_falls_once_no_record_needs_it(bench: Bench) -> None:
    create_acl(bench)
    for upgrade_type, message in (
        (UPGRADE, "without setting the upgrade type"),
        (SAFE, "delete them first"),
        (UNSAFE, "Unsafe metadata downgrade is not supported"),
    ):
        code, said = update(bench, 1, upgrade_type)
        assert code == "INVALID_UPDATE_VERSION"
        assert message in str(said)
    bench.ask(DeleteAcls(filters=(ALL,)))
    assert update(bench, 1, SAFE) == ("NONE", None)
    assert register_old(bench).error_code is ErrorCode.NONE


@pytest.mark.parametrize(
    ("level", "upgrade_type", "name", "message"),
    [
        (6, UPGRADE, METADATA_FEATURE, "only supports versions 1-5"),
        (0, SAFE, METADATA_FEATURE, "only supports versions 1-5"),
        (2, SAFE, METADATA_FEATURE, "Can't downgrade to a newer level"),
        (1, UPGRADE, "share.version", "The controller does not support this feature"),
        (1, UPGRADE, "group.version", "Broker 1 does not support this level"),
        (3, UPGRADE, "transaction.version", "only supports versions 0-2"),
    ],
)
def test_what_cannot_be_is_refused(
    bench: Bench, level: int, upgrade_type: int, name: str, message: str
) -> None:
    code, said = update(bench, level, upgrade_type, name=name)
    assert code == "INVALID_UPDATE_VERSION"
    assert message in str(said)
    assert f"Invalid update version {level} for feature {name}." in str(said)


def test_all_levels_change_or_none_and_a_dry_run_changes_none(bench: Bench) -> None:
    good = FeatureUpdate(name=METADATA_FEATURE, level=2)
    bad = FeatureUpdate(name="group.version", level=1)
    written = len(bench.log)
    for request in (
        UpdateFeatures(updates=(good, bad)),
        UpdateFeatures(updates=(good, good)),
        UpdateFeatures(updates=(good,), validate_only=True),
    ):
        outcomes = cast("Outcomes", bench.ask(request))
        assert (outcomes.results[0].error_code is ErrorCode.NONE) is request.validate_only
    assert len(bench.log) == written


def test_a_node_stops_at_a_level_beyond_its_own() -> None:
    for name, level in ((METADATA_FEATURE, 6), ("quorumlog.other", 2)):
        beyond = encode_record(FeatureLevel(name=name, level=level))
        with pytest.raises(NewerRecord, match=f"level {level} of {name} is in force"):
            decode_record(beyond)


# --- The protocols that clients may use ---


def test_a_new_cluster_begins_with_the_newest_protocols() -> None:
    bench = Bench()
    newest = {GROUP_FEATURE: 1, TRANSACTION_FEATURE: 2}
    reply = bench.register(1)
    assert bench.log[:-1] == [FeatureLevel(name=name, level=newest[name]) for name in newest]
    assert reply.broker_epoch == len(bench.log) - 1 == 2
    bench.register(2)
    bench.register(1)
    assert len(bench.log) == 4
    assert bench.replay().features == bench.controller.cluster.features == newest
    assert register_old(bench).error_code is ErrorCode.UNSUPPORTED_VERSION


def test_a_cluster_of_an_older_release_gets_a_protocol_by_request(bench: Bench) -> None:
    assert update(bench, 2, name=TRANSACTION_FEATURE)[0] == "INVALID_UPDATE_VERSION"
    bench.features = SUPPORTED
    for broker_id in (1, 2):
        assert bench.register(broker_id, incarnation="new").error_code is ErrorCode.NONE
    cluster = bench.controller.cluster
    assert (cluster.features, cluster.feature_level(TRANSACTION_FEATURE)) == ({}, 0)
    assert update(bench, 2, name=TRANSACTION_FEATURE) == ("NONE", None)
    assert bench.replay().features == {TRANSACTION_FEATURE: 2}
    assert update(bench, 0, UPGRADE, name=TRANSACTION_FEATURE)[0] == "INVALID_UPDATE_VERSION"
    assert update(bench, 0, SAFE, name=TRANSACTION_FEATURE) == ("NONE", None)
    assert cluster.feature_level(TRANSACTION_FEATURE) == 0


def test_a_request_names_so_many_features(bench: Bench) -> None:
    many = tuple(
        FeatureUpdate(name=f"f{index}", level=1, upgrade_type=UPGRADE) for index in range(10_001)
    )
    [outcome] = cast("Outcomes", bench.ask(UpdateFeatures(updates=many))).results
    assert outcome.error_message == "A request may name at most 10000 features"
