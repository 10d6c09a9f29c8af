"""Feature levels: who may change them, and what waits for them."""

from dataclasses import replace
from typing import Any

import cbor2
import pytest

from quorumlog.metadata_quorum.cluster_changes import (
    AlterGroupConfigs,
    CreateAcls,
    DeleteAcls,
    FeatureUpdate,
    UpdateFeatures,
)
from quorumlog.metadata_quorum.config_changes import ConfigChange, ConfigChanges
from quorumlog.metadata_quorum.controller import features
from quorumlog.metadata_quorum.controller.controller import Controller
from quorumlog.metadata_quorum.controller.requests import Decision
from quorumlog.metadata_quorum.image.features import (
    ANNOUNCED,
    GROUP_FEATURE,
    KRAFT_FEATURE,
    LEVEL_OF_ACCESS,
    LEVEL_OF_DIRECTORIES,
    LEVEL_OF_GROUP_CONFIGS,
    METADATA_FEATURE,
    NEWEST_LEVEL,
    TRANSACTION_FEATURE,
)
from quorumlog.metadata_quorum.image.model import ClusterImage
from quorumlog.metadata_quorum.image.records import (
    AccessControlEntry,
    FeatureLevel,
    NewerRecord,
    decode_record,
    encode_record,
)
from quorumlog.metadata_quorum.image.snapshot_records import image_of as image_of_records
from quorumlog.metadata_quorum.image.snapshot_records import records_of
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Offset
from tests.support.metadata_quorum.controllers import SETTINGS, Bench, image_of
from tests.unit.metadata_quorum.test_controller_access import ACL, ALL

UPGRADE, SAFE, UNSAFE = 1, 2, 3
NO_VOTER_SETS = (
    "Broker 3 is of another release: level 1 of kraft.version is in force, and only 0 to 0 "
    "are supported by it. Start it with the release of the other nodes"
)


@pytest.fixture
def bench() -> Bench:
    """A cluster that a release founded in which protocols had no levels, and records one."""
    bench = Bench(features={METADATA_FEATURE: (1, 1)}).start(1, 2)
    bench.features = {METADATA_FEATURE: ANNOUNCED[METADATA_FEATURE]}
    restart(bench)
    return bench


def restart(bench: Bench) -> None:
    """Let both brokers register again, of the release that the bench has now."""
    for broker_id in (1, 2):
        assert bench.register(broker_id, f"at {len(bench.log)}").error_code is ErrorCode.NONE
        bench.heartbeat(broker_id)


def update(
    bench: Bench, level: int, upgrade_type: int = UPGRADE, *, name: str = METADATA_FEATURE
) -> tuple[str, str | None]:
    one = FeatureUpdate(name=name, level=level, upgrade_type=upgrade_type)
    [outcome] = bench.ask(UpdateFeatures(updates=(one,))).results
    return outcome.error_code.name, outcome.error_message


def create_acl(bench: Bench) -> tuple[str, str | None]:
    [outcome] = bench.ask(CreateAcls(acls=(ACL,))).results
    return outcome.error_code.name, outcome.error_message


def alter_group(bench: Bench) -> tuple[str, str | None]:
    change = ConfigChange(name="consumer.session.timeout.ms", value="50000")
    request = AlterGroupConfigs(groups=(ConfigChanges(name="g", changes=(change,)),))
    [outcome] = bench.ask(request).results
    return outcome.error_code.name, outcome.error_message


def register_old(bench: Bench, broker_id: int = 3) -> Any:
    """A broker of a release that knew of no features."""
    return bench.ask(replace(bench.registration(broker_id, "old"), features={}))


