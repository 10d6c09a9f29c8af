"""However faults overlap: no node seems to end by itself but those that did, and all come back."""

import asyncio
import random

import pytest

from quorumlog.chaos.faults.fault import MILLION, NODE_ROLES, StepFault
from quorumlog.chaos.faults.registry import STEP_FAULTS
from quorumlog.chaos.nemesis import NODE_ENDED, Nemesis
from quorumlog.chaos.schedule import Action, Schedule, Target
from tests.support.chaos.slow_nodes import SlowNodes
from tests.support.sizes import tries

ON_PROCESSES = [
    kind
    for _, kind in sorted(STEP_FAULTS.items())
    if kind.needs <= SlowNodes.operations and not kind.imposes
]


def overlapping(rng: random.Random) -> tuple[Action, ...]:
    times = sorted(rng.randrange(5 * MILLION) for _ in range(rng.randint(2, 6)))
    return tuple(
        Action(
            t_us=t_us,
            fault=(kind := rng.choice(ON_PROCESSES))(),
            target=target_of(kind, rng),
            duration_us=rng.randrange(4 * MILLION),
        )
        for t_us in times
    )


def target_of(kind: type[StepFault], rng: random.Random) -> Target:
    if {*NODE_ROLES} <= {*kind.targets} and rng.random() < 0.5:
        return tuple(sorted(rng.sample((1, 2, 3), rng.randint(1, 3))))
    return rng.choice(kind.targets)


async def carry_out(seed: int, *, ends: bool) -> None:
    rng = random.Random(seed)
    nodes = SlowNodes(rng)
    nodes.roles = {"partition-leader": [rng.randint(1, 3)], "metadata-leader": [rng.randint(1, 3)]}
    rows: list[tuple[str, str, str]] = []
    schedule = Schedule(seed=seed, duration_us=10 * MILLION, actions=overlapping(rng))
    nemesis = Nemesis(nodes, schedule, topic="t", record=lambda *row: rows.append(row))
    at_s, node_id = rng.uniform(0, 8), rng.randint(1, 3)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(nemesis.run())
        if ends:
            await asyncio.sleep(at_s)
            nodes.end_by_itself(node_id)
    if not nodes.ended:
        back = {1, 2, 3} - nodes.gave_up  # some of them after their fault
        assert (nodes.is_running >= back, nodes.paused) == (True, set()), f"seed {seed}: {rows}"
    await nemesis.heal()
    assert (nodes.is_running, nodes.paused) == ({1, 2, 3}, set()), f"seed {seed}: {rows}"
    ended = [int(node) for f, node, _ in rows if f == NODE_ENDED]
    assert ended == nodes.ended, f"seed {seed}: {rows}"


@pytest.mark.jumping_time
async def test_no_fault_of_the_lab_passes_for_a_node_that_ended_by_itself() -> None:
    for seed in range(tries(2_000)):
        await carry_out(seed, ends=False)


@pytest.mark.jumping_time
async def test_a_node_that_ended_by_itself_is_found_among_overlapping_faults() -> None:
    for seed in range(tries(500)):
        await carry_out(seed, ends=True)
