"""min.insync.replicas of the cluster: one number for what its topics leave open (KIP-966)."""

import pytest

from quorumlog.metadata_quorum.cluster_changes import (
    FeatureUpdate,
    Outcome,
    UpdateFeatures,
    UpgradeType,
)
from quorumlog.metadata_quorum.config_changes import (
    ConfigChange,
    ConfigChanges,
    ConfigOperation,
    ConfigResult,
)
from quorumlog.metadata_quorum.controller import min_insync_replicas, refusals
from quorumlog.metadata_quorum.controller.min_insync_replicas import Around
from quorumlog.metadata_quorum.controller.requests import AlterConfigs
from quorumlog.metadata_quorum.image.features import (
    ANNOUNCED,
    LEVEL_OF_CLUSTER_MIN_ISR,
    METADATA_FEATURE,
    NEWEST_LEVEL,
)
from quorumlog.metadata_quorum.image.records import (
    BROKER_RESOURCE,
    Config,
    FeatureLevel,
    PartitionChange,
)
from quorumlog.metadata_quorum.image.snapshot_records import image_of as image_of_records
from quorumlog.metadata_quorum.image.snapshot_records import records_of
from quorumlog.wire.codec.error_codes import ErrorCode
from quorumlog.wire.codec.identifiers import Offset
from tests.support.metadata_quorum.controllers import Bench, image_of, topic

MIN_ISR = "min.insync.replicas"
BEFORE = LEVEL_OF_CLUSTER_MIN_ISR - 1


def started(level: int = NEWEST_LEVEL, numbers: tuple[int, ...] = (1, 1, 1)) -> Bench:
    """Brokers 1, 2 and 3 with these numbers in their files, in a cluster of this level."""
    bench = Bench(features={METADATA_FEATURE: (1, level)})
    restart(bench, numbers)
    bench.create(topic("t", 1, 2, 3))
    return bench


def restart(bench: Bench, numbers: tuple[int, ...]) -> None:
    for broker_id, number in enumerate(numbers, start=1):
        reply = bench.register(broker_id, f"at {len(bench.log)}", min_insync_replicas=number)
        assert reply.error_code is ErrorCode.NONE
        bench.heartbeat(broker_id)


def alter(bench: Bench, *changes: ConfigChange, name: str = "", whole: bool = False) -> str:
    wanted = ConfigChanges(name=name, changes=changes, replaces_all=whole, is_broker=True)
    [result] = bench.ask(AlterConfigs(topics=(wanted,))).results
    assert isinstance(result, ConfigResult)
    return f"{result.error_code.name}: {result.error_message}"


def to(number: int) -> ConfigChange:
    return ConfigChange(name=MIN_ISR, value=str(number))


def set_level(bench: Bench, level: int, kind: UpgradeType) -> Outcome:
    one = FeatureUpdate(name=METADATA_FEATURE, level=level, upgrade_type=kind)
    [outcome] = bench.ask(UpdateFeatures(updates=(one,))).results
    return outcome


def number_of(bench: Bench) -> str | None:
    return bench.controller.cluster.broker_configs("").get(MIN_ISR)


def test_a_new_cluster_has_the_number_of_its_first_broker_for_all() -> None:
    bench = started(numbers=(2, 1, 3))
    assert number_of(bench) == "2"
    for broker_id in (2, 3):
        bench.die(broker_id)
    assert (bench.partition().isr, bench.partition().elr) == ((1,), (3,))
    shown = image_of(bench.controller.cluster)
    rebuilt = image_of_records(records_of(shown), Offset(shown.end_offset))
    assert rebuilt.broker_configs == {"": {MIN_ISR: "2"}}


def test_a_broker_whose_file_has_another_number_is_remarked_on() -> None:
    bench = started()
    remark = bench.register_with_remark(2, "again", min_insync_replicas=2)
    assert remark == (
        "min.insync.replicas=2 of broker 2 does not count: the cluster has 1. "
        "`quorumlog configs alter broker '' --set min.insync.replicas=2` changes it for all brokers"
    )
    assert bench.register_with_remark(3, "again", min_insync_replicas=1) is None


