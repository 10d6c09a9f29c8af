"""The options of a run of the quorum world, drawn from its seed with the faults."""

from collections.abc import Collection, Mapping
from typing import Final

from quorumlog.chaos.faults.fault import Fault
from quorumlog.chaos.faults.kill import Kill
from quorumlog.chaos.faults.leadership import FalseNotice, Resign
from quorumlog.chaos.faults.machines import (
    ClockDrift,
    FsyncError,
    InterruptedWrite,
    PowerLoss,
    SlowDisk,
)
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

QUORUM_FAULTS: Final[tuple[type[Fault], ...]] = (
    Loss, Duplication, Delay, Reorder, Partition, OneWayCut, Kill, PowerLoss, Pause, ClockDrift,
    SlowDisk, FsyncError, Resign, FalseNotice, InterruptedWrite,
)  # fmt: skip
OBSERVERS_MAX: Final = 2


def draw_schedule(
    seed: int, *, nodes: int, duration_us: int, faults: Collection[str] | None
) -> Schedule:
    """Return the schedule of a seed; `faults`: exactly these kinds, None: a random choice.

    Voters are numbered from 1 to `nodes`, observers after them.
    """
    rng = seeded("options", seed)
    observers = rng.randrange(OBSERVERS_MAX + 1)
    options: Mapping[str, Option] = {
        "nodes": nodes,
        "observers": observers,
        "propose_every_us": rng.randrange(20_000, 200_000),
        "batch_records_max": rng.randrange(1, 4),
        "fetch_bytes_max": rng.choice((1, 300, 1_000_000)),  # 1: one batch at a time
        "segment_bytes": rng.choice((400, 4_000, 1_000_000)),
        "is_death_noticed": rng.random() < 0.5,
        "is_minority_left_down": rng.random() < 0.5,
    }
    machines = nodes + observers
    actions = draw_actions(
        seed,
        kinds=QUORUM_FAULTS,
        chosen=faults,
        node_ids=range(1, machines + 1),
        duration_us=duration_us,
        hunted_role="metadata-leader",
        files=("", "quorum-state"),
    )
    return Schedule(
        seed=seed, duration_us=duration_us, actions=actions, workload="quorum", options=options
    )
