"""Schedules: drawn from a seed, read from a file, asked for by a run; faults that take copies."""

import errno
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Final

import pytest

from quorumlog.chaos.drawn_schedule import draw_schedule
from quorumlog.chaos.faults.copies import AMOUNTS, Damage, DamageClosed, OldDirectory
from quorumlog.chaos.faults.disks import FsyncLoss
from quorumlog.chaos.faults.fault import Scene, Step, StepFault
from quorumlog.chaos.faults.processes import Kill, KillAll, Pause
from quorumlog.chaos.faults.registry import FaultUnsupported, step_fault
from quorumlog.chaos.node_simulation.disk_faults import DiskFaults
from quorumlog.chaos.node_simulation.process import OWNER, Clock, Process
from quorumlog.chaos.node_simulation.settings import JUDGED, NodesSettings
from quorumlog.chaos.node_simulation.swarm import KINDS, LOSSES, draw_swarm
from quorumlog.chaos.run.run import faults_asked_for
from quorumlog.chaos.run.run_settings import RunSettings
from quorumlog.chaos.schedule import Action, Schedule, ScheduleError
from quorumlog.storage.io.disk import read_file


def test_one_seed_gives_one_schedule_that_meets_leaders_of_both_kinds() -> None:
    def drawn(seed: int) -> Schedule:
        return draw_schedule(seed, faults=["kill", "pause"], duration_ms=60_000)

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)
    for seed in range(20):
        schedule = draw_schedule(seed, faults=["kill"], duration_ms=30_000)
        targets = {action.target for action in schedule.actions}
        assert {"partition-leader", "metadata-leader"} <= targets, seed


@pytest.mark.parametrize("seed", range(50))
def test_faults_fit_the_phase_and_do_not_overlap(seed: int) -> None:
    schedule = draw_schedule(seed, faults=["kill", "kill_all", "pause"], duration_ms=30_000)
    assert len(schedule.actions) >= 3
    end_us = 0
    for action in schedule.actions:
        assert action.t_us >= end_us
        end_us = action.end_us
    assert end_us <= 30_000_000


def together(actions: Sequence[Action], *names: str) -> int:
    """Return how many faults of these names last at once, at most."""
    those = [action for action in actions if action.fault.name in names]
    return max(sum(one.t_us <= action.t_us < one.end_us for one in those) for action in those)


@pytest.mark.parametrize(("nodes", "away"), [(1, 1), (3, 1), (4, 1), (5, 2), (7, 3)])
def test_at_most_a_minority_of_the_nodes_is_hit_at_once(nodes: int, away: int) -> None:
    faults = ["kill", "partition_one", "pause", "reply_lost", "delay", "slow_fsync"]
    seen, mild = 0, 0
    for seed in range(30):
        actions = draw_schedule(
            seed, faults=faults, duration_ms=60_000, overlap=True, nodes=nodes
        ).actions
        assert together(actions, "kill", "partition_one", "pause") <= away
        assert together(actions, "reply_lost", "delay", "slow_fsync") <= 2
        seen = max(seen, together(actions, "kill", "partition_one", "pause"))
        mild = max(mild, together(actions, "kill", "delay", "reply_lost"))
    assert (seen, mild >= 2) == (away, True)


def test_a_fault_that_hits_most_nodes_lasts_alone() -> None:
    faults = ["kill", "kill_all", "pause_kill", "pause:majority"]
    for seed in range(30):
        actions = draw_schedule(
            seed, faults=faults, duration_ms=60_000, overlap=True, nodes=7
        ).actions
        for action in actions:
            means_to = action.fault.name in {"kill_all", "pause_kill"}
            if means_to or action.target == "majority":
                others = [one for one in actions if one is not action]
                assert not any(
                    one.t_us < action.end_us and action.t_us < one.end_us for one in others
                )


def test_a_longer_schedule_begins_with_the_shorter_one() -> None:
    faults = ["kill", "pause", "reply_lost"]
    for seed in range(20):
        short, long = (
            draw_schedule(seed, faults=faults, duration_ms=ms, overlap=True).actions
            for ms in (20_000, 60_000)
        )
        assert long[: len(short)] == short
        assert len(long) > len(short)


