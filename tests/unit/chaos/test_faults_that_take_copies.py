"""Faults that take copies: drawn only where they are named, and what their steps and disks do."""

import errno
from random import Random
from typing import Final

import pytest

from quorumlog.chaos.faults.copies import AMOUNTS, Damage, DamageClosed, OldDirectory
from quorumlog.chaos.faults.disks import FsyncLoss
from quorumlog.chaos.faults.fault import Scene, Step, StepFault
from quorumlog.chaos.node_simulation.disk_faults import DiskFaults
from quorumlog.chaos.node_simulation.process import OWNER, Clock, Process
from quorumlog.chaos.node_simulation.settings import JUDGED, NodesSettings
from quorumlog.chaos.node_simulation.swarm import KINDS, LOSSES, draw_swarm
from quorumlog.chaos.schedule import Schedule
from quorumlog.storage.io.disk import read_file

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


def test_a_schedule_with_them_is_read_as_it_was_written() -> None:
    schedule = draw_swarm(4, duration_ms=30_000, faults=[*sorted(JUDGED)])
    assert Schedule.from_json(schedule.to_json()) == schedule


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


def test_any_damage_is_one_of_all() -> None:
    seen = set()
    for seed in range(200):
        scene = Scene(action_id="1", victims=(1,), running=(1,), all_nodes=(1,), rng=Random(seed))
        *_, damage = Damage().inject(scene)
        assert isinstance(damage, Step)
        seen.add(damage.amount)
    assert seen == {*AMOUNTS.values()}


def test_a_flush_that_fails_is_that_of_a_log() -> None:
    faults = DiskFaults(
        Random(1),
        may_lose_memory=lambda: True,
        pages_lost=lambda: None,
        happened=lambda _: None,
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
