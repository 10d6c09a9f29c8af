"""The options of runs with a consumer group, drawn from the seed with the faults."""

from collections.abc import Collection, Mapping
from typing import Final

from quorumlog.chaos.schedule import Option, Schedule
from quorumlog.chaos.simulation.kernel.randomness import seeded
from quorumlog.chaos.simulation.kernel.swarm import draw_actions
from quorumlog.chaos.simulation.worlds.brokers.options import BROKER_FAULTS

MEMBERS_MAX: Final = 4


def draw_groups_schedule(
    seed: int, *, nodes: int, duration_us: int, faults: Collection[str] | None
) -> Schedule:
    """Return the schedule of a seed; `faults`: exactly these kinds, None: a random choice.

    Brokers are numbered from 1 to `nodes`, the machines of the members after them.
    """
    rng = seeded("options", seed)
    members = rng.randrange(2, MEMBERS_MAX + 1)
    options: Mapping[str, Option] = {
        "nodes": nodes,
        "partitions": 1,
        "min_insync_replicas": min(2, nodes),
        "members": members,
        "static_members": rng.randrange(members),
        "partitions_read": rng.randrange(members, 2 * members + 1),
        "commit_every_us": rng.randrange(40_000, 300_000),
        "session_ms": rng.choice((800, 1_200, 3_000)),  # the last: longer than a rebalance
        "fetch_bytes_max": rng.choice((1, 300, 1_000_000)),  # 1: one batch at a time
        "segment_bytes": rng.choice((400, 4_000, 1_000_000)),
    }
    actions = draw_actions(
        seed,
        kinds=BROKER_FAULTS,
        chosen=faults,
        node_ids=range(1, nodes + members + 1),
        duration_us=duration_us,
        hunted_role="partition-leader",
        every_ms=(200, 4_000),
    )
    return Schedule(
        seed=seed, duration_us=duration_us, actions=actions, workload="groups", options=options
    )
