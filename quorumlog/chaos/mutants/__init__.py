"""Nodes with one broken rule each, which the lab must find.

Each is a module that runs as a node's program. It replaces rules of the node by broken ones. The
mutants of whole nodes in simulation run here, too: `planted` is the program of them all.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from quorumlog.chaos.registered import registered


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A node's program with a planted bug, and what a run must find."""

    module: str
    breaks: str


MUTANTS: Final[Mapping[str, Mutant]] = {
    "high-watermark": Mutant(
        module="quorumlog.chaos.mutants.high_watermark_follows_own_log",
        breaks="a leader acknowledges records that no follower has; pause_kill shows the loss",
    ),
    "broken-invariant": Mutant(
        module="quorumlog.chaos.mutants.breaks_its_own_invariant",
        breaks="the same, but the node detects the violation: its process ends by itself",
    ),
    "forgets-producers": Mutant(
        module="quorumlog.chaos.mutants.forgets_its_producers",
        breaks="a resent batch is appended twice; idempotent_send shows the duplicate",
    ),
    "spoils-reads": Mutant(
        module="quorumlog.chaos.mutants.spoils_what_it_serves",
        breaks="a fetch response has a corrupt byte; consumers detect it by the checksum",
    ),
    "low-ends": Mutant(
        module="quorumlog.chaos.mutants.answers_low_ends",
        breaks="every second ListOffsets response for a log's end is 7 too low",
    ),
    "late-reads": Mutant(
        module="quorumlog.chaos.mutants.serves_nothing_at_first",
        breaks="consumers receive no records for 12 s after a node's start: late, not lost",
    ),
}


_PLANTED: Final = "quorumlog.chaos.mutants.planted"


def every_mutant() -> dict[str, str]:
    """Return the rule that each mutant breaks, those of the simulation included."""
    from quorumlog.chaos.node_simulation.mutants import MUTANTS as SIMULATED

    return {
        **{name: mutant.breaks for name, mutant in MUTANTS.items()},
        **{name: mutant.breaks for name, mutant in SIMULATED.items()},
    }


def mutant_module(name: str) -> str:
    """Return the module to run as a node, perhaps with an argument behind it.

    Raises ValueError with the names there are.
    """
    if name in MUTANTS:
        return MUTANTS[name].module
    simulated = name.replace("-", "_")
    known = every_mutant()
    registered(known, simulated if simulated in known else name, "mutant")
    return f"{_PLANTED} {simulated}"
