"""Which faults a run says that it has not met: those that it was asked for."""

from pathlib import Path

from quorumlog.chaos.faults.registry import step_fault
from quorumlog.chaos.run.run import faults_asked_for
from quorumlog.chaos.run.run_settings import RunSettings
from quorumlog.chaos.schedule import Action, Schedule


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
