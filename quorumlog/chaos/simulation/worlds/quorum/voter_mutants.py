"""Quorums that break one rule of KIP-853 each: the voters change, and these count wrongly."""

from typing import Final

from quorumlog.chaos.simulation.kernel.mutants import Mutants
from quorumlog.chaos.simulation.worlds.quorum.mutants import made_mutant

VOTER_MUTANTS: Final = Mutants(made_mutant)
