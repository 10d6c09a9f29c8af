"""The random options of a run of the world `transactions`."""

from typing import Final

from quorumlog.chaos.schedule import Option
from quorumlog.chaos.simulation.kernel.randomness import Rng

NEVER_MS: Final = 1_000_000  # longer than any run
PRODUCERS_MAX: Final = 4


def draw_transaction_options(rng: Rng, nodes: int) -> tuple[int, dict[str, Option]]:
    """Draw the options of a run: `nodes` brokers, then one machine for each client."""
    producers = rng.randrange(1, PRODUCERS_MAX + 1)
    level = rng.choice((0, 1, 2, 2, 2))
    options: dict[str, Option] = {
        "nodes": nodes,
        "partitions": 1,
        "data_partitions": rng.randrange(1, 4),
        "min_insync_replicas": min(2, nodes),
        "producers": producers,
        "transactional_ids": rng.randrange(1, producers + 1),
        "transaction_version": level,
        "modern_producers": rng.randrange(producers + 1) if rng.random() < 0.3 else producers,
        "timeout_ms": rng.choice((800, 2_000, 6_000)),
        "expiration_ms": rng.choice((4_000, NEVER_MS, NEVER_MS)),
        "first_epoch": rng.choice((-1, -1, 32_700, 32_762, 32_765)),  # -1: the ids are new
        "has_administrator": rng.random() < 0.4,
        "careless_producers": rng.random() < 0.3,
        "fetch_bytes_max": rng.choice((1, 300, 1_000_000)),  # 1: one batch at a time
        "segment_bytes": rng.choice((400, 4_000, 1_000_000)),
    }
    options["deletes_topic"] = rng.random() < 0.25
    # After a long timeout, a response may reach a coordinator that was replaced and leads again.
    options["marker_timeout_us"] = rng.choice((1_200_000, 1_200_000, 1_200_000, 6_000_000))
    options["has_stragglers"] = rng.random() < 0.3
    return nodes + producers + 1, options
