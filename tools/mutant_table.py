"""Print, for each simulated world, in how many seeds each mutant is found: a table for the docs.

Run `python -m tools.mutant_table [WORLD ...]`. It exits with 1 if a seed fails without a mutant.
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from quorumlog.chaos.simulation import WORLDS, simulate

SEEDS = 40
DURATION_MS = 10_000


def failing_seeds(world: str, mutant: str | None) -> list[int]:
    """Return the seeds below SEEDS in which a rule breaks."""
    return [
        seed
        for seed in range(SEEDS)
        if not simulate(seed, world=world, mutant=mutant, duration_ms=DURATION_MS).valid
    ]


def main(worlds: list[str]) -> int:
    """Print the tables; return the exit status."""
    status = 0
    for world in worlds or [*WORLDS]:
        mutants = WORLDS[world].mutants
        with ProcessPoolExecutor() as pool:
            false_alarms, *found = pool.map(partial(failing_seeds, world), [None, *mutants])
        status |= bool(false_alarms)
        lines = [f"\n### {world}\n", f"| mutant | the rule that it breaks | of {SEEDS} seeds |"]
        lines.append("|---|---|---|")
        for (name, rule), seeds in zip(mutants.items(), found, strict=True):
            lines.append(f"| `{name}` | {rule} | {len(seeds)} |")
        lines.append(f"\nWithout a mutant: {len(false_alarms)} of {SEEDS}.\n")
        sys.stdout.write("\n".join(lines))
        sys.stdout.flush()
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