def test_a_level_that_nobody_set_rises_with_the_first_record_that_needs_it(bench: Bench) -> None:
    cluster = bench.controller.cluster
    assert cluster.feature_level(METADATA_FEATURE) == 1
    assert create_acl(bench) == ("NONE", None)
    assert bench.log[-2:] == [
        FeatureLevel(name=METADATA_FEATURE, level=LEVEL_OF_ACCESS, is_automatic=True),
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
        "It needs level 2 of quorumlog.metadata.version. 1 is in force, and stays until a request "
        "raises it: quorumlog features upgrade quorumlog.metadata.version=2",
    )
    assert update(bench, 2) == ("NONE", None)
    written = len(bench.log)
    assert update(bench, 2) == ("NONE", None)
    assert len(bench.log) == written
    assert create_acl(bench) == ("NONE", None)


def test_a_level_that_rose_by_itself_rises_again_after_a_snapshot_too(bench: Bench) -> None:
    """A level that rose once was taken for one that a request had set, and never rose again."""
    assert create_acl(bench) == ("NONE", None)
    bench.controller = bench.take_over()
    shown = image_of(bench.controller.cluster)
    assert shown.automatic_levels == {METADATA_FEATURE}
    rebuilt = image_of_records(records_of(shown), Offset(shown.end_offset))
    bench.controller = Controller(rebuilt, SETTINGS, random_bytes=bench.random_bytes, now_ms=1)
    assert alter_group(bench) == ("NONE", None)
    assert bench.log[-2] == FeatureLevel(
        name=METADATA_FEATURE, level=LEVEL_OF_GROUP_CONFIGS, is_automatic=True
    )


def test_a_request_for_the_level_in_force_lets_it_stay(bench: Bench) -> None:
    assert create_acl(bench) == ("NONE", None)
    assert update(bench, LEVEL_OF_ACCESS) == ("NONE", None)
    assert bench.log[-1] == FeatureLevel(name=METADATA_FEATURE, level=LEVEL_OF_ACCESS)
    bench.controller = bench.take_over()
    assert alter_group(bench)[0] == "UNSUPPORTED_VERSION"


def test_a_level_of_a_release_that_did_not_say_who_set_it_stays(bench: Bench) -> None:
    """A request may have set it, for the sake of an older release that is to come back."""
    record = FeatureLevel(name=METADATA_FEATURE, level=LEVEL_OF_ACCESS)
    assert cbor2.loads(encode_record(record))[2] == {"name": METADATA_FEATURE, "level": 2}
    bench.carry_out(Decision(response=None, records=(record,)))
    assert alter_group(bench)[0] == "UNSUPPORTED_VERSION"
    assert update(bench, LEVEL_OF_GROUP_CONFIGS) == ("NONE", None)
    assert alter_group(bench) == ("NONE", None)


def test_a_new_cluster_begins_at_the_levels_of_its_first_broker() -> None:
    bench = Bench(features={METADATA_FEATURE: (1, 3), GROUP_FEATURE: (0, 1)}).start(1, 2)
    assert bench.controller.cluster.features == {METADATA_FEATURE: 3, GROUP_FEATURE: 1}
    assert alter_group(bench)[0] == "UNSUPPORTED_VERSION"
    bench.features = ANNOUNCED
    restart(bench)
    assert alter_group(bench) == ("NONE", None)


def test_the_first_broker_may_have_several_log_directories() -> None:
    bench = Bench()
    assert bench.register(1, log_dirs=("d", "e")).error_code is ErrorCode.NONE
    assert bench.controller.cluster.feature_level(METADATA_FEATURE) == NEWEST_LEVEL


def test_a_lone_broker_is_upgraded_and_gets_another_log_directory_at_once() -> None:
    bench = Bench(features={}).start(1)
    bench.features = ANNOUNCED
    assert bench.register(1, "new", log_dirs=("d1", "e")).error_code is ErrorCode.NONE
    assert bench.controller.cluster.feature_level(METADATA_FEATURE) == LEVEL_OF_DIRECTORIES


