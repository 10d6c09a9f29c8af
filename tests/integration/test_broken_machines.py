"""Real processes with broken disks and clocks: nothing acknowledged is lost, and all return."""

import json
from pathlib import Path
from typing import Any

import pytest

from quorumlog.chaos.faults.admin import AdminChurn, Grow, Reassign, Throttle
from quorumlog.chaos.faults.copies import Wipe, WipeMajority
from quorumlog.chaos.faults.disks import DiskError, DiskFull, SlowFsync
from quorumlog.chaos.faults.fault import StepFault
from quorumlog.chaos.faults.machines import ClockStep
from quorumlog.chaos.faults.partitions import IsolateRole
from quorumlog.chaos.faults.processes import Kill, Pause
from quorumlog.chaos.history import read_history
from quorumlog.chaos.run.cluster_states import STATES_FILE
from quorumlog.chaos.run.run import run
from quorumlog.chaos.run.run_settings import RunSettings
from quorumlog.chaos.schedule import Action, Schedule, Target
from quorumlog.chaos.shim import shim as shims
from quorumlog.chaos.verify import verify_history
from quorumlog.cluster import ClusterShape

pytestmark = pytest.mark.integration


def action(t_ms: int, fault: StepFault, target: Target, duration_ms: int) -> Action:
    return Action(t_us=t_ms * 1000, fault=fault, target=target, duration_us=duration_ms * 1000)


def carry_out(
    out: Path,
    actions: tuple[Action, ...],
    *,
    valid: bool = True,
    may_skip: bool = False,
    **changes: Any,
) -> list[dict[str, Any]]:
    """Carry out a run with this verdict; return the rows of the nemesis.

    may_skip: the cluster may refuse what an administrator asks for while nodes are down.
    """
    end_us = max(one.end_us for one in actions)
    schedule = Schedule(seed=1, duration_us=end_us + 500_000, actions=actions)
    settings = RunSettings(
        out=out, schedule=schedule, seed=1, duration_s=schedule.duration_us / 1e6, **changes
    )
    summary = run(settings, lambda *_: None)
    assert summary.reads_complete
    assert summary.faults == len(actions) or may_skip
    verdict = verify_history(out, engine="local")
    assert verdict.valid is valid, verdict.as_json()
    return [row for row in read_history(out).to_pylist() if row["process"] == -1]


@pytest.mark.skipif(bool(shims.why_not()), reason=shims.why_not())
def test_disks_that_fail_and_clocks_that_jump_lose_nothing(tmp_path: Path) -> None:
    rows = carry_out(
        tmp_path,
        (
            action(100, ClockStep(direction="back"), (1,), 3_000),
            action(100, SlowFsync(us=200_000), "majority", 3_000),  # some fsync meets it
            # Each lasts until some write meets it, also where a leader must be elected first.
            action(200, DiskError(calls="writes"), (2,), 2_000),
            action(3_000, DiskFull(left_bytes=0), (3,), 6_000),
        ),
    )
    logs = {n: (tmp_path / f"cluster/node-{n}/node.log").read_text() for n in (2, 3)}
    assert "[Errno 5] Input/output error" in logs[2]
    assert "[Errno 28] No space left on device" in logs[3]
    assert ("start", "2", "#3 disk_error") in {(r["f"], r["node"], r["details"]) for r in rows}
    assert "node-ended" not in {row["f"] for row in rows}


def test_roles_are_held_by_nodes_of_a_real_cluster(tmp_path: Path) -> None:
    rows = carry_out(
        tmp_path,
        (
            # Far apart: on a loaded machine, too, some running node holds each role again.
            action(100, AdminChurn(), "all", 6_000),
            action(800, Kill(), "group-coordinator", 500),
            action(2_800, Pause(), "isr-follower", 1_000),
            action(5_500, IsolateRole(), "metadata-leader", 1_000),
        ),
        workload="group_consume",
    )
    details = [row["details"].partition(";")[0] for row in rows]
    assert "#2 kill: group-coordinator" in details
    assert "#3 pause: isr-follower" in details
    assert "#4 isolate_role: metadata-leader" in details
    logs = [path.read_text() for path in tmp_path.glob("cluster/node-*/node.log")]
    assert any("churn-" in log for log in logs), "topics were created"


def test_replicas_that_move_while_nodes_die_or_lose_their_disks_lose_nothing(
    tmp_path: Path,
) -> None:
    actions = (
        action(100, Throttle(), "all", 4_000),
        action(200, Reassign(), "any", 1_000),
        action(400, Grow(), "all", 1_000),
        action(700, Reassign(), "any", 1_000),
        action(1_000, Kill(), "partition-leader", 1_000),
        action(2_500, Reassign(), "any", 1_000),
        action(3_000, Grow(), "all", 1_000),
        action(3_200, Wipe(), "isr-follower", 1_000),
    )
    rows = carry_out(tmp_path, actions, shape=ClusterShape(4), may_skip=True)
    assert {"throttle", "reassign", "grow", "kill", "wipe"} <= {row["f"] for row in rows}
    (wiped,) = [row["node"] for row in rows if row["f"] == "wipe"]
    log = (tmp_path / f"cluster/node-{wiped}/node.log").read_text()
    assert log.count("is new, with directory id") == 2, "it copies everything again"
    seen = [json.loads(line) for line in (tmp_path / STATES_FILE).read_text().splitlines()]
    assert max(len(state["partitions"]) for state in seen) > 3, "the topic has grown"


def test_the_loss_of_most_copies_is_found(tmp_path: Path) -> None:
    rows = carry_out(tmp_path, (action(1_000, WipeMajority(), "majority", 2_000),), valid=False)
    assert "node-ended" not in {row["f"] for row in rows}
