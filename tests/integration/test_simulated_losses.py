"""Whole nodes whose copies are taken: a record that one copy holds stays; a shared loss is told."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from quorumlog.chaos.faults.copies import Damage
from quorumlog.chaos.node_simulation.forked import run_one
from quorumlog.chaos.node_simulation.simulate import settings_of, simulate_nodes
from quorumlog.chaos.schedule import Schedule

pytestmark = pytest.mark.integration

CONFIG: Final = {"min.insync.replicas": "2"}
FLUSHED: Final = {**CONFIG, "log.flush.interval.messages": "5"}
HARMLESS: Final = {"checkpoint_gone", "index_bit", "index_gone"}


def test_checkpoints_and_indexes_that_are_gone_or_damaged_cost_nothing() -> None:
    settings = settings_of(
        113,
        duration_ms=8_000,
        faults=("damage", "kill", "kill_all", "crash_loop"),
        config={**CONFIG, "log.index.interval.bytes": "100", "log.segment.bytes": "3000"},
    )
    kept = tuple(
        action
        for action in settings.schedule.actions
        if not isinstance(action.fault, Damage) or action.fault.what in HARMLESS
    )
    result = run_one(replace(settings, schedule=replace(settings.schedule, actions=kept)))
    assert "damage" in result.faults
    assert (result.valid, result.violations, result.losses) == (True, (), ())


def test_a_loss_that_all_copies_share_is_no_finding_if_it_is_told() -> None:
    """Two of three machines lose power, then the third; an operator elects what is left."""
    result = simulate_nodes(
        4, duration_ms=8_000, faults=("power_loss_several", "kill"), config=CONFIG
    )
    assert (result.valid, result.violations, result.anomalies) == (True, (), ())
    assert result.losses


def test_a_run_with_losses_is_a_function_of_its_seed() -> None:
    runs = [
        simulate_nodes(seed, duration_ms=3_000, faults=("losses",), config=FLUSHED)
        for seed in (2, 2, 3)
    ]
    assert runs[0].digest == runs[1].digest != runs[2].digest
    assert (runs[0].losses, runs[0].violations) == (runs[1].losses, runs[1].violations)


@pytest.mark.parametrize(
    ("name", "config", "is_shared"),
    [
        ("a-damaged-member-of-the-elr-leads", CONFIG, False),
        ("an-old-directory-is-believed", CONFIG, False),
        ("a-failed-flush-is-no-loss", FLUSHED, False),
        ("the-last-to-come-back-leads", CONFIG, True),
    ],
)
def test_no_replica_leads_with_less_than_the_best_copy(
    name: str, config: dict[str, str], is_shared: bool
) -> None:
    file = Path(__file__).with_name("schedules") / f"{name}.json"
    schedule = Schedule.from_json(file.read_text())
    result = simulate_nodes(schedule.seed, schedule=schedule, config=config)
    assert (result.valid, result.violations) == (True, ())
    assert bool(result.losses) is is_shared
