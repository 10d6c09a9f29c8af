"""Seeds hold, mutants are found, runs replay. `quorumlog simulate` runs more seeds."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quorumlog.chaos.faults.processes import Kill
from quorumlog.chaos.mutants.quorum import QUORUMS
from quorumlog.chaos.schedule import Action, Schedule, ScheduleError
from quorumlog.chaos.simulation import replay, shrink, simulate
from quorumlog.chaos.simulation.worlds.registry import QUORUM_FAULTS
from quorumlog.invariants import InvariantViolation
from tests.support.metadata_quorum.scripted_cluster import ScriptedCluster
from tests.support.sizes import tries

ROOT = Path(__file__).parents[2]
SCHEDULES = sorted(Path(__file__).with_name("schedules").glob("*.json"))

# Where each mutant is found: first and last seed, and the options of the run.
FOUND: dict[str, tuple[int, int, dict[str, Any]]] = {
    "vote_not_persisted": (2, 12, {}),
    "vote_before_persisted": (1, 11, {}),
    "second_vote": (2, 12, {}),
    "no_log_check_in_votes": (2, 12, {}),
    "fetch_before_flush": (0, 10, {}),
    "leader_counts_unflushed": (0, 10, {}),
    "minority_commits": (0, 10, {}),
    "commits_older_epochs": (2, 12, {}),
    "commits_epoch_start": (4, 14, {}),
    "leader_sees_no_divergence": (0, 10, {}),
    "truncates_too_little": (0, 10, {}),
    "truncates_too_much": (8, 18, {}),
    "leader_restarts_as_leader": (7, 17, {}),
    "answers_stale_fetches": (0, 10, {}),
    "waits_for_ever": (63, 73, {}),
    "never_resigns": (0, 10, {}),
    "half_snapshot": (13, 23, {}),
    "skips_what_is_gone": (12, 22, {}),
    "forgets_start": (19, 29, {}),
    "forgets_snapshot_epoch": (48, 58, {}),
    "deadlines_begin_before_the_write": (0, 10, {}),
    "timeouts_ignore_the_disk": (3, 13, {}),
    "ignores_the_disks_of_others": (56, 66, {}),
}


ELECTED = "deliver {0}->{1} / deliver {0}->{2} / deliver {1}->{0} / deliver {2}->{0}"
BY_3_AND_4 = " / ".join([ELECTED.format(5, 3, 4)] * 2)  # pre-votes, votes
BY_2_AND_3 = " / ".join([ELECTED.format(1, 2, 3)] * 2)
# Nodes 1 and 5 lead in turn, and each time only the leader itself gets its first record.
TWO_DIVERGING_EPOCHS = f"""
    start 5 / at 1000 / deliver
    kill 1 / isolate 2 / died 1 at 3 / died 1 at 4 / died 1 at 5
    at 1160 / {BY_3_AND_4} / isolate 5 / kill 5
    boot 1 / join 2 / died 1 at 2 / isolate 4
    at 2200 / {BY_2_AND_3} / isolate 1 / kill 1
    boot 5 / join 5 / join 4 / isolate 2
    at 4400 / {BY_3_AND_4} / isolate 5 / kill 5
    isolate 3 / isolate 4 / boot 1 / join 1 / join 2 / join 3 / join 4
    at 6600 / deliver / at 7800 / deliver / append 1 x / deliver
    boot 5 / join 5 / at 8800 / deliver
"""


def play(script: str, cluster: ScriptedCluster) -> ScriptedCluster:
    for line in script.strip().splitlines():
        for command in line.split("/"):
            cluster.run(command.strip())
    return cluster


@pytest.mark.parametrize("first_seed", range(0, tries(50), 10))
def test_seeds_hold(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 10):
        result = simulate(seed, duration_ms=10_000)
        assert result.valid, result


@pytest.mark.parametrize("nodes", [1, 2, 4, 5])
def test_seeds_hold_with_other_numbers_of_voters(nodes: int) -> None:
    for seed in range(100, 100 + tries(5)):
        result = simulate(seed, nodes=nodes, duration_ms=8_000)
        assert result.valid, result
        assert result.committed > 0


def test_a_commit_and_a_resignation_in_one_step() -> None:
    assert simulate(1434, duration_ms=17_000).valid


def test_without_faults_one_election_is_enough() -> None:
    """A disk that is slow from the start counts as a fault."""
    seeds = (4, 6, 7, 9, 10, 13)
    for seed in seeds[: tries(len(seeds))]:
        result = simulate(seed, duration_ms=8_000, faults=())
        assert result.schedule.options["slow_disks"] == 0
        assert result.valid
        assert result.elections == 1
        assert result.committed > 30


@pytest.mark.parametrize("fault", [fault.name for fault in QUORUM_FAULTS])
def test_each_class_of_faults_alone(fault: str) -> None:
    result = simulate(7, duration_ms=6_000, faults=[fault])
    assert result.valid, result


@pytest.mark.planted
@pytest.mark.parametrize("mutant", FOUND)
def test_a_mutant_is_found(mutant: str) -> None:
    first, last, arguments = FOUND[mutant]
    arguments = {"duration_ms": 10_000, **arguments}
    violations = (
        simulate(seed, mutant=mutant, **arguments).violation for seed in range(first, last + 1)
    )
    assert any(violations)


def test_a_mutant_that_seeds_do_not_find_is_found_by_a_script() -> None:
    """The log of node 5 has two epochs (2, 4) that the leader's has not (3, 5)."""
    mutant = QUORUMS["high_watermark_from_divergence"].parts.quorum
    cluster = play(TWO_DIVERGING_EPOCHS, ScriptedCluster())
    assert cluster.machines[5].log == cluster.machines[1].log
    with pytest.raises(InvariantViolation, match="committed records are not truncated"):
        play(TWO_DIVERGING_EPOCHS, ScriptedCluster(mutant))
    by_script = {"high_watermark_from_divergence", "sees_no_epoch_below_start"}  # `test_kip_630`
    assert {*FOUND, *by_script} == {*QUORUMS}


