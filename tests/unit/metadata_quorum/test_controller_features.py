"""Feature levels: who may change them, and the records and protocols that wait for them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cbor2
import pytest

from quorumlog.invariants import InvariantViolation
from quorumlog.metadata_quorum.cluster_changes import (
    AlterGroupConfigs,
    ConfigChange,
    ConfigChanges,
    CreateAcls,
    DeleteAcls,
    FeatureUpdate,
    UpdateFeatures,
)
from quorumlog.metadata_quorum.controller import features
from quorumlog.metadata_quorum.controller.controller import Controller
from quorumlog.metadata_quorum.controller.decision import Decision
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
    BrokerRegistrationChange,
    FeatureLevel,
    MetadataRecord,
    NewerRecord,
    NoOp,
    Partition,
    PartitionChange,
    ProducerIds,
    Topic,
    decode_record,
    encode_record,
)
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import BrokerId, Offset, PartitionIndex, TopicId
from tests.support.metadata_quorum.brokers import broker_record
from tests.support.metadata_quorum.controllers import SETTINGS, Bench, ids, image_of, topic
from tests.unit.metadata_quorum.test_controller_access import ACL, ALL

UPGRADE, SAFE, UNSAFE = 1, 2, 3
NO_VOTER_SETS = (
    "Broker 3 is of another release: level 1 of kraft.version is in force, and only 0 to 0 "
    "are supported by it. Start it with the release of the other nodes"
)


DONE = "NONE", ""


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
        bench.let_in(broker_id, f"at {len(bench.log)}")


def update(
    bench: Bench, level: int, upgrade_type: int = UPGRADE, *, name: str = METADATA_FEATURE
) -> tuple[str, str]:
    one = FeatureUpdate(name=name, level=level, upgrade_type=upgrade_type)
    [outcome] = bench.outcomes(UpdateFeatures(updates=(one,)))
    return outcome


def create_acl(bench: Bench) -> tuple[str, str]:
    [outcome] = bench.outcomes(CreateAcls(acls=(ACL,)))
    return outcome


def alter_group(bench: Bench) -> str:
    change = ConfigChange(name="consumer.session.timeout.ms", value="50000")
    request = AlterGroupConfigs(groups=(ConfigChanges(name="g", changes=(change,)),))
    [code] = bench.codes(request)
    return code


def register_old(bench: Bench, broker_id: int = 3) -> Any:
    """A broker of a release that knew of no features."""
    return bench.ask(replace(bench.registration(broker_id, "old"), features={}))


def test_a_level_that_nobody_set_rises_with_the_first_record_that_needs_it(bench: Bench) -> None:
    cluster = bench.controller.cluster
    assert cluster.feature_level(METADATA_FEATURE) == 1
    assert create_acl(bench) == DONE
    assert bench.log[-2:] == [
        FeatureLevel(name=METADATA_FEATURE, level=LEVEL_OF_ACCESS, is_automatic=True),
        AccessControlEntry(acl=ACL),
    ]
    assert bench.replay().features == cluster.features == {METADATA_FEATURE: LEVEL_OF_ACCESS}


def test_no_record_is_written_that_a_registered_broker_cannot_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert register_old(bench).error_code is ErrorCode.NONE
    assert create_acl(bench) == (
        "UNSUPPORTED_VERSION",
        "It needs level 2 of quorumlog.metadata.version. Broker 3 does not support this level.",
    )
    code, message = update(bench, 2)
    assert code == "INVALID_UPDATE_VERSION"
    assert "Broker 3 does not support" in message
    assert not any(isinstance(record, FeatureLevel) for record in bench.log)
    # The planted bug: brokers are not asked.
    monkeypatch.setattr(features, "_broker_problem", lambda *_: None)
    assert create_acl(bench) == DONE


def test_a_level_that_was_set_stays(bench: Bench) -> None:
    assert update(bench, 1) == DONE
    assert create_acl(bench) == (
        "UNSUPPORTED_VERSION",
        "It needs level 2 of quorumlog.metadata.version. 1 is in force, and stays until a request "
        "raises it: quorumlog features upgrade quorumlog.metadata.version=2",
    )
    assert update(bench, 2) == DONE
    with bench.unwritten():
        assert update(bench, 2) == DONE
    assert create_acl(bench) == DONE


def test_a_level_that_rose_by_itself_rises_again_after_a_snapshot_too(bench: Bench) -> None:
    """A level that rose once was taken for one that a request had set, and never rose again."""
    assert create_acl(bench) == DONE
    bench.controller = bench.take_over()
    assert image_of(bench.controller.cluster).automatic_levels == {METADATA_FEATURE}
    bench.controller = Controller(
        bench.restored(), SETTINGS, random_bytes=bench.random_bytes, now_ms=1
    )
    assert alter_group(bench) == "NONE"
    assert bench.log[-2] == FeatureLevel(
        name=METADATA_FEATURE, level=LEVEL_OF_GROUP_CONFIGS, is_automatic=True
    )


def test_a_request_for_the_level_in_force_lets_it_stay(bench: Bench) -> None:
    assert create_acl(bench) == DONE
    assert update(bench, LEVEL_OF_ACCESS) == DONE
    assert bench.log[-1] == FeatureLevel(name=METADATA_FEATURE, level=LEVEL_OF_ACCESS)
    bench.controller = bench.take_over()
    assert alter_group(bench) == "UNSUPPORTED_VERSION"


def test_a_level_of_a_release_that_did_not_say_who_set_it_stays(bench: Bench) -> None:
    """A request may have set it, for the sake of an older release that is to come back."""
    record = FeatureLevel(name=METADATA_FEATURE, level=LEVEL_OF_ACCESS)
    assert cbor2.loads(encode_record(record))[2] == {"name": METADATA_FEATURE, "level": 2}
    bench.carry_out(Decision(response=None, records=(record,)))
    assert alter_group(bench) == "UNSUPPORTED_VERSION"
    assert update(bench, LEVEL_OF_GROUP_CONFIGS) == DONE
    assert alter_group(bench) == "NONE"


def test_a_new_cluster_begins_at_the_levels_of_its_first_broker() -> None:
    bench = Bench(features={METADATA_FEATURE: (1, 3), GROUP_FEATURE: (0, 1)}).start(1, 2)
    assert bench.controller.cluster.features == {METADATA_FEATURE: 3, GROUP_FEATURE: 1}
    assert alter_group(bench) == "UNSUPPORTED_VERSION"
    bench.features = ANNOUNCED
    restart(bench)
    assert alter_group(bench) == "NONE"


def test_the_first_broker_may_have_several_log_directories() -> None:
    bench = Bench()
    bench.let_in(1, log_dirs=("d", "e"))
    assert bench.controller.cluster.feature_level(METADATA_FEATURE) == NEWEST_LEVEL
    # A lone broker is upgraded and gets another directory at once.
    bench = Bench(features={}).start(1)
    bench.features = ANNOUNCED
    bench.let_in(1, "new", log_dirs=("d1", "e"))
    assert bench.controller.cluster.feature_level(METADATA_FEATURE) == LEVEL_OF_DIRECTORIES


def of_kraft_version(version: Callable[[], int]) -> Bench:
    bench = Bench()
    bench.controller = Controller(
        ClusterImage(), SETTINGS, random_bytes=bytes, now_ms=1, kraft_version=version
    )
    return bench


@pytest.mark.parametrize(("greatest", "code"), [(0, "UNSUPPORTED_VERSION"), (1, "NONE")])
def test_a_broker_that_reads_no_voter_sets_is_refused_at_kraft_version_1(
    greatest: int, code: str
) -> None:
    """It would take itself for a voter, and count the configured ones."""
    bench = of_kraft_version(lambda: 1)
    bench.features = {**ANNOUNCED, KRAFT_FEATURE: (0, greatest)}
    reply = bench.register(3)
    assert reply.error_code.name == code
    assert reply.error_message == (None if greatest else NO_VOTER_SETS)


def test_a_new_cluster_orders_a_kraft_version_that_all_its_brokers_read() -> None:
    in_force = [0]
    bench = of_kraft_version(lambda: in_force[0])
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
        assert message in said
    bench.ask(DeleteAcls(filters=(ALL,)))
    assert update(bench, 1, SAFE) == DONE
    assert register_old(bench).error_code is ErrorCode.NONE


@pytest.mark.parametrize(
    ("level", "upgrade_type", "name", "message"),
    [
        (8, UPGRADE, METADATA_FEATURE, "only supports versions 1-7"),
        (0, SAFE, METADATA_FEATURE, "only supports versions 1-7"),
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
    assert message in said
    assert f"Invalid update version {level} for feature {name}." in said


def test_all_levels_change_or_none_and_a_dry_run_changes_none(bench: Bench) -> None:
    good = FeatureUpdate(name=METADATA_FEATURE, level=2)
    bad = FeatureUpdate(name="group.version", level=1)
    with bench.unwritten():
        for request in (
            UpdateFeatures(updates=(good, bad)),
            UpdateFeatures(updates=(good, good)),
            UpdateFeatures(updates=(good,), validate_only=True),
        ):
            assert (bench.codes(request)[0] == "NONE") is request.validate_only
    many = tuple(FeatureUpdate(name=f"f{index}", level=1) for index in range(10_001))
    [(_, message)] = bench.outcomes(UpdateFeatures(updates=many))
    assert message == "A request may name at most 10000 features"


def test_a_node_stops_at_a_level_beyond_its_own() -> None:
    for name, level in ((METADATA_FEATURE, NEWEST_LEVEL + 1), ("quorumlog.other", 2)):
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
    assert update(bench, 2, name=TRANSACTION_FEATURE) == DONE
    assert bench.replay().features == {TRANSACTION_FEATURE: 2}
    assert update(bench, 0, UPGRADE, name=TRANSACTION_FEATURE)[0] == "INVALID_UPDATE_VERSION"
    assert update(bench, 0, SAFE, name=TRANSACTION_FEATURE) == DONE
    assert cluster.feature_level(TRANSACTION_FEATURE) == 0


# --- records that do not fit the state before them end the node (KAFKA-14275) ---


@pytest.fixture
def led() -> Bench:
    """Partition t-0 is on brokers 1 and 2 of three."""
    bench = Bench().start(1, 2, 3)
    bench.create(topic("t", 1, 2))
    return bench


FIRST, SECOND = PartitionIndex(0), PartitionIndex(1)


def apply(bench: Bench, record: MetadataRecord) -> None:
    bench.controller.apply(bench.controller.cluster.end_offset, record)


@pytest.mark.parametrize(
    ("index", "isr", "leader", "message"),
    [
        (PartitionIndex(2), ids(1), BrokerId(1), "partitions come in order"),
        (FIRST, ids(1), BrokerId(1), "partitions come in order"),
        (SECOND, ids(1, 3), BrokerId(1), "isr and elr are apart, within replicas"),
        (SECOND, ids(1), BrokerId(2), "the leader is in isr"),
    ],
)
def test_a_new_partition_must_fit(
    led: Bench, index: PartitionIndex, isr: tuple[BrokerId, ...], leader: BrokerId, message: str
) -> None:
    record = Partition(
        topic_id=led.topic_id(), partition_id=index, replicas=ids(1, 2), isr=isr, leader=leader
    )
    with pytest.raises(InvariantViolation, match=message):
        apply(led, record)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"elr": ids(2)}, "isr and elr are apart"),
        ({"isr": ids(1, 3)}, "isr and elr are apart"),
        ({"isr": ids(2)}, "the leader is in isr"),
        ({"leader": BrokerId(3)}, "the leader is in isr"),
        ({"partition_id": SECOND}, "a changed partition exists"),
        ({"topic_id": TopicId(bytes(16))}, "a record names a known topic"),
    ],
)
def test_a_change_of_a_partition_must_fit(
    led: Bench, changes: dict[str, object], message: str
) -> None:
    fields = {"topic_id": led.topic_id(), "partition_id": FIRST, **changes}
    with pytest.raises(InvariantViolation, match=message):
        apply(led, PartitionChange(**fields))  # type: ignore[arg-type]  # a test's own fields


def test_records_come_once_and_topics_and_producer_ids_are_not_given_twice(led: Bench) -> None:
    with pytest.raises(InvariantViolation, match="in the order of the log"):
        led.controller.apply(Offset(0), NoOp())
    one = BrokerId(1)
    for record, message in (
        (ProducerIds(broker_id=one, broker_epoch=0, next_producer_id=0), "producer ids grow"),
        (Topic(name="t", topic_id=TopicId(bytes(16))), "a new name and a new id"),
        (BrokerRegistrationChange(broker_id=one, broker_epoch=99), "one of that in force"),
    ):
        with pytest.raises(InvariantViolation, match=message):
            apply(led, record)


def test_a_leader_that_is_set_starts_an_epoch_even_if_it_led_before(led: Bench) -> None:
    before = led.partition()
    topic_id = led.topic_id()
    apply(led, PartitionChange(topic_id=topic_id, partition_id=FIRST, leader=before.leader_id))
    after = led.partition()
    assert after.leader_epoch == before.leader_epoch + 1
    assert after.partition_epoch == before.partition_epoch + 1


@pytest.mark.parametrize(("written", "in_force"), [(None, 0), (7, 7)])
def test_a_registration_without_an_epoch_has_that_of_its_offset(
    written: int | None, in_force: int
) -> None:
    """Logs from before the field was are read as they were then."""
    cluster = Bench().controller.cluster
    cluster.apply(Offset(0), broker_record(1, written))
    assert cluster.brokers[BrokerId(1)].broker_epoch == in_force
