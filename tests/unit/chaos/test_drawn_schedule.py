"""The schedule that `chaos run` draws from a seed."""

from itertools import pairwise

import pytest

from quorumlog.chaos.drawn_schedule import draw_schedule
from quorumlog.chaos.faults.registry import FaultUnsupported
from quorumlog.chaos.schedule import Schedule


def test_one_seed_gives_one_schedule() -> None:
    def drawn(seed: int) -> Schedule:
        return draw_schedule(seed, faults=["kill", "pause"], duration_ms=60_000)

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


@pytest.mark.parametrize("seed", range(50))
def test_faults_fit_the_phase_and_do_not_overlap(seed: int) -> None:
    schedule = draw_schedule(seed, faults=["kill", "kill_all", "pause"], duration_ms=30_000)
    assert len(schedule.actions) >= 3
    end_us = 0
    for action in schedule.actions:
        assert action.t_us >= end_us
        end_us = action.end_us
    assert end_us <= 30_000_000


@pytest.mark.parametrize("seed", range(50))
def test_faults_may_overlap_and_then_all_end(seed: int) -> None:
    schedule = draw_schedule(
        seed, faults=["kill", "kill_all", "pause"], duration_ms=60_000, overlap=True
    )
    actions = schedule.actions
    assert max(action.end_us for action in actions) <= 60_000_000
    at_once = [
        sum(other.t_us <= action.t_us < other.end_us for other in actions) for action in actions
    ]
    assert 2 <= max(at_once) <= 3
    calm = [
        later.t_us
        for earlier, later in pairwise(actions)
        if all(
            other.end_us + 1_500_000 <= later.t_us for other in actions if other.t_us < later.t_us
        )
    ]
    assert len(calm) >= (len(actions) - 1) // 4


def test_a_short_run_meets_leaders_of_both_kinds() -> None:
    for seed in range(20):
        schedule = draw_schedule(seed, faults=["kill"], duration_ms=30_000)
        targets = {action.target for action in schedule.actions}
        assert {"partition-leader", "metadata-leader"} <= targets, seed


def test_no_faults_is_an_empty_schedule() -> None:
    assert draw_schedule(1, faults=[], duration_ms=1000).actions == ()


def test_a_fault_that_no_process_can_have_is_not_drawn() -> None:
    with pytest.raises(FaultUnsupported, match="fault loss: "):
        draw_schedule(1, faults=["loss"], duration_ms=9_000)


def test_a_fault_that_names_its_role_hits_no_other() -> None:
    faults = ["kill:group-coordinator", "isolate-role:client", "pause"]
    actions = draw_schedule(3, faults=faults, duration_ms=60_000).actions
    targets = {(action.fault.name, action.target) for action in actions}
    assert {name for name, _ in targets} == {"kill", "isolate_role", "pause"}
    assert {target for name, target in targets if name == "kill"} == {"group-coordinator"}
    assert {target for name, target in targets if name == "isolate_role"} == {"client"}


def test_a_role_that_a_fault_cannot_have_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^kill:client: the target of kill is one of partition-"):
        draw_schedule(1, faults=["kill:client"], duration_ms=60_000)
