"""The settings of single groups: what the controller writes, and what it refuses."""

import pytest

from quorumlog.metadata_quorum.cluster_changes import (
    AlterGroupConfigs,
    FeatureUpdate,
    UpdateFeatures,
)
from quorumlog.metadata_quorum.config_changes import ConfigChange, ConfigChanges, ConfigOperation
from quorumlog.metadata_quorum.controller import group_configs
from quorumlog.metadata_quorum.image.features import METADATA_FEATURE
from quorumlog.metadata_quorum.image.records import GROUP_RESOURCE, Config
from quorumlog.metadata_quorum.image.snapshot_records import image_of as image_of_records
from quorumlog.metadata_quorum.image.snapshot_records import records_of
from quorumlog.metadata_quorum.settings import ControllerSettings
from quorumlog.wire.codec.identifiers import Offset
from tests.support.metadata_quorum.controllers import Bench, image_of

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
APPEND, DELETE = ConfigOperation.APPEND, ConfigOperation.DELETE


@pytest.fixture
def bench() -> Bench:
    return Bench().start(1)


def setting(name: str, value: str | None) -> ConfigChange:
    return ConfigChange(name=name, value=value)


def deletion(name: str) -> ConfigChange:
    return ConfigChange(name=name, operation=DELETE)


def group(name: str, *changes: ConfigChange, replaces_all: bool = False) -> ConfigChanges:
    return ConfigChanges(name=name, changes=changes, replaces_all=replaces_all)


def alter(bench: Bench, *groups: ConfigChanges, validate_only: bool = False) -> list[str]:
    request = AlterGroupConfigs(groups=groups, validate_only=validate_only)
    outcomes = bench.ask(request).results
    return [one.error_message or one.error_code.name for one in outcomes]


def test_settings_are_set_and_deleted_and_survive_a_snapshot(bench: Bench) -> None:
    cluster = bench.controller.cluster
    assert alter(bench, group("g", setting(SESSION, " 50000"))) == ["NONE"]
    assert bench.log[-1:] == [
        Config(resource_type=GROUP_RESOURCE, resource_name="g", name=SESSION, value="50000")
    ]
    assert alter(bench, group("g", setting(HEARTBEAT, "9000")), group("h")) == ["NONE", "NONE"]
    assert cluster.group_configs == {"g": {SESSION: "50000", HEARTBEAT: "9000"}}
    assert bench.replay().group_configs == cluster.group_configs
    shown = image_of(cluster)
    rebuilt = image_of_records(records_of(shown), Offset(shown.end_offset))
    assert rebuilt.group_configs == shown.group_configs == cluster.group_configs
    assert alter(bench, group("g", setting(HEARTBEAT, "8000"), replaces_all=True)) == ["NONE"]
    assert cluster.group_configs == {"g": {HEARTBEAT: "8000"}}
    assert alter(bench, group("g", deletion(HEARTBEAT), deletion("no.such"))) == ["NONE"]
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
            [ConfigChange(name=SESSION, value="1", operation=APPEND)],
            f"Can't APPEND to key {SESSION} because its type is not LIST.",
        ),
    ],
)
def test_bad_changes_are_refused_whole(
    bench: Bench, changes: list[ConfigChange], message: str
) -> None:
    refused, done = alter(bench, group("g", *changes), group("h", setting(SESSION, "50000")))
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
    assert alter(bench, group("g", setting(SESSION, "5000"))) == [message]
    assert alter(bench, group("g", setting(HEARTBEAT, "45000"))) == [message]
    assert alter(bench, group("g", setting(SESSION, "5001"))) == ["NONE"]
    assert alter(bench, group("g", setting(HEARTBEAT, "5001"))) == [message]


def test_a_group_has_a_name_and_is_named_once(bench: Bench) -> None:
    twice = group("g", setting(SESSION, "50000"))
    assert alter(bench, twice, group("", setting(SESSION, "50000")), twice) == [
        "Each resource must appear at most once.",
        "Default group resources are not allowed.",
        "Each resource must appear at most once.",
    ]


def test_what_is_only_validated_is_not_written(bench: Bench) -> None:
    written = len(bench.log)
    assert alter(bench, group("g", setting(SESSION, "50000")), validate_only=True) == ["NONE"]
    assert len(bench.log) == written


def test_the_groups_of_a_cluster_have_a_limit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_configs, "GROUPS_MAX", 2)
    change = setting(SESSION, "50000")
    outcomes = alter(bench, *(group(name, change) for name in "abc"))
    assert outcomes == ["NONE", "NONE", "A cluster holds configurations of at most 2 groups"]
    assert alter(bench, group("c", change)) == outcomes[2:]
    assert alter(bench, group("a", setting(SESSION, "51000"))) == ["NONE"]
    assert alter(bench, group("a", deletion(SESSION)), group("c", change)) == outcomes[1:]
    assert alter(bench, group("c", change)) == ["NONE"]


def test_a_request_has_a_limit(bench: Bench) -> None:
    groups = [group(f"g{number}", setting(SESSION, "50000")) for number in range(5001)]
    assert {*alter(bench, *groups)} == {
        "A request may name at most 10000 groups and configurations"
    }


def test_the_level_does_not_fall_while_a_group_has_settings(bench: Bench) -> None:
    assert alter(bench, group("g", setting(SESSION, "50000"))) == ["NONE"]
    update = FeatureUpdate(name=METADATA_FEATURE, level=3, upgrade_type=2)
    [refused] = bench.ask(UpdateFeatures(updates=(update,))).results
    assert "There are configurations of groups" in (refused.error_message or "")
    assert alter(bench, group("g", deletion(SESSION))) == ["NONE"]
    [done] = bench.ask(UpdateFeatures(updates=(update,))).results
    assert done.error_code.name == "NONE"
    [refusal] = alter(bench, group("g", setting(SESSION, "50000")))
    assert "It needs level 4 of quorumlog.metadata.version. 3 is in force" in refusal
