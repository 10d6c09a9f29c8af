"""All mutants of the world, by name."""

from typing import Final

from quorumlog.chaos.simulation.worlds.transactions.coordinator_mutants import COORDINATOR_MUTANTS
from quorumlog.chaos.simulation.worlds.transactions.ending_mutants import ENDING_MUTANTS
from quorumlog.chaos.simulation.worlds.transactions.log_mutants import LOG_MUTANTS
from quorumlog.chaos.simulation.worlds.transactions.marker_mutants import MARKER_MUTANTS

OF_COORDINATORS: Final = (COORDINATOR_MUTANTS, ENDING_MUTANTS, MARKER_MUTANTS)
_PARTS: Final = (*OF_COORDINATORS, LOG_MUTANTS)
TRANSACTION_RULES: Final = {name: rule for part in _PARTS for name, rule in part.rules.items()}
BROKEN_TRANSACTIONS: Final = {name: made for part in _PARTS for name, made in part.made.items()}
