"""The options of runs with brokers, drawn from the seed with the faults."""

from collections.abc import Collection, Mapping
from typing import Final

from quorumlog.chaos.faults.fault import Fault
from quorumlog.chaos.faults.kill import Kill
from quorumlog.chaos.faults.leadership import FalseNotice, Resign
from quorumlog.chaos.faults.machines import ClockDrift, PowerLoss
from quorumlog.chaos.faults.network import (
    Delay,
    Duplication,
    Loss,
    OneWayCut,
    Partition,
    Reorder,
)
from quorumlog.chaos.faults.pause import Pause
from quorumlog.chaos.schedule import Option, Schedule
from quorumlog.chaos.simulation.kernel.randomness import seeded
from quorumlog.chaos.simulation.kernel.swarm import draw_actions

BROKER_FAULTS: Final[tuple[type[Fault], ...]] = (
    Loss, Duplication, Delay, Reorder, Partition, OneWayCut, Kill, PowerLoss, Pause, ClockDrift,
    Resign, FalseNotice,
)  # fmt: skip


def draw_partition_schedule(
    seed: int, *, nodes: int, duration_us: int, faults: Collection[str] | None
) -> Schedule:
    """Return a schedule for one partition of which a single replica may commit."""
    return _draw("partition", seed, nodes, duration_us, faults, partitions=1, min_insync=1)


def draw_composed_schedule(
    seed: int, *, nodes: int, duration_us: int, faults: Collection[str] | None
) -> Schedule:
    """Return a schedule for several partitions that need two replicas to commit (KIP-966)."""
    least = min(2, nodes)
    return _draw("composed", seed, nodes, duration_us, faults, partitions=3, min_insync=least)


def _draw(
    world: str,
    seed: int,
    nodes: int,
    duration_us: int,
    faults: Collection[str] | None,
    *,
    partitions: int,
    min_insync: int,
) -> Schedule:
    rng = seeded("options", seed)
    options: Mapping[str, Option] = {
        "nodes": nodes,
        "partitions": partitions,
        "min_insync_replicas": min_insync,
        "produce_every_us": rng.randrange(30_000, 150_000),
        "fetch_bytes_max": rng.choice((1, 300, 1_000_000)),  # 1: one batch at a time
        "segment_bytes": rng.choice((400, 4_000, 1_000_000)),
    }
    actions = draw_actions(
        seed,
        kinds=BROKER_FAULTS,
        chosen=faults,
        node_ids=range(1, nodes + 1),
        duration_us=duration_us,
        hunted_role="partition-leader",
        every_ms=(200, 4_000),
    )
    return Schedule(
        seed=seed, duration_us=duration_us, actions=actions, workload=world, options=options
    )
