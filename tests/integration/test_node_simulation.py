"""Whole nodes in simulation: a run is a function of its seed, and planted bugs are found."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from quorumlog.chaos.faults.kill_all import KillAll
from quorumlog.chaos.faults.machines import PowerLoss
from quorumlog.chaos.node_simulation.forked import RunFailed, run_one
from quorumlog.chaos.node_simulation.settings import NodesResult
from quorumlog.chaos.node_simulation.simulate import settings_of, simulate_many, simulate_nodes
from quorumlog.chaos.node_simulation.swarm import draw_swarm
from quorumlog.chaos.schedule import Action

pytestmark = pytest.mark.integration

SEEDS: Final = range(1, 21)
FOUND_BY: Final = {
    # mutant: (a seed that finds it, the first rule or anomaly that tells)
    "commits_alone": (1, "isr-complete"),
    "ignores_divergence": (6, "committed-agree"),
    "elects_outside_the_isr": (23, "isr-complete"),
}


def simulated(
    *options: str, hash_seed: str = "0", interpreter: str = sys.executable
) -> dict[str, Any]:
    """Run the command in a process of its own."""
    command = [interpreter, "-m", "quorumlog", "simulate", "nodes", *options, "--json"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, capture_output=True, check=False, env=environment)
    assert done.stdout, done.stderr.decode()
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_a_calm_run_is_valid() -> None:
    result = simulate_nodes(1, duration_ms=10_000, faults=())
    assert (result.valid, result.violations, result.anomalies) == (True, (), ())
    assert result.virtual_s > 10
    assert result.operations > 300


def test_the_same_seed_gives_the_same_run_in_any_process_and_with_any_hash_seed() -> None:
    options = ("--seed", "3", "--duration", "8s")
    first, second = (simulated(*options, hash_seed=seed) for seed in ("1", "77"))
    assert first["digest"] == second["digest"]
    assert first["faults"]
    assert first["operations"] == second["operations"]
    assert simulate_nodes(3, duration_ms=8_000).digest == first["digest"]
    assert simulate_nodes(4, duration_ms=8_000).digest != first["digest"]


def test_overlapping_faults_break_no_rule() -> None:
    """Each kind of fault is met by some seed."""
    outcomes = [*simulate_many([settings_of(seed, duration_ms=8_000) for seed in SEEDS])]
    failed = [one for one in outcomes if isinstance(one, RunFailed) or one.valid is not True]
    assert failed == []
    met = {name for one in outcomes if isinstance(one, NodesResult) for name in one.faults}
    assert len(met) >= 8, met


@pytest.mark.parametrize("mutant", FOUND_BY)
def test_a_planted_bug_is_found(mutant: str) -> None:
    seed, told_by = FOUND_BY[mutant]
    result = simulate_nodes(seed, mutant=mutant)
    assert result.valid is False
    assert result.violations[0].startswith(told_by)


def test_with_two_in_sync_replicas_a_reboot_while_all_are_killed_loses_nothing() -> None:
    """docs/decisions/0062-a-rebooted-broker-alone-in-the-isr-leads.md."""
    drawn = settings_of(1, duration_ms=6_000, faults=(), config={"min.insync.replicas": "2"})
    power_loss = Action(t_us=2_000_000, duration_us=1_000_000, fault=PowerLoss(), target=(2,))
    kill_all = Action(t_us=2_000_500, duration_us=1_000_000, fault=KillAll(), target="all")
    schedule = replace(drawn.schedule, actions=(power_loss, kill_all))
    both = replace(drawn, schedule=schedule, any_power_loss=True)
    result = run_one(both)
    assert result.faults == ("power_loss", "kill_all")
    assert (result.valid, result.violations) == (True, ())
    with_one = run_one(replace(both, config={}))
    assert with_one.valid is False  # as decision 62 says: mend it, and this line goes


def test_a_leader_that_does_not_know_its_successor_may_lack_what_that_one_committed() -> None:
    result = simulate_nodes(110)
    assert (result.valid, result.violations) == (True, ())


@pytest.mark.parametrize(
    ("seed", "duration_ms", "workload"),
    [
        (1, 30_000, "append_read"),  # two faults hold a node down, and one waits for another node
        (3, 8_000, "metadata_linearizable"),  # a deleted topic's directory is renamed
        (7, 8_000, "metadata_linearizable"),  # a broker goes on without its log directory
        (164, 8_000, "append_read"),  # power is lost while a shrunk ISR waits at paused nodes
        (223, 8_000, "append_read"),  # each node that stayed is killed after a power loss
    ],
)
def test_a_seed_that_raised_a_false_alarm(seed: int, duration_ms: int, workload: str) -> None:
    result = simulate_nodes(seed, duration_ms=duration_ms, workload=workload)
    assert (result.valid, result.violations) == (True, ())


def test_a_schedule_of_a_file_is_replayed(tmp_path: Path) -> None:
    file = tmp_path / "schedule.json"
    schedule = settings_of(5, duration_ms=4_000).schedule
    file.write_text(schedule.to_json())
    expected = simulate_nodes(5, schedule=schedule)
    assert simulated("--schedule", str(file))["digest"] == expected.digest


def test_what_is_left_out_of_a_schedule_changes_no_other_fault() -> None:
    kinds = ("kill", "partition", "power_loss")
    whole = draw_swarm(1, duration_ms=30_000, faults=kinds).actions
    without = draw_swarm(1, duration_ms=30_000, faults=kinds[1:]).actions
    assert without == tuple(action for action in whole if action.fault.name != "kill")