BROKER_LEVEL = (
    "INVALID_CONFIG: Broker-level min.insync.replicas cannot be altered while ELR is enabled."
)
CLUSTER_LEVEL = (
    "INVALID_CONFIG: Cluster-level min.insync.replicas cannot be removed while ELR is enabled."
)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("1", to(2), BROKER_LEVEL),
        ("1", ConfigChange(name=MIN_ISR, operation=ConfigOperation.DELETE), BROKER_LEVEL),
        ("", ConfigChange(name=MIN_ISR, operation=ConfigOperation.DELETE), CLUSTER_LEVEL),
        ("", to(0), "INVALID_REQUEST: Invalid value 0 for configuration min.insync.replicas: "),
    ],
)
def test_it_is_altered_for_all_only_and_never_removed(
    name: str, change: ConfigChange, message: str
) -> None:
    bench = started()
    written = len(bench.log)
    assert alter(bench, change, name=name).startswith(message)
    without = ConfigChange(name="log.retention.ms", value="5")
    removed = "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."
    assert alter(bench, without, whole=True) == f"INVALID_CONFIG: {removed}"
    assert len(bench.log) == written
    assert alter(bench, without, to(1), whole=True) == "NONE: None"


def test_a_new_number_voids_what_was_computed_with_the_old_one() -> None:
    bench = started(numbers=(3, 3, 3))
    bench.create(topic("own", 1, 2, 3, min_insync_replicas="2"))
    bench.create(topic("alone", 1))
    bench.create(topic("leaderless", 2))
    bench.die(2)
    assert bench.partition().elr == (2,)
    before = {name: bench.partition(name) for name in ("own", "alone", "leaderless")}
    epoch, written = bench.partition().partition_epoch, len(bench.log)
    assert alter(bench, to(1)) == "NONE: None"
    assert [type(one) for one in bench.log[written:]] == [PartitionChange, Config, PartitionChange]
    assert (bench.partition().elr, bench.partition().partition_epoch) == ((), epoch + 2)
    assert {name: bench.partition(name) for name in before} == before
    assert bench.replay().broker_configs("") == {MIN_ISR: "1"}
    written = len(bench.log)
    assert alter(bench, to(1)) == "NONE: None"  # it is so already
    assert len(bench.log) == written


def test_a_new_number_that_more_replicas_wait_for_than_one_batch_holds_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = started()
    monkeypatch.setattr(refusals, "RECORDS_PER_REQUEST_MAX", 1)
    assert alter(bench, to(2)).startswith("POLICY_VIOLATION: A request may create at most 1")
    assert number_of(bench) == "1"


def test_below_its_level_each_leader_has_its_own_until_one_is_set_for_all() -> None:
    bench = started(BEFORE, numbers=(1, 2, 2))
    assert number_of(bench) is None
    bench.features = ANNOUNCED
    assert alter(bench, to(2)).startswith("UNSUPPORTED_VERSION: It needs level 6 of")
    restart(bench, (1, 2, 2))
    epoch = bench.partition().partition_epoch
    assert alter(bench, to(2)) == "NONE: None"
    level = FeatureLevel(name=METADATA_FEATURE, level=LEVEL_OF_CLUSTER_MIN_ISR, is_automatic=True)
    record = Config(resource_type=BROKER_RESOURCE, resource_name="", name=MIN_ISR, value="2")
    at = bench.log.index(level)
    assert bench.log[at + 1] == record
    leads_with_two = bench.partition().leader_id != 1
    assert bench.partition().partition_epoch == epoch + (not leads_with_two)


def test_a_request_for_its_level_takes_the_greatest_number_and_a_lower_one_gives_it_back() -> None:
    bench = started(BEFORE, numbers=(1, 3, 2))
    bench.features = ANNOUNCED
    restart(bench, (1, 3, 2))
    bench.elect(("t", 0))
    bench.join_isr(1)
    assert set_level(bench, NEWEST_LEVEL, UpgradeType.UPGRADE).error_code is ErrorCode.NONE
    assert number_of(bench) == "3"
    epoch = bench.partition().partition_epoch
    assert set_level(bench, BEFORE, UpgradeType.SAFE_DOWNGRADE).error_code is ErrorCode.NONE
    assert number_of(bench) is None
    own = bench.controller.cluster.brokers[bench.partition().leader_id].min_insync_replicas
    assert bench.partition().partition_epoch == epoch + (own != 3)
    assert alter(bench, to(2)).startswith("UNSUPPORTED_VERSION")  # a request has set the level


def test_the_planted_bug_is_that_nothing_is_voided(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = started(numbers=(3, 3, 3))
    bench.die(2)
    monkeypatch.setattr(min_insync_replicas, "_around", lambda _: Around([], []))
    assert alter(bench, to(1)) == "NONE: None"
    assert bench.partition().elr == (2,), "1 and 3 commit without it, and it may lead"
