"""Whole nodes in simulation: a run is a function of its seed, and planted bugs are found."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from quorumlog.broker.controller_requests.isr_proposals import IsrProposals
from quorumlog.broker.following.core.session_client import SessionClient
from quorumlog.chaos.faults.machines import PowerLoss
from quorumlog.chaos.faults.processes import KillAll, Pause, PauseAll
from quorumlog.chaos.node_simulation.forked import RunFailed, run_forked, run_one
from quorumlog.chaos.node_simulation.loop import SimulatedLoop
from quorumlog.chaos.node_simulation.settings import NodesResult
from quorumlog.chaos.node_simulation.simulate import settings_of, simulate_nodes
from quorumlog.chaos.node_simulation.swarm import draw_swarm
from quorumlog.chaos.schedule import Action, Schedule
from quorumlog.cluster import ClusterShape
from quorumlog.metadata_quorum.controller.brokers import Sessions
from quorumlog.metadata_quorum.controller.controller import Controller
from quorumlog.wire.codec.identifiers import BrokerId

pytestmark = pytest.mark.integration

REPOSITORY: Final = Path(__file__).parents[2]
SEEDS: Final = range(1, 13)
FOUND_BY: Final = {
    # mutant: (a seed that finds it, the first rule or anomaly that tells)
    "commits_alone": (1, "isr-complete"),
    "ignores_divergence": (0, "committed-agree"),
    "elects_outside_the_isr": (7, "isr-complete"),
}


def simulated(
    *options: str, hash_seed: str = "0", interpreter: str = sys.executable
) -> dict[str, Any]:
    """Run the command in a process of its own."""
    command = [interpreter, "-m", "quorumlog", "simulate", "nodes", *options, "--json"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, capture_output=True, check=False, env=environment)
    assert done.stdout, done.stderr.decode()
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.fixture(scope="module")
def third() -> NodesResult:
    """Return the result of seed 3 in a process forked from this one: its hash seed is random."""
    return simulate_nodes(3, duration_ms=4_000)


def test_a_calm_run_is_valid() -> None:
    result = simulate_nodes(1, duration_ms=10_000, faults=())
    assert (result.valid, result.violations, result.anomalies) == (True, (), ())
    assert result.virtual_s > 10
    assert result.operations > 300


def test_the_same_seed_gives_the_same_run_in_any_process_and_with_any_hash_seed(
    third: NodesResult,
) -> None:
    options = ("--seed", "3", "--duration", "4s")
    elsewhere = simulated(*options, hash_seed="1")
    assert (elsewhere["digest"], elsewhere["operations"]) == (third.digest, third.operations)
    assert elsewhere["faults"]
    assert simulate_nodes(4, duration_ms=4_000).digest != third.digest


SHORT: Final = partial(
    simulate_nodes, 2, duration_ms=2_000, faults=("admin_churn", "restart", "kill", "kill_all")
)


@pytest.fixture(scope="module")
def in_order() -> str:
    """Return the digest of SHORT with the objects of its nodes where they are by default."""
    return SHORT().digest


@pytest.mark.parametrize("disorder", [1, 2])
def test_a_run_does_not_depend_on_where_its_objects_are(
    monkeypatch: pytest.MonkeyPatch, in_order: str, disorder: int
) -> None:
    """Nor on the runs before it. What has no order of its own is in the order of its addresses."""
    run_once, rng = SimulatedLoop._run_once, Random(disorder)
    kept: list[bytes] = []

    def run_in_disorder(loop: SimulatedLoop) -> None:
        """Take memory of all sizes before each turn, and give some of it back."""
        for _ in range(6):
            kept.append(bytes(rng.randrange(512)))
            if len(kept) > 5_000:
                kept[rng.randrange(5_000)] = kept.pop()
        run_once(loop)

    monkeypatch.setattr(SimulatedLoop, "_run_once", run_in_disorder)
    assert SHORT().digest == in_order


def other_interpreters() -> list[str]:
    """Return the interpreters of other versions here that have all that a node imports.

    QUORUMLOG_PYTHONS may name more, with colons between them.
    """
    here = f"python3.{sys.version_info.minor}"
    named = [f"python3.{minor}" for minor in (11, 12, 13)]
    candidates = [*os.environ.get("QUORUMLOG_PYTHONS", "").split(":"), *named]
    found = [shutil.which(name) for name in candidates if name and name != here]
    check = ["-c", "import quorumlog.chaos.node_simulation.run"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return [
        path
        for path in dict.fromkeys(found)
        if path is not None
        and not subprocess.run(
            [path, *check], check=False, capture_output=True, env=environment
        ).returncode
    ]


def test_the_same_seed_gives_the_same_run_on_other_versions_of_python(third: NodesResult) -> None:
    others = other_interpreters()
    if not others:
        pytest.skip("no other Python here has what a node imports: see QUORUMLOG_PYTHONS")
    options = ("--seed", "3", "--duration", "4s")
    digests = {path: simulated(*options, interpreter=path)["digest"] for path in others}
    assert digests == dict.fromkeys(others, third.digest)


def test_overlapping_faults_break_no_rule() -> None:
    """Each kind of fault is met by some seed."""
    outcomes = [*run_forked([settings_of(seed, duration_ms=8_000) for seed in SEEDS])]
    failed = [one for one in outcomes if isinstance(one, RunFailed) or one.valid is not True]
    assert failed == []
    met = {name for one in outcomes if isinstance(one, NodesResult) for name in one.faults}
    assert len(met) >= 20, met


@pytest.mark.parametrize("mutant", FOUND_BY)
def test_a_planted_bug_is_found(mutant: str) -> None:
    seed, told_by = FOUND_BY[mutant]
    result = simulate_nodes(seed, mutant=mutant, until_violated=True)
    assert result.valid is False
    assert result.violations[0].startswith(told_by)


CHANGES: Final = SessionClient.changes
SEND: Final = IsrProposals._send


def forgets_what_backs_off(session: Any, now_ms: int, keys: Any, question: Any) -> Any:
    changes = CHANGES(session, now_ms, keys, question)
    for key in [one for one in session._touched if question(one) is None]:
        del session._touched[key]
    return changes


async def loses_what_comes_meanwhile(proposals: Any, asked: Any) -> bool:
    granted = await SEND(proposals, asked)
    proposals._waiting.clear()
    return granted


@pytest.mark.parametrize(
    ("planted", "seed", "found"),
    [
        ((SessionClient, "changes", forgets_what_backs_off), 1, "gets it by the next fetch"),
        ((IsrProposals, "_send", loses_what_comes_meanwhile), 0, "its ISR proposal is under way"),
    ],
)
def test_a_replica_that_waits_for_nothing_is_found(
    monkeypatch: pytest.MonkeyPatch, planted: tuple[type[Any], str, Any], seed: int, found: str
) -> None:
    """A partition that is fetched no more is found long before its reader misses a record."""
    monkeypatch.setattr(*planted)
    result = simulate_nodes(seed, until_violated=True)
    assert result.valid is False
    assert found in result.violations[0]
    assert result.violations[0].startswith("awaited: node")


def test_a_run_ends_at_its_first_violated_rule_if_that_is_wanted() -> None:
    run = partial(simulate_nodes, 1, duration_ms=4_000, mutant="commits_alone")
    whole, ended = run(), run(until_violated=True)
    assert ended.violations == whole.violations[: len(ended.violations)] != ()
    assert ended.virtual_s < whole.virtual_s
    assert (ended.valid, ended.verdict["valid"]) == (False, "unknown")


def test_a_forgotten_generation_is_found_in_the_committed_log() -> None:
    result = simulate_nodes(
        1,
        duration_ms=8_000,
        workload="group_consume",
        mutant="forgets_generations",
        until_violated=True,
    )
    assert result.violations[0].startswith("group-generation")


@pytest.mark.parametrize("min_isr", ["1", "2"])
def test_a_reboot_while_all_are_killed_loses_nothing(min_isr: str) -> None:
    """docs/decisions/0011-eligible-leader-replicas.md."""
    drawn = settings_of(2, duration_ms=6_000, faults=(), config={"min.insync.replicas": min_isr})
    power_loss = Action(t_us=2_000_000, duration_us=1_000_000, fault=PowerLoss(), target=(2,))
    kill_all = Action(t_us=2_000_500, duration_us=1_000_000, fault=KillAll(), target="all")
    schedule = replace(drawn.schedule, actions=(power_loss, kill_all))
    both = replace(drawn, schedule=schedule, any_power_loss=True)
    result = run_one(both)
    assert result.faults == ("power_loss", "kill_all")
    assert (result.valid, result.violations) == (True, ())
    if min_isr == "1":
        broken = run_one(replace(both, mutant="resumes_without_its_records", until_violated=True))
        assert broken.violations[0].startswith("isr-complete")


@pytest.mark.parametrize("mutant", [None, "flushes_do_not_wait"])
def test_acknowledgements_after_a_flush_survive_the_power_loss_of_all(mutant: str | None) -> None:
    """docs/decisions/0015-flush-acks.md"""
    result = simulate_nodes(
        0,
        faults=("power_loss_all", "kill", "slow_fsync"),
        config={"log.flush.acks": "true"},
        mutant=mutant,
    )
    assert "power_loss_all" in result.faults
    assert result.valid is (mutant is None)


@pytest.mark.parametrize(
    "name",
    [
        "two-faults-hold-a-node-down",  # and one waits for another node
        "a-directory-is-renamed",  # that of a deleted topic
        "a-broker-without-its-log-directory",
        "a-shrunk-isr-waits-at-paused-nodes",  # while power is lost
        "all-that-stayed-are-killed",  # after a power loss
        "a-leader-without-news-of-its-successor",  # lacks what that one committed
        "pages-are-lost-before-all-are-killed",  # and its process still takes part
        "a-log-that-failed-is-not-read",  # by the oracle
    ],
)
def test_a_schedule_that_raised_a_false_alarm(name: str) -> None:
    file = Path(__file__).with_name("schedules") / f"{name}.json"
    schedule = Schedule.from_json(file.read_text())
    result = simulate_nodes(schedule.seed, schedule=schedule)
    assert (result.valid, result.violations) == (True, ())


def test_a_silent_broker_leaves_the_isr_before_one_that_is_known_to_be_dead() -> None:
    """A machine loses its power; before that is noticed, the other two brokers seem dead."""
    file = Path(__file__).with_name("schedules") / "the-silent-leave-first.json"
    schedule = Schedule.from_json(file.read_text())
    run = partial(
        simulate_nodes,
        schedule.seed,
        schedule=schedule,
        shape=ClusterShape(controllers=3, brokers=3),
    )
    result = run()
    assert (result.valid, result.violations) == (True, ())
    broken = run(mutant="lets_the_dead_leave_first", until_violated=True)
    assert broken.violations[0].startswith("isr-complete")


def fenced_during(pause: Pause, target: str, notes: Path) -> int:
    """Pause for less than a session, in an otherwise quiet run; return the number of fencings."""
    notes.write_text("")
    shape = ClusterShape(controllers=3, brokers=3)
    drawn = settings_of(0, duration_ms=7_000, faults=(), shape=shape)
    action = Action(t_us=3_000_000, duration_us=2_300_000, fault=pause, target=target)
    result = run_one(replace(drawn, schedule=replace(drawn.schedule, actions=(action,))))
    assert result.faults == (pause.name,)
    assert (result.valid, result.violations) == (True, ())
    return len(notes.read_text().splitlines())


def test_only_a_leader_that_is_paused_alone_is_fenced_before_its_session_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """docs/decisions/0006-dead-and-silent-brokers.md"""
    notes, decide = tmp_path / "fencings", Controller._decide_fencing

    def note(controller: Controller, broker_id: BrokerId) -> Any:
        with notes.open("a") as file:
            file.write(f"{broker_id}\n")
        return decide(controller, broker_id)

    monkeypatch.setattr(Controller, "_decide_fencing", note)
    assert fenced_during(Pause(), "partition-leader", notes) == 1
    assert fenced_during(PauseAll(), "all", notes) == 0
    monkeypatch.setattr(Sessions, "note_unanswered", lambda *_: None)
    assert fenced_during(Pause(), "partition-leader", notes) == 0


@pytest.mark.parametrize("fault", ["kill", "isolate_role"])
def test_nodes_survive_the_loss_of_a_rack(fault: str) -> None:
    shape = ClusterShape(5, racks=("a", "b", "c"))
    drawn = settings_of(0, duration_ms=6_000, faults=[fault], shape=shape)
    assert "rack" in {action.target for action in drawn.schedule.actions}
    result = run_one(drawn)
    assert (result.valid, result.violations, {*result.faults}) == (True, (), {fault})
    with pytest.raises(ValueError, match="the cluster has no racks"):
        simulate_nodes(0, schedule=drawn.schedule)


def test_a_schedule_of_a_file_is_replayed(third: NodesResult, tmp_path: Path) -> None:
    file = tmp_path / "schedule.json"
    file.write_text(third.schedule.to_json())
    assert simulated("--schedule", str(file))["digest"] == third.digest


def test_what_is_left_out_of_a_schedule_changes_no_other_fault() -> None:
    kinds = ("kill", "partition_one", "power_loss")
    whole = draw_swarm(1, duration_ms=30_000, faults=kinds).actions
    without = draw_swarm(1, duration_ms=30_000, faults=kinds[1:]).actions
    assert without == tuple(action for action in whole if action.fault.name != "kill")
