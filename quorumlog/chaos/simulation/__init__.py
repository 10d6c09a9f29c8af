"""The cores on one heap, one clock and one seed."""

from quorumlog.chaos.simulation.faults import FAULTS
from quorumlog.chaos.simulation.mutants import MUTANTS
from quorumlog.chaos.simulation.running import SimulationResult, shrink, simulate

__all__ = ["FAULTS", "MUTANTS", "SimulationResult", "shrink", "simulate"]
