"""The quorum worlds of a schedule, sound or with one rule broken."""

from typing import Final

from quorumlog.chaos.schedule import Schedule
from quorumlog.chaos.simulation.kernel.run import World
from quorumlog.chaos.simulation.worlds.quorum.mutants import MUTANTS, UncheckedQuorum
from quorumlog.chaos.simulation.worlds.quorum.voter_mutants import VOTER_MUTANTS
from quorumlog.chaos.simulation.worlds.quorum.world import QuorumWorld
from quorumlog.chaos.simulation.worlds.storage_mutants import STORAGE_MUTANTS
from quorumlog.metadata_quorum.core.quorum import Quorum

__all__ = [
    "BROKEN_CORES",
    "CORE_RULES",
    "QUORUM_RULES",
    "VOTER_RULES",
    "UncheckedQuorum",
    "build_quorum",
    "build_voters",
]

QUORUM_RULES: Final = MUTANTS.rules | STORAGE_MUTANTS.rules
VOTER_RULES: Final = VOTER_MUTANTS.rules
CORE_RULES: Final = MUTANTS.rules | VOTER_MUTANTS.rules
BROKEN_CORES: Final = MUTANTS.made | VOTER_MUTANTS.made


def build_quorum(schedule: Schedule, mutant: str | None) -> World:
    """Make the world of fixed voters."""
    if mutant in STORAGE_MUTANTS.made:
        return QuorumWorld(schedule, UncheckedQuorum, STORAGE_MUTANTS.made[mutant])
    return QuorumWorld(schedule, Quorum if mutant is None else MUTANTS.made[mutant])


def build_voters(schedule: Schedule, mutant: str | None) -> World:
    """Make the world of voters that change."""
    return QuorumWorld(schedule, Quorum if mutant is None else VOTER_MUTANTS.made[mutant])
