"""Settings of a cluster and of its groups: min.insync.replicas (KIP-966), sessions."""

import pytest

from quorumlog.metadata_quorum.cluster_changes import (
    AlterGroupConfigs,
    ConfigChange,
    ConfigChanges,
    ConfigOperation,
    FeatureUpdate,
    UpdateFeatures,
    UpgradeType,
)
from quorumlog.metadata_quorum.controller import group_configs, min_insync_replicas, refusals
from quorumlog.metadata_quorum.controller.min_insync_replicas import Around
from quorumlog.metadata_quorum.image.features import (
    ANNOUNCED,
    LEVEL_OF_CLUSTER_MIN_ISR,
    METADATA_FEATURE,
    NEWEST_LEVEL,
)
from quorumlog.metadata_quorum.image.records import (
    BROKER_RESOURCE,
    GROUP_RESOURCE,
    Config,
    FeatureLevel,
    PartitionChange,
)
from quorumlog.metadata_quorum.settings import ControllerSettings
from tests.support.metadata_quorum.controllers import Bench, deletion, image_of, setting, topic

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
        bench.let_in(broker_id, f"at {len(bench.log)}", min_insync_replicas=number)


def alter(bench: Bench, *changes: ConfigChange, name: str = "", whole: bool = False) -> str:
    result = bench.alter(name, *changes, replaces_all=whole, is_broker=True)
    return f"{result.error_code.name}: {result.error_message}"


def to(number: int) -> ConfigChange:
    return setting(MIN_ISR, str(number))


def set_level(bench: Bench, level: int, kind: UpgradeType) -> None:
    one = FeatureUpdate(name=METADATA_FEATURE, level=level, upgrade_type=kind)
    assert bench.codes(UpdateFeatures(updates=(one,))) == ["NONE"]


def number_of(bench: Bench) -> str | None:
    return bench.controller.cluster.broker_configs("").get(MIN_ISR)


def test_a_new_cluster_has_the_number_of_its_first_broker_for_all() -> None:
    bench = started(numbers=(2, 1, 3))
    assert number_of(bench) == "2"
    for broker_id in (2, 3):
        bench.die(broker_id)
    assert (bench.partition().isr, bench.partition().elr) == ((1,), (3,))
    assert bench.restored().broker_configs == {"": {MIN_ISR: "2"}}


def test_a_broker_whose_file_has_another_number_is_remarked_on() -> None:
    bench = started()
    remark = bench.register_with_remark(2, "again", min_insync_replicas=2)
    assert remark == (
        "min.insync.replicas=2 of broker 2 does not count: the cluster has 1. "
        "`quorumlog configs alter broker '' --set min.insync.replicas=2` changes it for all brokers"
    )
    assert bench.register_with_remark(3, "again", min_insync_replicas=1) is None


IN_ONE = "INVALID_CONFIG: Broker-level min.insync.replicas cannot be altered while ELR is enabled."
FOR_ALL = (
    "INVALID_CONFIG: Cluster-level min.insync.replicas cannot be removed while ELR is enabled."
)
TOO_SMALL = "INVALID_REQUEST: Invalid value 0 for configuration min.insync.replicas: "


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("1", to(2), IN_ONE),
        ("1", deletion(MIN_ISR), IN_ONE),
        ("", deletion(MIN_ISR), FOR_ALL),
        ("", to(0), TOO_SMALL),
    ],
)
def test_it_is_altered_for_all_only_and_never_removed(
    name: str, change: ConfigChange, message: str
) -> None:
    bench = started()
    without = setting("log.retention.ms", "5")
    with bench.unwritten():
        assert alter(bench, change, name=name).startswith(message)
        assert alter(bench, without, whole=True) == FOR_ALL
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
    with bench.unwritten():
        assert alter(bench, to(1)) == "NONE: None"  # it is so already


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
    set_level(bench, NEWEST_LEVEL, UpgradeType.UPGRADE)
    assert number_of(bench) == "3"
    epoch = bench.partition().partition_epoch
    set_level(bench, BEFORE, UpgradeType.SAFE_DOWNGRADE)
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


# --- the settings of single groups ---


SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


@pytest.fixture
def bench() -> Bench:
    return Bench().start(1)


def group(name: str, *changes: ConfigChange, replaces_all: bool = False) -> ConfigChanges:
    return ConfigChanges(name=name, changes=changes, replaces_all=replaces_all)


def alter_groups(bench: Bench, *groups: ConfigChanges, validate_only: bool = False) -> list[str]:
    request = AlterGroupConfigs(groups=groups, validate_only=validate_only)
    return [message or code for code, message in bench.outcomes(request)]