@pytest.mark.parametrize("seed", range(50))
def test_faults_may_overlap_and_then_all_end(seed: int) -> None:
    schedule = draw_schedule(
        seed, faults=["kill", "kill_all", "pause"], duration_ms=60_000, overlap=True, nodes=7
    )
    actions = schedule.actions
    assert max(action.end_us for action in actions) <= 60_000_000
    assert 1 <= together(actions, "kill", "kill_all", "pause") <= 3
    calm = [
        later.t_us
        for earlier, later in pairwise(actions)
        if all(
            other.end_us + 1_500_000 <= later.t_us for other in actions if other.t_us < later.t_us
        )
    ]
    assert len(calm) >= (len(actions) - 1) // 4


def test_no_faults_is_an_empty_schedule_and_impossible_ones_are_refused() -> None:
    assert draw_schedule(1, faults=[], duration_ms=1000).actions == ()
    with pytest.raises(FaultUnsupported, match="fault loss: "):
        draw_schedule(1, faults=["loss"], duration_ms=9_000)
    with pytest.raises(ValueError, match=r"^kill:client: the target of kill is one of partition-"):
        draw_schedule(1, faults=["kill:client"], duration_ms=60_000)


def test_a_fault_that_names_its_role_hits_no_other() -> None:
    faults = ["kill:group-coordinator", "isolate-role:client", "pause"]
    actions = draw_schedule(3, faults=faults, duration_ms=60_000).actions
    targets = {(action.fault.name, action.target) for action in actions}
    assert {name for name, _ in targets} == {"kill", "isolate_role", "pause"}
    assert {target for name, target in targets if name == "kill"} == {"group-coordinator"}
    assert {target for name, target in targets if name == "isolate_role"} == {"client"}


def one_action(**changes: object) -> str:
    action = {"t_us": 1, "duration_us": 2, "fault": "kill", "target": "any", **changes}
    action = {name: value for name, value in action.items() if value is not None}
    return json.dumps({"format": 2, "seed": 1, "duration_us": 9, "actions": [action]})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "a JSON object is expected"),
        ("{", "not JSON"),
        ('{"format": 3}', "format 3 is not a schedule's"),
        ('{"version": 1, "faults": []}', "format None is not a schedule's"),
        ('{"format": 2, "seed": 1, "duration_us": 9}', "actions = None: a list"),
        ('{"format": 2, "seed": 1, "duration_us": 9, "actions": [], "x": 1}', "no field 'x'"),
        ('{"format": 2, "seed": NaN, "duration_us": 9, "actions": []}', "NaN"),
        (one_action(t_us=None), "action 0: t_us = None: a whole number"),
        (one_action(t_us=-1), "action 0: t_us -1"),
        (one_action(t_us=True), "t_us = True: a whole number"),
        (one_action(fault="flood"), "no fault is called 'flood'; choose from kill, kill_all"),
        (one_action(target="boss"), "the target of kill is partition-leader, .*, not 'boss'"),
        (one_action(target=["1"]), r"target \['1'\]: one of partition-leader"),
        (one_action(fault="kill_all", target=[1]), "the target of kill_all is 'all'"),
        (one_action(direction="in"), "fault kill has no parameter 'direction'"),
        (one_action(fault="one_way_cut"), "fault one_way_cut needs direction"),
        (one_action(fault="one_way_cut", direction="up"), "direction = 'up': one of in, out"),
        (one_action(fault="loss", target="all", ppm="9"), "ppm = '9': a whole number is expected"),
        (one_action(fault="loss", target="all", ppm=-9), "ppm = -9: it must be from 0 to 1000000"),
    ],
)
def test_a_file_that_is_no_schedule_is_refused_with_the_place(text: str, said: str) -> None:
    with pytest.raises(ScheduleError, match=said):
        Schedule.from_json(text)


