"""Subscriptions to metrics of clients (KIP-714): configurations that the controller decides."""

import pytest

from quorumlog.metadata_quorum.cluster_changes import (
    AlterClientMetrics,
    ConfigChange,
    ConfigChanges,
    ConfigOperation,
    FeatureUpdate,
    UpdateFeatures,
    UpgradeType,
)
from quorumlog.metadata_quorum.controller import group_configs
from quorumlog.metadata_quorum.image.features import LEVEL_OF_CLIENT_METRICS, METADATA_FEATURE
from quorumlog.metadata_quorum.image.records import CLIENT_METRICS_RESOURCE, Config
from tests.support.metadata_quorum.controllers import Bench, image_of


@pytest.fixture
def bench() -> Bench:
    return Bench().start(1)


def setting(
    name: str, value: str | None, operation: ConfigOperation = ConfigOperation.SET
) -> ConfigChange:
    return ConfigChange(name=name, value=value, operation=operation)


def alter(
    bench: Bench, name: str, *changes: ConfigChange, validate_only: bool = False
) -> tuple[str, str | None]:
    [outcome] = bench.outcomes(
        AlterClientMetrics(
            subscriptions=(ConfigChanges(name=name, changes=changes),), validate_only=validate_only
        )
    )
    return outcome


def test_a_subscription_is_set_and_deleted_and_survives_a_snapshot(bench: Bench) -> None:
    cluster = bench.controller.cluster
    with bench.unwritten():
        assert alter(bench, "s", setting("metrics", "*"), validate_only=True)[0] == "NONE"
    assert alter(bench, "s", setting("metrics", " a., b. "), setting("interval.ms", "100"))[0] == (
        "NONE"
    )
    assert bench.log[-1] == Config(
        resource_type=CLIENT_METRICS_RESOURCE, resource_name="s", name="metrics", value="a.,b."
    )
    assert alter(bench, "s", setting("metrics", "c.", ConfigOperation.APPEND))[0] == "NONE"
    expected = {"s": {"metrics": "a.,b.,c.", "interval.ms": "100"}}
    assert cluster.client_metrics == expected == image_of(cluster).client_metrics
    assert bench.replay().client_metrics == bench.restored().client_metrics == expected
    gone = (
        setting(name, None, ConfigOperation.DELETE) for name in ("metrics", "interval.ms", "none")
    )
    assert alter(bench, "s", *gone)[0] == "NONE"
    assert cluster.client_metrics == {} == image_of(cluster).client_metrics


@pytest.mark.parametrize(
    ("name", "change", "code", "message"),
    [
        ("", ("metrics", "*"), "INVALID_REQUEST", "Default client metrics resources"),
        ("s", ("metric", "*"), "INVALID_REQUEST", "Unknown client metrics configuration: metric"),
        ("s", ("interval.ms", "99"), "INVALID_REQUEST", "interval must be between 100 and 3600000"),
        ("s", ("interval.ms", "3600001"), "INVALID_REQUEST", "Invalid value 3600001"),
        ("s", ("interval.ms", "x"), "INVALID_CONFIG", "Not a number"),
        ("s", ("match", "client=x"), "INVALID_CONFIG", "Illegal client matching pattern"),
        ("s", ("match", None), "INVALID_REQUEST", "Null value not supported for : match"),
    ],
)
def test_a_bad_subscription_is_refused(
    bench: Bench, name: str, change: tuple[str, str | None], code: str, message: str
) -> None:
    with bench.unwritten():
        refused, text = alter(bench, name, setting(*change))
    assert refused == code
    assert message in (text or "")


def test_the_subscriptions_of_a_cluster_are_bounded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_configs, "SUBSCRIPTIONS_MAX", 2)
    outcomes = [alter(bench, name, setting("metrics", "*"))[0] for name in "abc"]
    assert outcomes == ["NONE", "NONE", "POLICY_VIOLATION"]


def test_subscriptions_need_a_level_that_older_nodes_lack() -> None:
    bench = Bench(features={METADATA_FEATURE: (1, LEVEL_OF_CLIENT_METRICS - 1)}).start(1)
    assert alter(bench, "s", setting("metrics", "*"))[0] == "UNSUPPORTED_VERSION"
    bench = Bench().start(1)
    assert alter(bench, "s", setting("metrics", "*"))[0] == "NONE"
    lower = FeatureUpdate(
        name=METADATA_FEATURE,
        level=LEVEL_OF_CLIENT_METRICS - 1,
        upgrade_type=UpgradeType.SAFE_DOWNGRADE,
    )
    [(code, message)] = bench.outcomes(UpdateFeatures(updates=(lower,)))
    assert code != "NONE"
    assert "subscriptions to metrics of clients" in (message or "")
    alter(bench, "s", setting("metrics", None, ConfigOperation.DELETE))
    [(code, _)] = bench.outcomes(UpdateFeatures(updates=(lower,)))
    assert code == "NONE"