@pytest.mark.parametrize(("greatest", "code"), [(0, "UNSUPPORTED_VERSION"), (1, "NONE")])
def test_a_broker_that_reads_no_voter_sets_is_refused_at_kraft_version_1(
    greatest: int, code: str
) -> None:
    """It would take itself for a voter, and count the configured ones."""
    bench = Bench()
    bench.controller = Controller(
        ClusterImage(), SETTINGS, random_bytes=bytes, now_ms=1, kraft_version=lambda: 1
    )
    bench.features = {**ANNOUNCED, KRAFT_FEATURE: (0, greatest)}
    reply = bench.register(3)
    assert reply.error_code.name == code
    if not greatest:
        assert reply.error_message == NO_VOTER_SETS


def test_a_new_cluster_orders_a_kraft_version_that_all_its_brokers_read() -> None:
    in_force = [0]
    bench = Bench()
    bench.controller = Controller(
        ClusterImage(), SETTINGS, random_bytes=bytes, now_ms=1, kraft_version=lambda: in_force[0]
    )
    assert not bench.controller.is_upgrade_due
    assert bench.register(1).error_code is ErrorCode.NONE
    assert bench.controller.is_upgrade_due
    bench.features = {**ANNOUNCED, KRAFT_FEATURE: (0, 0)}
    assert bench.register(3).error_message == NO_VOTER_SETS  # the quorum has not followed yet
    in_force[0] = 1
    assert not bench.controller.is_upgrade_due


def test_a_cluster_of_an_older_release_orders_no_kraft_version(bench: Bench) -> None:
    bench.features = ANNOUNCED
    restart(bench)
    create_acl(bench)
    assert not bench.controller.is_upgrade_due


def test_a_broker_that_does_not_work_with_the_level_is_refused(bench: Bench) -> None:
    update(bench, 2)
    reply = register_old(bench)
    assert reply.error_code is ErrorCode.UNSUPPORTED_VERSION
    assert reply.error_message == (
        "Broker 3 is of another release: level 2 of quorumlog.metadata.version is in force, "
        "and only 1 to 1 are supported by it. Start it with the release of the other nodes"
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
        (7, UPGRADE, METADATA_FEATURE, "only supports versions 1-6"),
        (0, SAFE, METADATA_FEATURE, "only supports versions 1-6"),
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
        outcomes = bench.ask(request)
        assert (outcomes.results[0].error_code is ErrorCode.NONE) is request.validate_only
    assert len(bench.log) == written


def test_a_node_stops_at_a_level_beyond_its_own() -> None:
    for name, level in ((METADATA_FEATURE, 7), ("quorumlog.other", 2)):
        beyond = encode_record(FeatureLevel(name=name, level=level))
        with pytest.raises(NewerRecord, match=f"level {level} of {name} is in force"):
            decode_record(beyond)


# --- The protocols that clients may use ---


def test_a_new_cluster_begins_with_the_newest_levels() -> None:
    bench = Bench()
    newest = {
        GROUP_FEATURE: 1,
        KRAFT_FEATURE: 1,
        METADATA_FEATURE: NEWEST_LEVEL,
        TRANSACTION_FEATURE: 2,
    }
    reply = bench.register(1)
    assert bench.log[:4] == [
        FeatureLevel(name=name, level=level, is_automatic=True) for name, level in newest.items()
    ]
    assert reply.broker_epoch == len(bench.log) - 1 == 5  # behind its min.insync.replicas
    bench.register(2)
    bench.register(1)
    assert len(bench.log) == 7
    assert bench.replay().features == bench.controller.cluster.features == newest
    assert register_old(bench).error_code is ErrorCode.UNSUPPORTED_VERSION


def test_a_cluster_of_an_older_release_gets_a_protocol_by_request(bench: Bench) -> None:
    assert update(bench, 2, name=TRANSACTION_FEATURE)[0] == "INVALID_UPDATE_VERSION"
    bench.features = ANNOUNCED
    restart(bench)
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
    [outcome] = bench.ask(UpdateFeatures(updates=many)).results
    assert outcome.error_message == "A request may name at most 10000 features"