def test_a_file_of_format_1_is_read() -> None:
    text = json.dumps(
        {
            "format": 1,
            "seed": 3,
            "actions": [
                {"t_us": 5, "fault": "kill-all", "target": "all", "duration_us": 6},
                {"t_us": 20, "fault": "pause", "target": "any", "duration_us": 1},
            ],
        }
    )
    assert Schedule.from_json(text) == Schedule(
        seed=3,
        duration_us=21,
        actions=(
            Action(t_us=5, fault=KillAll(), target="all", duration_us=6),
            Action(t_us=20, fault=Pause(), target="any", duration_us=1),
        ),
    )


def test_a_drawn_schedule_is_paced_and_a_file_says_so() -> None:
    drawn = draw_schedule(3, faults=["kill"], duration_ms=20_000)
    assert drawn.paced
    assert Schedule.from_json(drawn.to_json()) == drawn
    assert not Schedule.from_json(one_action()).paced
    assert "paced" not in Schedule.from_json(one_action()).to_json()
    with pytest.raises(ScheduleError, match="paced = 'yes': true or false is expected"):
        Schedule.from_json(json.dumps({**json.loads(one_action()), "paced": "yes"}))


def test_actions_out_of_order_are_refused() -> None:
    late, early = (Action(t_us=t_us, fault=Kill(), target="any") for t_us in (2, 1))
    with pytest.raises(ValueError, match="order of t_us"):
        Schedule(seed=1, duration_us=9, actions=(late, early))


def test_a_run_of_a_schedule_is_asked_for_its_faults_alone(tmp_path: Path) -> None:
    drawn = RunSettings(out=tmp_path, faults=("kill", "pause:partition-leader"))
    assert faults_asked_for(drawn) == ["kill", "pause"]
    named = ("pause", "wipe", "pause")
    actions = tuple(
        Action(t_us=0, duration_us=1, fault=step_fault(name)(), target="any") for name in named
    )
    schedule = Schedule(seed=1, duration_us=1, actions=actions)
    given = RunSettings(out=tmp_path, faults=("kill",), schedule=schedule)
    assert faults_asked_for(given) == ["pause", "wipe"]


SCENE: Final = Scene(
    action_id="7", victims=(2,), running=(1, 2), all_nodes=(1, 2, 3), rng=Random(1)
)


def names(schedule: Schedule) -> set[str]:
    return {action.fault.name for action in schedule.actions}


def test_they_are_drawn_by_name_only_and_then_losses_are_judged() -> None:
    assert {*KINDS} >= JUDGED
    for seed in range(100):
        schedule = draw_swarm(seed, duration_ms=20_000)
        assert not names(schedule) & JUDGED
        assert not NodesSettings(schedule=schedule).losses_are_judged
    for name in JUDGED:
        schedule = draw_swarm(1, duration_ms=20_000, faults=[name, "kill"])
        assert names(schedule) == {name, "kill"}
        assert NodesSettings(schedule=schedule).losses_are_judged


def test_lost_answers_with_a_kill_are_drawn_where_idempotence_is_judged() -> None:
    plain, judging = (
        [draw_swarm(seed, duration_ms=9_000, workload=workload) for seed in range(60)]
        for workload in ("append_read", "idempotent_send")
    )
    assert not any("ack_kill" in names(one) for one in plain)
    assert 4 < sum("ack_kill" in names(one) for one in judging) < 30
    for one, other in zip(plain, judging, strict=True):  # the other kinds stay as they are
        left = [action for action in other.actions if action.fault.name != "ack_kill"]
        assert [*one.actions] == left or len({*names(one)}) == 1


def test_a_choice_of_them_is_drawn_from_the_seed() -> None:
    drawn = [names(draw_swarm(seed, duration_ms=20_000, faults=[LOSSES])) for seed in range(50)]
    assert all(one & JUDGED for one in drawn)
    assert set().union(*drawn) >= JUDGED - {"damage_closed"}
    assert len({frozenset(one) for one in drawn}) > 25
    alone = draw_swarm(3, duration_ms=20_000, faults=["damage"])
    chosen = next(seed for seed, one in enumerate(drawn) if "damage" in one and "kill" in one)
    with_others = draw_swarm(chosen, duration_ms=20_000, faults=[LOSSES, "kill"])
    alone = draw_swarm(chosen, duration_ms=20_000, faults=["damage"])
    assert alone.actions == tuple(
        action for action in with_others.actions if action.fault.name == "damage"
    )


