"""Schedules of faults: drawn from a seed, without overlap, and read back as saved."""

from pathlib import Path

import pytest

from quorumlog.chaos.faults import FaultAction, Schedule, draw


def test_one_seed_gives_one_schedule() -> None:
    def drawn(seed: int) -> Schedule:
        return draw(seed, faults=["kill", "pause"], duration_ms=60_000, mean_gap_ms=500)

    assert drawn(3) == drawn(3)
    assert drawn(3) != drawn(4)


@pytest.mark.parametrize("seed", range(50))
def test_faults_fit_the_phase_and_do_not_overlap(seed: int) -> None:
    schedule = draw(seed, faults=["kill", "kill-all", "pause"], duration_ms=30_000, mean_gap_ms=300)
    assert len(schedule.actions) >= 3
    end_us = 0
    for action in schedule.actions:
        assert action.t_us >= end_us
        end_us = action.end_us
    assert end_us <= 30_000_000


def test_a_short_run_meets_leaders_of_both_kinds() -> None:
    for seed in range(20):
        schedule = draw(seed, faults=["kill"], duration_ms=30_000, mean_gap_ms=500)
        targets = {action.target for action in schedule.actions}
        assert {"partition-leader", "metadata-leader"} <= targets, seed


def test_no_faults_is_an_empty_schedule() -> None:
    assert draw(1, faults=[], duration_ms=1000, mean_gap_ms=100).actions == ()


def test_a_schedule_is_read_back_as_it_was_saved(tmp_path: Path) -> None:
    action = FaultAction(t_us=1, fault="kill", target="any", duration_us=2)
    schedule = Schedule(seed=9, actions=(action,))
    schedule.save(tmp_path / "s.json")
    assert Schedule.load(tmp_path / "s.json") == schedule


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"format": 2}',
        '{"format": 1, "seed": 1, "actions": [{"fault": "kill"}]}',
        '{"format": 1, "seed": 1, "actions": '
        '[{"t_us": 1, "fault": "flood", "target": "any", "duration_us": 1}]}',
    ],
)
def test_somebodys_schedule_is_not_trusted(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(ValueError, match=r"schedule|fault"):
        Schedule.load(tmp_path / "s.json")
