"""Runs of a nemesis with the actions that a test names."""

from collections.abc import Callable

from quorumlog.chaos.back_ends.back_end import BackEnd
from quorumlog.chaos.faults.registry import step_fault
from quorumlog.chaos.nemesis import Nemesis
from quorumlog.chaos.schedule import Action, Schedule, Target

Rows = list[tuple[str, str, str]]


def action(t_s: float, fault: str, target: Target, duration_s: float = 1e-6) -> Action:
    return Action(
        t_us=round(t_s * 1e6),
        fault=step_fault(fault)(),
        target=target,
        duration_us=round(duration_s * 1e6),
    )


def nemesis_of(
    nodes: BackEnd, *actions: Action, seed: int = 1, record: Callable[..., object] = lambda *_: None
) -> Nemesis:
    duration_us = max([1_000_000, *(one.end_us for one in actions)])
    schedule = Schedule(seed=seed, duration_us=duration_us, actions=actions)
    return Nemesis(nodes, schedule, topic="t", record=record)


async def carry_out(nodes: BackEnd, *actions: Action, seed: int = 1) -> Rows:
    """Inflict the actions; return the rows that the nemesis has recorded."""
    rows: Rows = []
    await nemesis_of(nodes, *actions, seed=seed, record=lambda *row: rows.append(row)).run()
    return rows