def test_a_schedule_with_them_is_read_as_written_and_any_damage_is_one_of_all() -> None:
    schedule = draw_swarm(4, duration_ms=30_000, faults=[*sorted(JUDGED)])
    assert Schedule.from_json(schedule.to_json()) == schedule
    seen = set()
    for seed in range(200):
        scene = Scene(action_id="1", victims=(1,), running=(1,), all_nodes=(1,), rng=Random(seed))
        *_, damage = Damage().inject(scene)
        assert isinstance(damage, Step)
        seen.add(damage.amount)
    assert seen == {*AMOUNTS.values()}


@pytest.mark.parametrize(
    ("fault", "operations"),
    [
        (Damage(what="log_cut"), [("kill", 0), ("damage", AMOUNTS["log_cut"])]),
        (DamageClosed(what="index_gone"), [("stop", 0), ("damage", AMOUNTS["index_gone"])]),
        (OldDirectory(age_us=9), [("copy_directories", 7), ("kill", 0), ("put_back", 7)]),
        (
            OldDirectory(directories="one", end="stop"),
            [("copy_directories", 7), ("stop", 0), ("put_back_one", 7)],
        ),
        (FsyncLoss(alive_us=5), [("fail_flush", 0), ("kill", 0)]),
    ],
)
def test_a_fault_ends_the_process_before_its_files_are_touched(
    fault: StepFault, operations: list[tuple[str, int]]
) -> None:
    steps = [step for step in fault.inject(SCENE) if isinstance(step, Step)]
    assert [(step.operation, step.amount) for step in steps] == operations
    assert {step.node_ids for step in steps} == {(2,)}
    assert fault.needs == {name for name, _ in operations} | {"start"} | (
        {"kill", "stop", "put_back", "put_back_one"} if isinstance(fault, OldDirectory) else set()
    )
    (start,) = fault.heal(SCENE)
    assert isinstance(start, Step)
    assert start.operation == "start"


def test_a_flush_that_fails_is_that_of_a_log() -> None:
    faults = DiskFaults(
        Random(1), may_lose_memory=lambda: True, pages_lost=lambda: None, happened=lambda _: None
    )
    disk = faults.disk
    disk.on_operation = faults.on_operation
    others = [
        "/data/__cluster_metadata-0/00000000000000000000.log",
        "/data/a-0/leader-epoch-checkpoint",
        "/data/recovery-point-offset-checkpoint",
    ]
    log = "/data/a-0/00000000000000000000.log"
    for directory in ("/data/__cluster_metadata-0", "/data/a-0"):
        disk.mkdir(directory)
    files = {path: disk.open(path, create=True) for path in (*others, log)}
    for file in files.values():
        file.append([b"records"])
    faults.fail_next_flush()
    token = OWNER.set(Process("n1.1", "host", Clock()))
    try:
        for path in others:
            files[path].fsync()
        with pytest.raises(OSError, match=log) as failed:
            files[log].fsync()
        files[log].fsync()  # once
    finally:
        OWNER.reset(token)
    assert failed.value.errno == errno.EIO
    assert faults.has_lost_pages
    disk.kill()
    disk.evict_lost_pages(Random(1))
    assert read_file(disk, log) == bytes(len(b"records"))
    assert read_file(disk, others[0]) == b"records"


def test_with_racks_a_swarm_hits_whole_racks_and_without_it_draws_as_before() -> None:
    def targets(*, has_racks: bool) -> list[object]:
        drawn = draw_swarm(3, duration_ms=60_000, faults=["kill", "wipe"], has_racks=has_racks)
        return [(action.fault.name, action.target) for action in drawn.actions]

    assert ("kill", "rack") not in targets(has_racks=False)
    assert ("kill", "rack") in targets(has_racks=True)
    assert ("wipe", "rack") not in targets(has_racks=True)  # it would destroy several copies
    drawn = draw_schedule(1, faults=["kill:rack:b", "pause:rack"], duration_ms=30_000, overlap=True)
    assert {action.target for action in drawn.actions} == {"rack:b", "rack"}
    assert Schedule.from_json(drawn.to_json()) == drawn
