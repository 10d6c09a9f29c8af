"""Whole nodes whose voters change, and lose their disks: nothing is lost, and bugs are found."""

from dataclasses import replace
from typing import Any, Final

import pytest

from quorumlog.chaos.faults.change_voters import ChangeVoters, ReplaceVoter
from quorumlog.chaos.faults.wipe import Wipe
from quorumlog.chaos.node_simulation.forked import run_one
from quorumlog.chaos.node_simulation.simulate import settings_of, simulate_nodes
from quorumlog.chaos.node_simulation.voter_mutants import VOTERS
from quorumlog.chaos.schedule import Action
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
FOUND: Final = {
    name: found[NODES]["seed"]
    for name, found in read().items()
    if found.get(NODES, {}).get("seed") is not None
}
OF_VOTERS: Final = (
    *VOTERS.rules,
    "counts_the_old_voters",
    "changes_two_at_once",
    "changes_too_soon",
    "removed_voter_stands",
    "snapshot_without_voters",
)


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        (2, {}),
        (3, {"config": SMALL_SNAPSHOTS}),
        (4, {"shape": ClusterShape(controllers=3, brokers=3)}),
    ],
)
def test_nothing_is_lost_while_voters_change(seed: int, options: dict[str, Any]) -> None:
    result = simulate_nodes(seed, duration_ms=8_000, faults=CHANGED, **options)
    assert (result.violations, result.anomalies) == ((), ())
    assert {"change_voters", "replace_voter"} & {*result.faults}


def test_a_disk_that_was_emptied_makes_another_voter_before_the_next_one_is() -> None:
    """Two voters of three that lose their disks one after the other would be the quorum's end."""
    drawn = settings_of(1, duration_ms=8_000, faults=())
    second_us = 1_000_000
    actions = (
        Action(t_us=0, fault=ChangeVoters(), target=(3,), duration_us=second_us),
        Action(t_us=2 * second_us, fault=Wipe(), target=(1,), duration_us=second_us // 2),
        Action(t_us=3 * second_us, fault=Wipe(), target=(2,), duration_us=second_us // 2),
        Action(t_us=4 * second_us, fault=ReplaceVoter(), target=(1,), duration_us=second_us // 2),
        Action(t_us=6 * second_us, fault=Wipe(), target=(2,), duration_us=second_us // 2),
    )
    result = run_one(replace(drawn, schedule=replace(drawn.schedule, actions=actions)))
    assert (result.valid, result.violations) == (True, ())
    assert result.faults == ("change_voters", "wipe", "replace_voter", "wipe")


@pytest.mark.parametrize("mutant", OF_VOTERS)
def test_a_planted_bug_is_found(mutant: str) -> None:
    told_by = read()[mutant][NODES]["told_by"]
    assert simulated(mutant, NODES, FOUND[mutant]) == told_by
