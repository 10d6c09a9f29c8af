"""Whole nodes whose voters change, and lose their disks: nothing is lost, and bugs are found."""

from typing import Any, Final

import pytest

from quorumlog.chaos.mutants.voters import VOTER_RESPONSES
from quorumlog.chaos.node_simulation.simulate import simulate_nodes
from quorumlog.cluster import ClusterShape
from tools.recall_runs import NODES, simulated
from tools.recall_table import read

pytestmark = pytest.mark.integration

CHANGED: Final = ("change_voters", "replace_voter", "kill", "pause", "partition_one")
SMALL_SNAPSHOTS: Final = {
    "metadata.log.max.record.bytes.between.snapshots": "300",
    "metadata.log.segment.bytes": "400",
    "metadata.max.retention.bytes": "500",
}
OF_VOTERS: Final = (
    *VOTER_RESPONSES,
    "counts_any_directory",
    "counts_the_old_voters",
    "changes_two_at_once",
    "changes_too_soon",
    "removed_voter_stands",
    "snapshot_without_voters",
    "wiped_voter_votes",
)


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        (5, {}),
        (0, {"config": SMALL_SNAPSHOTS}),
        (6, {"shape": ClusterShape(controllers=3, brokers=3)}),
    ],
)
def test_nothing_is_lost_while_voters_change(seed: int, options: dict[str, Any]) -> None:
    result = simulate_nodes(seed, duration_ms=8_000, faults=CHANGED, **options)
    assert (result.violations, result.anomalies) == ((), ())
    assert {"change_voters", "replace_voter"} & {*result.faults}


@pytest.mark.parametrize("mutant", OF_VOTERS)
def test_a_planted_bug_is_found(mutant: str) -> None:
    noted = read()[mutant][NODES]
    assert simulated(mutant, NODES, noted["seed"]) == noted["told_by"] != ""
