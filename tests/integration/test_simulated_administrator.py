"""Whole nodes whose replicas move, grow and are throttled: nothing is lost, and bugs are found."""

from typing import Any, Final

import pytest

from quorumlog.chaos.mutants.administration import CHURN, MOVES, PARTITIONS_AT_FIRST
from quorumlog.chaos.node_simulation.settings import PARTITIONS
from quorumlog.chaos.node_simulation.simulate import simulate_nodes
from quorumlog.cluster import ClusterShape

pytestmark = pytest.mark.integration

CHURNING: Final = ("admin_churn", "grow", "kill", "kill_all")
THROTTLED: Final[dict[str, Any]] = {
    "faults": ("throttle", "kill"),
    "config": {"replica.fetch.max.bytes": "200"},
}
FOUND_BY: Final[dict[str, tuple[int, str, dict[str, Any]]]] = {
    "completes_at_once": (
        3,
        "not live",
        {"faults": ("reassign", "kill"), "shape": ClusterShape(controllers=3, brokers=5)},
    ),
    "keeps_the_removed_in_the_isr": (
        0,
        "not live",
        {"faults": ("reassign", "kill"), "shape": ClusterShape(controllers=3, brokers=5)},
    ),
    "takes_no_batch_that_began_earlier": (
        2,
        "not live",
        {"faults": ("delete_records", "wipe", "kill")},
    ),
    "never_releases_throttles": (1, "not live", THROTTLED),
    "throttles_in_sync_replicas": (0, "in-sync-served", THROTTLED),
    "leaves_grown_partitions_leaderless": (9, "not live", {"faults": CHURNING}),
    "places_on_the_unregistered": (3, "placed-registered", {"faults": CHURNING}),
    "publishes_levels_at_once": (6, "metadata-agree", {"faults": CHURNING}),
    "creates_in_parts": (0, "created-whole", {"faults": CHURNING}),
}


@pytest.mark.parametrize("seed", [2, 4])
def test_nothing_is_lost_while_replicas_move_and_logs_are_cleaned(seed: int) -> None:
    result = simulate_nodes(
        seed,
        duration_ms=8_000,
        faults=("reassign", "grow", "throttle", "admin_churn", "kill"),
        workload="compacted_register",
        config={
            "log.cleaner.backoff.ms": "200",
            "log.segment.bytes": "1500",
            "log.cleaner.min.cleanable.ratio": "0.01",
            "log.retention.check.interval.ms": "300",
        },
    )
    assert (result.violations, result.anomalies) == ((), ())
    assert {*result.faults} == {"reassign", "grow", "throttle", "admin_churn", "kill"}


def test_replicas_move_to_other_brokers_while_machines_lose_their_power() -> None:
    result = simulate_nodes(
        1,
        duration_ms=8_000,
        faults=("reassign", "power_loss", "wipe"),
        shape=ClusterShape(controllers=3, brokers=5),
    )
    assert (result.violations, result.anomalies) == ((), ())
    assert "reassign" in result.faults


def test_a_group_reads_on_while_its_topic_grows() -> None:
    result = simulate_nodes(2, duration_ms=6_000, faults=("grow", "kill"), workload="group_consume")
    assert (result.valid, result.violations) == (True, ())
    assert "grow" in result.faults


@pytest.mark.parametrize("workload", ["", "group_consume", "txn_transfer"])
def test_clients_with_quotas_go_on_and_nothing_is_lost(workload: str) -> None:
    options: dict[str, Any] = {"workload": workload} if workload else {}
    result = simulate_nodes(1, duration_ms=6_000, faults=("quota", "kill"), **options)
    assert (result.valid, result.violations, result.anomalies) == (True, (), ())
    assert "quota" in result.faults


def test_the_mutant_of_grown_topics_spares_the_partitions_of_every_run() -> None:
    assert PARTITIONS_AT_FIRST == PARTITIONS


@pytest.mark.parametrize("mutant", [*MOVES, *CHURN])
def test_a_planted_bug_is_found(mutant: str) -> None:
    seed, told_by, options = FOUND_BY[mutant]
    result = simulate_nodes(seed, mutant=mutant, until_violated=True, **options)
    assert result.valid is False
    assert result.violations[0].startswith(told_by)