def test_settings_are_set_and_deleted_and_survive_a_snapshot(bench: Bench) -> None:
    cluster = bench.controller.cluster
    assert alter_groups(bench, group("g", setting(SESSION, " 50000"))) == ["NONE"]
    assert bench.log[-1:] == [
        Config(resource_type=GROUP_RESOURCE, resource_name="g", name=SESSION, value="50000")
    ]
    assert alter_groups(bench, group("g", setting(HEARTBEAT, "9000")), group("h")) == [
        "NONE",
        "NONE",
    ]
    assert cluster.group_configs == {"g": {SESSION: "50000", HEARTBEAT: "9000"}}
    assert bench.replay().group_configs == cluster.group_configs
    assert bench.restored().group_configs == image_of(cluster).group_configs
    assert image_of(cluster).group_configs == cluster.group_configs
    assert alter_groups(bench, group("g", setting(HEARTBEAT, "8000"), replaces_all=True)) == [
        "NONE"
    ]
    assert cluster.group_configs == {"g": {HEARTBEAT: "8000"}}
    assert alter_groups(bench, group("g", deletion(HEARTBEAT), deletion("no.such"))) == ["NONE"]
    assert cluster.group_configs == {} == image_of(cluster).group_configs


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([setting("no.such", "5")], "Unknown group config name: no.such"),
        (
            [setting("share.session.timeout.ms", "50000")],
            "share.session.timeout.ms is a setting of share groups",
        ),
        ([setting(SESSION, "x")], f"Invalid value x for configuration {SESSION}: Not a number"),
        ([setting(SESSION, "0")], "Value must be at least 1"),
        (
            [setting(SESSION, "44999")],
            f"{SESSION} must be greater than or equal to group.consumer.min.",
        ),
        ([setting(SESSION, "60001")], f"{SESSION} must be less than or equal to group."),
        ([setting(HEARTBEAT, "4999")], f"{HEARTBEAT} must be greater than or equal to group."),
        ([setting(HEARTBEAT, "15001")], f"{HEARTBEAT} must be less than or equal to group."),
        ([setting(SESSION, None)], f"Null value not supported for : {SESSION}"),
        ([setting(SESSION, "50000"), deletion(SESSION)], "duplicate config keys"),
        (
            [ConfigChange(name=SESSION, value="1", operation=ConfigOperation.APPEND)],
            f"Can't APPEND to key {SESSION} because its type is not LIST.",
        ),
    ],
)
def test_bad_changes_are_refused_whole(
    bench: Bench, changes: list[ConfigChange], message: str
) -> None:
    refused, done = alter_groups(bench, group("g", *changes), group("h", setting(SESSION, "50000")))
    assert message in refused
    assert done == "NONE"
    assert bench.controller.cluster.group_configs == {"h": {SESSION: "50000"}}


def test_a_session_is_longer_than_an_interval() -> None:
    bench = Bench(
        settings=ControllerSettings(
            group_consumer_min_session_timeout_ms=5000,
            group_consumer_max_heartbeat_interval_ms=45_000,
        )
    ).start(1)
    message = f"{SESSION} must be greater than {HEARTBEAT}"
    assert alter_groups(bench, group("g", setting(SESSION, "5000"))) == [message]
    assert alter_groups(bench, group("g", setting(HEARTBEAT, "45000"))) == [message]
    assert alter_groups(bench, group("g", setting(SESSION, "5001"))) == ["NONE"]
    assert alter_groups(bench, group("g", setting(HEARTBEAT, "5001"))) == [message]


def test_a_group_has_a_name_and_is_named_once(bench: Bench) -> None:
    twice = group("g", setting(SESSION, "50000"))
    assert alter_groups(bench, twice, group("", setting(SESSION, "50000")), twice) == [
        "Each resource must appear at most once.",
        "Default group resources are not allowed.",
        "Each resource must appear at most once.",
    ]
    with bench.unwritten():
        assert alter_groups(bench, twice, validate_only=True) == ["NONE"]


def test_the_groups_of_a_cluster_have_a_limit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_configs, "GROUPS_MAX", 2)
    change = setting(SESSION, "50000")
    outcomes = alter_groups(bench, *(group(name, change) for name in "abc"))
    assert outcomes == ["NONE", "NONE", "A cluster holds configurations of at most 2 groups"]
    assert alter_groups(bench, group("c", change)) == outcomes[2:]
    assert alter_groups(bench, group("a", setting(SESSION, "51000"))) == ["NONE"]
    assert alter_groups(bench, group("a", deletion(SESSION)), group("c", change)) == outcomes[1:]
    assert alter_groups(bench, group("c", change)) == ["NONE"]


def test_a_request_has_a_limit(bench: Bench) -> None:
    groups = [group(f"g{number}", setting(SESSION, "50000")) for number in range(5001)]
    assert {*alter_groups(bench, *groups)} == {
        "A request may name at most 10000 resources and configurations"
    }


def test_the_level_does_not_fall_while_a_group_has_settings(bench: Bench) -> None:
    assert alter_groups(bench, group("g", setting(SESSION, "50000"))) == ["NONE"]
    update = FeatureUpdate(name=METADATA_FEATURE, level=3, upgrade_type=2)
    [(_, message)] = bench.outcomes(UpdateFeatures(updates=(update,)))
    assert "There are configurations of groups" in message
    assert alter_groups(bench, group("g", deletion(SESSION))) == ["NONE"]
    assert bench.codes(UpdateFeatures(updates=(update,))) == ["NONE"]
    [refusal] = alter_groups(bench, group("g", setting(SESSION, "50000")))
    assert "It needs level 4 of quorumlog.metadata.version. 3 is in force" in refusal