@pytest.mark.planted
def test_every_rule_that_a_mutant_can_break_is_broken_by_one() -> None:
    """The rest is of the disk, or is implied: `test_oracle` breaks them by hand."""
    cases = [
        ("vote-durable", "vote_not_persisted", 2),
        ("epoch-durable", "vote_before_persisted", 1),
        ("leader-completeness", "no_log_check_in_votes", 6),
        ("commit-durable", "minority_commits", 0),
        ("commit-own-epoch", "commits_older_epochs", 2),
        ("no-truncation-below-commit", "truncates_too_much", 8),
        ("log-matching", "leader_restarts_as_leader", 7),
        ("fetch-epoch", "answers_stale_fetches", 0),
        ("liveness", "waits_for_ever", 63),
    ]
    for rule, mutant, seed in cases:
        violation = simulate(seed, duration_ms=10_000, mutant=mutant).violation
        assert violation is not None
        assert violation.startswith(f"{rule}: ")


@pytest.mark.planted
def test_a_failing_run_tells_its_end_and_the_schedule_shrinks_to_the_same_rule() -> None:
    failing = simulate(8, duration_ms=10_000, mutant="truncates_too_much")
    assert len(failing.trace) > 10
    assert any("FetchResponse" in line and "=> Follower epoch=" in line for line in failing.trace)
    assert any(" fault " in line for line in failing.trace)
    smallest = shrink(failing)
    assert len(smallest.actions) <= 3
    again = replay(smallest, mutant="truncates_too_much")
    assert again.violation is not None
    assert again.violation.startswith("no-truncation-below-commit: ")
    assert simulate(5, duration_ms=1_000).trace == ()


@pytest.mark.parametrize("path", SCHEDULES, ids=lambda path: path.stem)
def test_a_schedule_that_a_mutant_fails(path: Path) -> None:
    """The file name has the mutant; the product passes it. Made by `shrink`."""
    mutant, _ = path.stem.split("-")
    schedule = Schedule.from_json(path.read_text())
    assert replay(schedule).valid
    assert not replay(schedule, mutant=mutant).valid


@pytest.mark.planted
def test_a_schedule_shrinks_and_replays() -> None:
    failing = next(
        result
        for result in (
            simulate(seed, duration_ms=10_000, mutant="leader_restarts_as_leader")
            for seed in range(7, 12)
        )
        if not result.valid
    )
    smallest = Schedule.from_json(shrink(failing).to_json())
    assert len(smallest.actions) < len(failing.schedule.actions)
    assert not replay(smallest, mutant="leader_restarts_as_leader").valid
    assert replay(smallest).valid


def test_a_dead_leader_costs_little_if_its_death_is_noticed() -> None:
    kill = Action(t_us=5_000_000, fault=Kill(), target="metadata-leader", duration_us=20_000_000)
    committed = []
    for is_death_noticed in (False, True):
        calm = simulate(3, duration_ms=8_000, faults=()).schedule
        options = {
            **calm.options, "is_death_noticed": is_death_noticed, "propose_every_us": 20_000,
            "slow_disks": 0,
        }  # fmt: skip
        result = replay(replace(calm, options=options, actions=(kill,)))
        assert result.valid
        assert result.elections == 2
        committed.append(result.committed)
    assert committed[1] > committed[0] + 50  # more than a second of writes


def test_equal_arguments_give_an_equal_result() -> None:
    assert simulate(11, duration_ms=5_000) == simulate(11, duration_ms=5_000)
    assert simulate(11, duration_ms=5_000).digest != simulate(12, duration_ms=5_000).digest


def test_the_digest_depends_on_no_hash_seed() -> None:
    command = (
        "from quorumlog.chaos.simulation import simulate;"
        "print(*(simulate(seed, duration_ms=8_000).digest for seed in (4, 5, 6)))"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", command],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for hash_seed in ("0", "1")
    }
    here = " ".join(simulate(seed, duration_ms=8_000).digest for seed in (4, 5, 6))
    assert digests == {here}


def test_a_schedule_that_does_not_fit_is_refused() -> None:
    schedule = simulate(0, duration_ms=1_000).schedule
    with pytest.raises(ValueError, match="no world is called 'tea'"):
        replay(replace(schedule, workload="tea"))
    with pytest.raises(ScheduleError, match="the options of the world quorum are nodes, "):
        replay(replace(schedule, options={"nodes": 3}))
    with pytest.raises(ScheduleError, match="option nodes: '3' is not like 1"):
        replay(replace(schedule, options={**schedule.options, "nodes": "3"}))


def test_what_there_is_not() -> None:
    with pytest.raises(ValueError, match="no fault 'rain'"):
        simulate(0, faults=["rain"])
    with pytest.raises(ValueError, match="no mutant 'x'"):
        simulate(0, mutant="x")
