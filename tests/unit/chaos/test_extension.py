"""How long the faults of a run go on: until enough acknowledgements lie among them."""

from pathlib import Path
from typing import Any

import pytest

from quorumlog.chaos.drawn_schedule import draw_schedule
from quorumlog.chaos.nemesis import Nemesis
from quorumlog.chaos.run.clusters import RunClusters
from quorumlog.chaos.run.extension import EXTENDS_TO, AcksInFaults, required_by_default
from quorumlog.chaos.run.run import _Phases, _schedule
from quorumlog.chaos.run.run_directory import SCHEDULE_FILE
from quorumlog.chaos.run.run_settings import RunSettings
from quorumlog.chaos.schedule import Schedule
from tests.support.chaos.nodes_in_memory import NodesInMemory


def test_only_acknowledgements_among_the_faults_count() -> None:
    counted = AcksInFaults(required=50)
    counted.observe(40, is_breaking=False)  # during the warm-up
    counted.observe(70, is_breaking=True)
    assert (counted.count, counted.are_too_few) == (30, True)
    counted.observe(90, is_breaking=True)
    assert (counted.count, counted.are_too_few) == (50, False)
    counted.observe(900, is_breaking=False)
    assert counted.count == 50
    assert not AcksInFaults(required=0).are_too_few


def test_a_tenth_of_the_offered_operations_is_required_unless_it_is_given() -> None:
    assert required_by_default(600.0, 60.0) == 3_600
    settings = RunSettings(out=Path(), duration_s=30.0, options={"rate": 200})
    assert settings.required_in_faults == 600
    given = RunSettings(out=Path(), duration_s=30.0, acks_in_faults=7)
    assert given.required_in_faults == 7
    with pytest.raises(ValueError, match="--acks-in-faults -1: it must be 0 or more"):
        RunSettings(out=Path(), acks_in_faults=-1)


def test_the_actions_of_an_extension_continue_the_drawn_ones_to_three_times_the_duration() -> None:
    settings = RunSettings(out=Path(), faults=("kill", "pause"), duration_s=20.0, seed=4)
    schedule, more = _schedule(settings, 3)
    drawn = draw_schedule(4, faults=("kill", "pause"), duration_ms=20_000, overlap=True)
    assert schedule.actions == drawn.actions
    assert more[0].t_us > schedule.actions[-1].t_us
    assert 20e6 < more[-1].end_us <= EXTENDS_TO * 20e6
    given = RunSettings(out=Path(), schedule=schedule)
    assert _schedule(given, 3)[1] == ()


def test_an_extended_schedule_is_kept_with_its_added_actions(tmp_path: Path) -> None:
    settings = RunSettings(out=tmp_path, faults=("kill",), duration_s=20.0, seed=4)
    schedule, more = _schedule(settings, 3)
    unused: Any = None
    phases = _Phases(
        settings=settings,
        driver=unused,
        clusters=RunClusters(bootstrap="", back_end=None),
        schedule=schedule,
        more=more,
        history=unused,
        progress=unused,
    )
    nemesis = Nemesis(NodesInMemory(), schedule, topic="t", record=lambda *_: None)
    phases._keep_extended(nemesis)
    assert not (tmp_path / SCHEDULE_FILE).exists()  # nothing was added
    nemesis.extended.append(more[0])
    phases._keep_extended(nemesis)
    kept = Schedule.from_json((tmp_path / SCHEDULE_FILE).read_text())
    assert kept.actions == (*schedule.actions, more[0])
    assert (kept.paced, kept.duration_us, kept.seed) == (True, more[0].end_us, 4)
